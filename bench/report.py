"""Formats the results: rows for a terminal, JSON, Markdown, and a chart.

Defines the format of figures and the files of results. `figures` computes them, `goals` judges them.
"""

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.contenders import CHART, CONTENDERS, python_of
from bench.figures import LIMIT, OFFICIAL, OURS, Row
from bench.goals import Verdict
from bench.process import cores

__all__ = ["as_markdown", "format_row", "number", "plain", "write"]

HERE: Final = Path(__file__).resolve().parent
DEPENDENCIES: Final = ("msgspec", "uvicorn", "httptools", "uvloop", "aiohttp")
GROUPS: Final = {
    "http": "Servers over HTTP",
    "asgi": "The ASGI application alone, without a socket",
    "stdio": "Servers over stdio",
    "clients": "Clients, against the limits as servers",
    "memory": "Idle sessions",
    "fleet": "Several workers on Redis",
    "start": "Start and weight",
}
_SENSES: Final = {"at least": "≥", "at most": "≤"}
SERIES: Final = {"options": "What costs what", "growth": "Growth"}
"""Rows that compare toolpost with itself."""

# --------------------------------------------------------------------- on a terminal


def format_row(row: Row) -> str:
    """Format a row for a terminal."""
    lines = [f"{row.key}: {row.title} [{row.unit}]"]
    for name, figure in row.figures.items():
        low, high = figure.spread
        parts = [f"  {name:26}{number(figure.median):>9}"]
        if len(figure.samples) > 1:
            parts.append(f"({number(low)} .. {number(high)})")
        if (per_cpu := figure.typical("per_cpu")) is not None:
            parts.append(f"{number(per_cpu)} per CPU s")
        if (p50 := figure.typical("p50")) is not None:
            parts.append(f"p50 {p50:.2f} p99 {figure.typical('p99') or 0:.2f} ms")
        compared = {base: row.times(base, name) for base in bases(row) if base != name}
        parts += [f"{times:.2f} x {base}" for base, times in compared.items() if times is not None]
        lines.append("  ".join(parts))
    lines += [f"  {name:26}failed: {why}" for name, why in row.failed.items()]
    if row.disturbed:
        lines.append(
            f"  disturbed: {OFFICIAL}, which never waits here, had its core for only part of the time"
        )
    return "\n".join(lines)


def bases(row: Row) -> list[str]:
    """Return the baseline of a row; its first target if the usual ones are missing."""
    return [base for base in (OFFICIAL, LIMIT) if base in row.figures] or list(row.figures)[:1]


def number(value: float) -> str:
    """Format a figure with its significant digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


# --------------------------------------------------------------------- for programs


def plain(
    rows: Mapping[str, Row], verdicts: Sequence[Verdict], missing: Mapping[str, str], load: str
) -> dict[str, Any]:
    """Return all results as JSON."""
    goals = [
        {
            "name": verdict.goal.name,
            "key": verdict.goal.key,
            "measure": verdict.goal.measure,
            "sense": verdict.goal.sense,
            "goal": verdict.goal.figure,
            "unit": verdict.goal.unit,
            "figure": verdict.figure,
            "rounds": verdict.figures,
            "reached": verdict.reached,
        }
        for verdict in verdicts
    ]
    facts = {
        "python": platform.python_version(),
        "cores": cores(),
        "load": load,
        "versions": {name: version(name) for name in DEPENDENCIES},
    }
    return {
        "facts": facts,
        "goals": goals,
        "rows": [row.plain() for row in rows.values()],
        "missing": sorted(missing),  # without reasons, as for failures
    }


# --------------------------------------------------------------------- Markdown


def as_markdown(rows: Mapping[str, Row], verdicts: Sequence[Verdict], facts: Mapping[str, Any]) -> str:
    """Return the tables: goals, scenarios by group, and comparisons of toolpost with itself."""
    versions = ", ".join(f"{name} {release}" for name, release in facts["versions"].items())
    disturbed = [row.title for row in rows.values() if row.disturbed]
    about = f"{facts['cores']} cores with Python {facts['python']}, {versions}; load: {facts['load']}"
    parts = [
        f"Measured by `make bench` on {about}.",
        *([f"Disturbed by other processes: {', '.join(disturbed)}."] if disturbed else []),
        "## Goals",
        _table(
            ("goal", "wanted", "measured", "by round", ""),
            [
                (
                    verdict.goal.name,
                    f"{_SENSES[verdict.goal.sense]} {verdict.goal.figure:g} {verdict.goal.unit}",
                    "–" if verdict.figure is None else f"{verdict.figure:.3g} {verdict.goal.unit}",
                    verdict.spread.replace("..", "–"),
                    "reached" if verdict.reached else "**missed**",
                )
                for verdict in verdicts
            ],
        ),
    ]
    for group, title in GROUPS.items():
        parts += [f"## {title}", _group([row for row in rows.values() if _belongs(row, group)])]
    for group, title in SERIES.items():
        for row in (row for row in rows.values() if _belongs(row, group)):
            parts += [f"## {title}: {row.title}", _series(row)]
    detailed = [row for row in rows.values() if any(_belongs(row, group) for group in GROUPS)]
    parts += ["## Spread, CPU and latency", _details(detailed)]
    return "\n\n".join(parts) + "\n"


def _belongs(row: Row, group: str) -> bool:
    return row.key.partition("-")[0] == group and bool(row.figures)


def _group(rows: Sequence[Row]) -> str:
    names = [name for name in CONTENDERS if any(name in row.figures for row in rows)]
    names.sort(key=[OURS, OFFICIAL, *(name for name in CONTENDERS if name not in {OURS, OFFICIAL})].index)
    shared = LIMIT in names and any(row.times(LIMIT, field="per_cpu") is not None for row in rows)
    shares = ["of the limit, per CPU"] if shared else []
    return _table(
        ("scenario", "unit", *names, f"× {OFFICIAL}", *shares),
        [_line(row, names)[: len(names) + 3 + len(shares)] for row in rows],
    )


def _line(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    cells = [number(row.figures[name].median) if name in row.figures else "–" for name in names]
    times, share = row.times(OFFICIAL), row.times(LIMIT, field="per_cpu")
    return (
        row.title,
        row.unit,
        *cells,
        "–" if times is None else f"**{number(times)}**",
        "–" if share is None else f"{share:.0%}",
    )


def _details(rows: Sequence[Row]) -> str:
    """Return spread, CPU and latency of the two compared targets, if there are several figures."""
    lines = [
        (
            row.title,
            name,
            number(figure.median),
            "{} – {}".format(*map(number, figure.spread)),
            *(_cell(figure.typical(field)) for field in ("per_cpu", "p50", "p99")),
        )
        for row in rows
        for name, figure in row.figures.items()
        if name in {OURS, OFFICIAL}
    ]
    header = ("scenario", "target", "median", "spread", "per CPU second", "p50 ms", "p99 ms")
    return _table(header, lines)


def _cell(value: float | None) -> str:
    return "–" if value is None else number(value)


def _series(row: Row) -> str:
    [base] = bases(row)
    return _table(
        ("", row.unit, "per CPU second", f"of {base}"),
        [
            (
                name,
                number(figure.median),
                number(figure.typical("per_cpu") or 0),
                f"{row.times(base, name) or 0:.0%}",
            )
            for name, figure in row.figures.items()
        ],
    )


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


# --------------------------------------------------------------------- files


def write(rows: Mapping[str, Row], verdicts: Sequence[Verdict], missing: Mapping[str, str], load: str) -> str:
    """Write the results. Returns the reason if there is no chart."""
    results = plain(rows, verdicts, missing, load)
    text = json.dumps(results, indent=1, ensure_ascii=False, default=str)
    (HERE / "results.json").write_text(f"{text}\n", encoding="utf-8")
    (HERE / "results.md").write_text(as_markdown(rows, verdicts, results["facts"]), encoding="utf-8")
    command = [str(python_of(CHART)), str(HERE / "chart.py")]
    try:
        drawn = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return "" if drawn.returncode == 0 else drawn.stderr.strip()[-300:]
