"""The documentation builds as a site: no warning, nothing that is loaded from elsewhere, all pages there."""

import re
from pathlib import Path

import pytest

import website
from revision_dates import DATES
from toolpost.testing import REVISIONS

ROOT = Path(__file__).resolve().parents[3]


def test_the_site_builds_without_a_warning(tmp_path):
    website.build(tmp_path / "site")
    pages = {page.stem for page in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"} <= pages
    reference = (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")
    assert 'id="toolpost.Server.tool"' in reference
    assert "Contents:" not in (tmp_path / "site" / "tools.html").read_text(encoding="utf-8")


def repository(folder: Path, page: str) -> Path:
    """A small one, with one page."""
    (folder / "docs").mkdir()
    (folder / "src").mkdir()
    (folder / "docs" / "README.md").write_text(page, encoding="utf-8")
    for name in website.BESIDE:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("# Beside\n", encoding="utf-8")
    (folder / "zensical.toml").write_text('[project]\nsite_name = "small"\ntheme = { font = false }\n')
    return folder


def test_a_link_that_leads_nowhere_fails_the_build_and_is_named(tmp_path):
    root = repository(tmp_path, "# Home\n\n[away](nowhere.md)\n")
    with pytest.raises(RuntimeError, match=r"README\.md:3:8"):
        website.build(tmp_path / "site", root)
    assert not (tmp_path / "site").exists()


def test_what_is_loaded_from_elsewhere_fails_the_build_and_is_named(tmp_path):
    root = repository(tmp_path, '# Home\n\n<img src="https://example.com/spy.png">\n')
    with pytest.raises(RuntimeError, match=r"elsewhere: https://example\.com/spy\.png"):
        website.build(tmp_path / "site", root)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[x](tools.md#results)", "[x](tools.md#results)"),
        ("[x](#here)", "[x](#here)"),
        ("[x](https://example.com)", "[x](https://example.com)"),
        ("[a `b`](../CONTRIBUTING.md#tests)", "[a `b`](contributing.md#tests)"),
        ("[`x.py`](../examples/x.py)", "`x.py`"),
        ("`[x](../examples/x.py)`", "`[x](../examples/x.py)`"),
        ("Contents: [x](#x) ·\n[y](#y)\n\nMore", "\n\n\nMore"),
    ],
)
def test_a_page_is_shown_with_links_that_lead_somewhere(written, shown, tmp_path):
    root = repository(tmp_path, written)
    assert website.staged(root / "docs" / "README.md", root) == shown


def test_the_table_of_revisions_is_that_of_the_records():
    text = (ROOT / "docs" / "revisions.md").read_text(encoding="utf-8")
    cells = r"^\| (.*?) \|" + r" (.*?) \|" * len(DATES) + "$"
    rows = {row[0]: row[1:] for row in re.findall(cells, text, re.MULTILINE)}
    records = [REVISIONS[date] for date in DATES]

    def told(row: str) -> list[bool]:
        return [cell == "yes" for cell in rows[row]]

    assert list(rows["era"]) == [record.era for record in records]
    assert told("batches") == [record.batches for record in records]
    assert told("structured results, resource links") == [record.structured is not None for record in records]
    assert told("annotations of tools, audio") == ["audio" in record.content for record in records]
    assert told("asking by URL, sampling with tools, icons") == [record.rich_forms for record in records]
