"""Draws `results.png` from `results.json`: how many times better than the official SDK, scenario by scenario.

Runs in a separate environment with matplotlib and without toolpost.
"""

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
BASE = "mcp-2.3.0"
OTHERS = {
    "limit": ("#444444", "X", "the limit"),
    "fastmcp-4.1.0": ("#d1495b", "o", "FastMCP 4.1.0"),
    "npm-sdk-1.32.2": ("#edae49", "s", "npm sdk 1.32.2"),
    "npm-server-2.4.0": ("#66a182", "D", "npm server 2.4.0"),
}
OURS = "#1f6fb2"


def times(row: dict, name: str) -> float | None:
    """Return how many times better than the official SDK a target is."""
    return row["targets"].get(name, {}).get("vs_official")


def main() -> None:
    """Draw the chart."""
    results = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    rows = {row["key"]: row for row in results["rows"]}
    goals = [
        goal
        for goal in results["goals"]
        if goal["measure"].startswith("times") and times(rows.get(goal["key"], {"targets": {}}), "toolpost")
    ]
    figure, axes = plt.subplots(figsize=(10, 0.46 * len(goals) + 1.8), dpi=110)
    for place, goal in enumerate(goals):
        row = rows[goal["key"]]
        ours = times(row, "toolpost")
        axes.barh(place, ours - 1, left=1, color=OURS, height=0.58, zorder=2)
        axes.plot([goal["goal"]] * 2, [place - 0.42, place + 0.42], color="black", lw=1.6, zorder=4)
        for name, (colour, marker, _) in OTHERS.items():
            if (there := times(row, name)) is not None:
                axes.plot(there, place, marker=marker, color=colour, ms=7, mew=1.6, ls="", zorder=5)
        axes.annotate(
            f"{ours:.1f}×" if ours < 10 else f"{ours:.0f}×",
            (1.01, place),
            xycoords=axes.get_yaxis_transform(),  # beside the bars, where no marker covers it
            va="center",
            color=OURS,
            weight="bold",
            fontsize=9,
            annotation_clip=False,
        )
    axes.set_yticks(range(len(goals)), [goal["name"].replace("`", "") for goal in goals])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="black", lw=1, zorder=3)
    ticks = [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.get_xaxis().set_major_formatter("{x:g}×")
    axes.minorticks_off()
    axes.grid(axis="x", color="#dddddd", zorder=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("times better than PyPI's mcp 2.3.0 in the same run (log scale)")
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=OURS),
        plt.Line2D([], [], color="black", marker="|", ls="", ms=12, mew=1.6),
    ]
    handles += [plt.Line2D([], [], color=c, marker=m, ls="", ms=7, mew=1.6) for c, m, _ in OTHERS.values()]
    labels = ["toolpost", "goal", *(label for *_, label in OTHERS.values())]
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(HERE / "results.png", metadata={"Software": None})


main()
