"""The picture of speed: bars for the times that `tests/benchmarks/RESULTS.md` has, beside Spark and DuckDB, as SVG.

It brings its own background and follows the reader's light or dark mode, so that it can be read on any page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.pages.sources import DOCS, ROOT

PICTURE = DOCS / "pictures" / "speed.svg"
_RESULTS = ROOT / "tests" / "benchmarks" / "RESULTS.md"

_WIDTH, _LEFT, _RIGHT = 400, 16, 64
"""As narrow as a phone, where text keeps its size."""

_ROW, _HEAD, _GAP = 38, 32, 12
_STYLE = """
.card { fill: #ffffff; stroke: #d0d7de } text { fill: #24292f; font: 13px sans-serif } .head { font-weight: 600 }
.ours { fill: #2a7d5f } .other { fill: #9aa4af } .small { font-size: 12px }
@media (prefers-color-scheme: dark) {
.card { fill: #161b22; stroke: #30363d } text { fill: #e6edf3 } .ours { fill: #4cc38a } .other { fill: #6e7681 } }
""".strip()

_NOTE = ("Seconds, without start-up, on two cores; rows of 75 bytes.", "Figures: tests/benchmarks/RESULTS.md")


@dataclass(frozen=True)
class Bar:
    label: str
    seconds: float
    is_ours: bool = False


@dataclass(frozen=True)
class Group:
    title: str
    bars: tuple[Bar, ...]


def groups() -> tuple[Group, ...]:
    """What is drawn. Raises `KeyError` if RESULTS.md has no such row."""
    whole = _times("Whole table, narrow rows", 1)
    ours, duckdb = _times("Incremental, narrow rows", 1), _times("Incremental, narrow rows", 3)
    return (
        Group(
            "5 million rows into an empty table",
            (
                Bar("Spark, window query", whole["Spark window"]),
                Bar("DuckDB, QUALIFY", whole["DuckDB QUALIFY"]),
                Bar("Lithify, with its index", whole["lithify"], is_ours=True),
            ),
        ),
        Group(
            "200,000 rows into a table of 4 million",
            (
                Bar("DuckDB, the whole table again", duckdb["5% clustered"]),
                Bar("Lithify, keys anywhere", ours["5% uniform"], is_ours=True),
                Bar("Lithify, recent keys", ours["5% clustered"], is_ours=True),
                Bar("Lithify, keys anywhere, dead rows kept", ours["5% uniform, dead rows kept"], is_ours=True),
            ),
        ),
    )


def _times(section: str, column: int) -> dict[str, float]:
    """Seconds of a column, by the row's name, of the first table of a section."""
    return {name: float(row[column - 1]) for name, row in table_of(section).items()}


def table_of(section: str, number: int = 0) -> dict[str, list[str]]:
    """The cells of a table of a section, by the row's first cell. Raises `KeyError` if it has no such table."""
    text = _RESULTS.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    if number >= len(tables):
        raise KeyError(section)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[number].splitlines()[2:]]
    return {row[0]: row[1:] for row in rows}


def picture() -> str:
    drawn = groups()
    height = sum(_HEAD + len(each.bars) * _ROW + _GAP for each in drawn) + 18 * len(_NOTE) + 6
    longest = max(bar.seconds for each in drawn for bar in each.bars)
    title = "Seconds on two cores: Lithify beside Spark and DuckDB"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"',
            f' viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
            *_bars(drawn, (_WIDTH - _LEFT - _RIGHT) / longest),
            *(
                f'<text class="small" x="16" y="{height - 12 - 18 * (len(_NOTE) - 1 - number)}">{line}</text>'
                for number, line in enumerate(_NOTE)
            ),
            "</svg>\n",
        )
    )


def _bars(drawn: tuple[Group, ...], per_second: float) -> Iterator[str]:
    y = 0
    for each in drawn:
        yield f'<text class="head" x="16" y="{y + 25}">{each.title}</text>'
        y += _HEAD
        for bar in each.bars:
            width = max(bar.seconds * per_second, 1)
            kind = "ours" if bar.is_ours else "other"
            yield f'<text x="16" y="{y + 13}">{bar.label}</text>'
            yield f'<rect class="{kind}" x="{_LEFT}" y="{y + 19}" width="{width:.1f}" height="12" rx="2"/>'
            yield f'<text x="{_LEFT + width + 8:.1f}" y="{y + 30}">{bar.seconds:.1f} s</text>'
            y += _ROW
        y += _GAP
