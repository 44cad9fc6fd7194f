"""The figures on the pages are those of the last run of the bench."""

import json
import re
from pathlib import Path

import pytest

from bench import publish
from bench.publish import PAGES, editions, fill_page, room, sections

ROOT = Path(__file__).resolve().parents[3]
TOLD = {"Goals": "| a goal |", "Growth: of tools, HTTP": "| more |", "Growth: of sessions": "| most |"}


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_on_a_page_are_those_of_the_last_run(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == fill_page(text, sections()), f"{page} is not of the last run: python -m bench.publish"


@pytest.mark.parametrize("page", PAGES)
def test_all_marks_on_a_page_are_in_pairs_and_the_goals_are_shown(page):
    marks = re.findall(r"<!--\s*bench:\s*(.*?)\s*-->", (ROOT / page).read_text(encoding="utf-8"))
    assert marks[1::2] == ["end"] * (len(marks) // 2)
    assert "Goals" in marks[::2] or page == "docs/README.md"  # the home page shows a selection
    assert "end" not in marks[::2]


def test_the_contents_of_the_page_name_every_section():
    head, *rest = (ROOT / "docs/performance.md").read_text(encoding="utf-8").split("\n## ")
    anchors = [part.partition("\n")[0].lower().replace(" ", "-") for part in rest]
    assert re.findall(r"\]\(#([^)]*)\)", head) == anchors


def test_only_the_text_between_two_marks_is_replaced():
    page = "before\n<!-- bench: Goals -->\nold\n<!-- bench: end -->\nafter\n"
    filled = "before\n<!-- bench: Goals -->\n\n| a goal |\n\n<!-- bench: end -->\nafter\n"
    assert fill_page(page, TOLD) == filled
    assert fill_page(filled, TOLD) == filled


def test_a_prefix_selects_all_names_and_distinguishes_them():
    page = fill_page("<!-- bench: Growth -->\n<!-- bench: end -->", TOLD)
    assert "\nOf tools, HTTP:\n\n| more |\n\nOf sessions:\n\n| most |\n" in page


def test_a_series_that_failed_completely_is_shown_on_the_page():
    page = fill_page("<!-- bench: What costs what -->\n<!-- bench: end -->", TOLD)
    assert "\nThe last run has not measured it.\n" in page


def test_the_limit_stands_beside_a_goal_where_there_is_one():
    goals = [
        {"name": f"goal {key}", "key": key, "measure": measure, "goal": 8}
        for key, measure in (
            ("both", "times the official SDK"),
            ("both", "value"),
            ("alone", "times the official SDK"),
        )
    ]
    rows = [
        {"key": "both", "targets": {"toolpost": {"vs_official": 4.0}, "limit": {"vs_official": 9.5}}},
        {"key": "alone", "targets": {"toolpost": {"vs_official": 4.0}, "limit": {}}},
    ]
    assert room({"goals": goals, "rows": rows}).splitlines()[2:] == ["| goal both | 8 | 4 | 9.5 |"]


def test_both_editions_stand_beside_each_other_where_both_have_a_row():
    rate = {"median": 15.0, "per_cpu": 30.0, "vs_official": 7.0}
    first = {"rows": {"both": {"median": 123.4, "vs_official": 3.91}, "rate": rate, "gone": rate}}
    rows = [
        {"key": key, "title": f"row {key}", "unit": "µs", "targets": {"toolpost": figures}}
        for key, figures in (
            ("both", {"median": 20.0, "vs_official": 14.2}),
            ("new", {"median": 20.0, "vs_official": 14.2}),
            ("rate", {"median": 20.0, "per_cpu": 40.0, "vs_official": 14.2}),
        )
    ]
    assert editions(first, {"rows": rows}).splitlines()[2:] == [
        "| row both | µs | 123 | 20 | 3.91 | 14.2 |",
        "| row rate | calls per CPU second | 30 | 40 | 7 | 14.2 |",
    ]


def test_the_figures_of_the_first_edition_are_kept_from_the_results_of_its_run(monkeypatch, tmp_path):
    monkeypatch.setattr(publish, "FIRST", tmp_path / "first.json")
    kept = {"median": 2.0, "per_cpu": 4.0, "vs_official": 3.0}
    rows = [
        {"key": "http-one", "targets": {"toolpost": {**kept, "min": 1.0}}},
        {"key": "http-alone", "targets": {"toolpost": {"median": 2.0}}},
        {"key": "start-size", "targets": {"toolpost": kept}},
    ]
    publish.keep_first_edition({"facts": {"python": "3.11"}, "rows": rows})
    stored = json.loads((tmp_path / "first.json").read_text())
    assert stored == {"python": "3.11", "rows": {"http-one": kept}}


def test_an_unknown_mark_is_reported():
    with pytest.raises(KeyError, match=r"nothing under 'Gaols'; available: .*Goals"):
        fill_page("<!-- bench: Gaols -->\n<!-- bench: end -->", TOLD)
