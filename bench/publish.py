"""Copies the tables of the last run to the pages that show them: `python -m bench.publish`.

Replaces the text between `<!-- bench: NAME -->` and `<!-- bench: end -->` with the results for NAME. A full
run ends with this, and a test compares the pages with the results.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.command import exit_code
from bench.figures import LIMIT, OFFICIAL, OURS
from bench.instructions import RECORD, WAYS
from bench.process import ROOT, Failed
from bench.report import SERIES, number

__all__ = ["PAGES", "editions", "fill_page", "keep_first_edition", "publish", "room", "sections"]

PAGES: Final = ("README.md", "docs/README.md", "docs/performance.md")
HERE: Final = Path(__file__).resolve().parent
FIRST: Final = HERE / "first_edition.json"
"""The figures of the first edition, measured with the current targets: rows by their keys."""

COMPARED: Final = frozenset({"http", "asgi", "stdio", "clients", "memory"})
"""Groups of rows to keep of the first edition."""

_BLOCK: Final = re.compile(r"(<!-- bench: (?!end)([^>]+) -->\n).*?(<!-- bench: end -->)", re.DOTALL)


def sections() -> dict[str, str]:
    """Return the sections by name: the parts of `results.md`, and tables for the pages."""
    about, *parts = re.split(r"^## ", (HERE / "results.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = {"The run": about.strip()}
    for part in parts:
        title, _, body = part.partition("\n")
        texts[title] = body.strip()
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    texts["Room"] = room(results)
    texts["Old and new"] = editions(json.loads(FIRST.read_text(encoding="utf-8")), results)
    texts["Instructions"] = _instructions(json.loads(RECORD.read_text(encoding="utf-8")))
    return texts


def room(results: Mapping[str, Any]) -> str:
    """Compare the goals with the limit, which no library can exceed."""
    targets = {row["key"]: row["targets"] for row in results["rows"]}
    lines = [f"| goal, × {OFFICIAL} | wanted | toolpost | the limit |", "| --- | ---: | ---: | ---: |"]
    for goal in results["goals"]:
        row = targets.get(goal["key"], {})
        reached = [row[name]["vs_official"] for name in (OURS, LIMIT) if "vs_official" in row.get(name, {})]
        if goal["measure"] == "times the official SDK" and len(reached) == 2:
            ours, limit = reached
            lines.append(f"| {goal['name']} | {goal['goal']:g} | {ours:.3g} | {limit:.3g} |")
    return "\n".join(lines)


def editions(first: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Compare the first edition with the last run, for rows that both have."""
    lines = [
        f"| scenario | unit | first edition | now | first edition × {OFFICIAL} | now × {OFFICIAL} |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results["rows"]:
        old, new = first["rows"].get(row["key"]), row["targets"].get(OURS)
        if old and new and "vs_official" in new:
            # A rate depends on the load of the machine; a rate per CPU second hardly does.
            field, unit = ("per_cpu", "calls per CPU second") if "per_cpu" in new else ("median", row["unit"])
            figures = [number(of[name]) for name in (field, "vs_official") for of in (old, new)]
            lines.append(f"| {' | '.join((row['title'], unit, *figures))} |")
    return "\n".join(lines)


def keep_first_edition(results: Mapping[str, Any]) -> None:
    """Write the figures of the first edition from the results of a run that measured it."""
    rows = {
        row["key"]: {name: ours[name] for name in ("median", "per_cpu", "vs_official") if name in ours}
        for row in results["rows"]
        if row["key"].partition("-")[0] in COMPARED
        and "vs_official" in (ours := row["targets"].get(OURS, {}))
    }
    record = {"python": results["facts"]["python"], "rows": rows}
    FIRST.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _instructions(record: Mapping[str, Any]) -> str:
    """Return the table of instruction counts."""
    counts: dict[str, int] = record["per_call"]
    lines = [f"| one call, with Python {record['python']} | instructions |", "| --- | ---: |"]
    lines += [f"| {title} | {counts[way]:,} |" for way, title in WAYS.items() if way in counts]
    return "\n".join(lines)


def _find_sections(name: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Yield the sections with this name or prefix; for a prefix, with their headings."""
    if name in texts:
        yield texts[name]
        return
    found = {title: body for title, body in texts.items() if title.startswith(f"{name}: ")}
    if not found and name in SERIES.values():
        yield "The last run has not measured it."
    elif not found:
        raise KeyError(f"the results have nothing under {name!r}; available: {', '.join(texts)}")
    for title, body in found.items():
        words = title.removeprefix(f"{name}: ")
        yield f"{words[0].upper()}{words[1:]}:"
        yield body


def fill_page(page: str, texts: Mapping[str, str]) -> str:
    """Return a page with the current results between its marks.

    Raises:
        KeyError: a mark has a name that is not in the results.
    """

    def filled(block: re.Match[str]) -> str:
        return "\n\n".join([block[1].strip(), *_find_sections(block[2], texts), block[3]])

    return _BLOCK.sub(filled, page)


def publish() -> None:
    """Write the last results to all pages that show them."""
    texts = sections()
    for page in PAGES:
        path = ROOT / page
        path.write_text(fill_page(path.read_text(encoding="utf-8"), texts), encoding="utf-8")


def main() -> int:
    """Update the pages and print their names.

    Raises:
        Failed: the results or a page are missing.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench.publish",
        description=f"Copy the last results of the bench into {' and '.join(PAGES)}.",
    )
    parser.add_argument(
        "--first-edition",
        type=Path,
        metavar="RESULTS",
        help="keep the figures in this results.json as those of the first edition",
    )
    given = parser.parse_args()
    try:
        if given.first_edition:
            keep_first_edition(json.loads(given.first_edition.read_text(encoding="utf-8")))
        publish()
    except FileNotFoundError as error:
        missing = Path(error.filename)
        name = missing.relative_to(ROOT) if missing.is_relative_to(ROOT) else missing
        raise Failed(
            f"{name} does not exist; `make bench` writes the results, and the pages are part of the checkout"
        ) from error
    except KeyError as error:
        raise Failed(error.args[0]) from error
    print(f"written: {', '.join(PAGES)}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
