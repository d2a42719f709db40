"""Draws time against table size, and actual against predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # a backend that needs no screen, chosen before pyplot is loaded

from matplotlib import pyplot as plt

from tests.benchmarks.contests import Entry

_MARKS = "os^Dv"


def draw(entries: Sequence[Entry], path: Path) -> None:
    """One line per contestant over the rows of the table, both axes logarithmic; a PNG of some tens of kilobytes."""
    figure, axes = plt.subplots(figsize=(7.5, 4.5), dpi=100)
    lines: dict[str, list[Entry]] = {}
    for entry in entries:
        lines.setdefault(_label(entry), []).append(entry)
    for mark, (label, line) in zip(_MARKS * len(lines), lines.items(), strict=False):
        axes.plot([each.shape.rows for each in line], [each.seconds for each in line], marker=mark, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({entry.shape.rows for entry in entries})
    axes.set_xticks(ticks, [f"{rows / 1e6:g} M" for rows in ticks])
    axes.set_xlabel("rows of the table (about 75 bytes each at rest)")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", labelsize=6)
    axes.set_ylabel("seconds, without start-up")
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def draw_predictions(points: Sequence[tuple[float, float, bool]], path: Path) -> None:
    """A point per session, both axes logarithmic: predicted and actual seconds, and whether it took longer than its
    expected SLA."""
    figure, axes = plt.subplots(figsize=(6, 5), dpi=100)
    for is_beyond, color, label in ((False, "tab:blue", "within the expected SLA"), (True, "tab:red", "beyond it")):
        some = [(predicted, actual) for predicted, actual, beyond in points if beyond is is_beyond]
        axes.scatter([each[0] for each in some], [each[1] for each in some], s=14, color=color, label=label)
    ends = [min(each[0] for each in points) / 1.2, max(each[0] for each in points) * 1.2]
    axes.plot(ends, ends, color="grey", linewidth=0.8, label="as predicted")
    axes.plot(ends, [each * 1.1 for each in ends], color="grey", linewidth=0.8, linestyle="--", label="10 % more")
    axes.set(xscale="log", yscale="log", xlabel="predicted seconds", ylabel="actual seconds")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _label(entry: Entry) -> str:
    if not entry.variant.incremental or entry.change is None:
        return f"{entry.contestant}, whole table"
    kept = ", dead rows kept" if entry.variant.max_dead_row_share else ""
    return f"{entry.contestant}, {entry.change.rows:,} {entry.change.spread} rows{kept}"
