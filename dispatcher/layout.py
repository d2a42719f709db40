"""The layout of answers: a table with aligned columns, or, if a row is wider than the page, one block per record.

A line is a sequence of segments, each a text and its style. No text is interpreted as markup. Characters that move a
terminal's cursor or change the direction of writing are shown as escapes: ids, partitions and values are untrusted.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from compactor.model.clock import utc_time
from compactor.model.names import render_partition

Segment = tuple[str, str]
"""A text and the name of its style in rich; empty: none."""

Line = tuple[Segment, ...]
Record = Mapping[str, object]

HEADING, FAILED, SUCCEEDED, STOPPED, RUNNING, DIM = "bold", "bold red", "green", "yellow", "cyan", "dim"

_STATUS_STYLES = {
    "succeeded": SUCCEEDED,
    "failed": FAILED,
    "rejected": FAILED,
    "unreadable": FAILED,
    "cancelled": STOPPED,
    "running": RUNNING,
}

_GAP = 2
_PADDED_MAX = 200
"""Without a terminal, columns are padded up to this width, so that one long value does not make all rows as long."""

_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with escapes (`\x1b`, `\n`) for characters that a terminal does not print."""
    return _NO_TEXT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# -- values as text


def value_text(value: object) -> str:
    """Any value, in full."""
    match value:
        case None:
            return "null"
        case str():
            return value
        case bool() | dict() | list() | tuple() | bytes():
            return data_text(value).removeprefix('"').removesuffix('"')
        case _:
            return str(value)


def data_text(value: object) -> str:
    """As JSON, on one line."""
    return to_json(value, bytes_mode="base64", inf_nan_mode="strings", fallback=str).decode()


def word_text(value: object) -> str:
    """A word; empty if there is none."""
    return "-" if value is None else str(value)


def count_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else word_text(value)


def seconds_text(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, int | float) else word_text(value)


def usd_text(value: object) -> str:
    return f"{value:,.4f}" if isinstance(value, int | float) else word_text(value)


def age_text(seconds: object) -> str:
    """`40 s`, `5 min`, `3 h`, `12 d`."""
    if not isinstance(seconds, int | float):
        return word_text(seconds)
    for unit, unit_seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:,.0f} {unit}"
    return f"{seconds:.0f} s"


def time_text(at_ms: object) -> str:
    """A time in milliseconds, in UTC."""
    if not isinstance(at_ms, int):
        return word_text(at_ms)
    return utc_time(at_ms).strftime("%Y-%m-%d %H:%M:%S")


def partition_text(partition: object) -> str:
    """Values by key, as `--partition` takes them."""
    return render_partition(partition) if isinstance(partition, dict) else word_text(partition)


def status_style(value: object) -> str:
    return _STATUS_STYLES.get(str(value), "")


def problem_style(value: object) -> str:
    """The style of a number that should be 0."""
    return FAILED if value else ""


@dataclass(frozen=True)
class Column:
    """
    Attributes:
        key: its name in JSON
        heading: its name for people; left out: the key's words
        show: its values for people
        style: how a value is coloured"""

    key: str
    heading: str = ""
    show: Callable[[object], str] = word_text
    style: Callable[[object], str] = lambda _: ""

    @property
    def title(self) -> str:
        return printable(self.heading or self.key.replace("_", " "))


PARTITION = Column("partition", show=partition_text)
STATUS = Column("status", style=status_style)
OF_SESSION = (
    Column("delta_rows", "delta", count_text),
    Column("rows_out", "after", count_text),
    Column("rows_deduplicated", "deduplicated", count_text),
    Column("rows_deleted", "deleted", count_text),
    Column("seconds", show=seconds_text),
    Column("expected_sla", "expected", seconds_text),
)


def plain(*keys: str) -> tuple[Column, ...]:
    """Columns of words."""
    return tuple(map(Column, keys))


def counts(*keys: str) -> tuple[Column, ...]:
    """Columns of whole numbers."""
    return tuple(Column(key, show=count_text) for key in keys)


def data_columns(names: Iterable[str]) -> tuple[Column, ...]:
    """The columns of a table's rows."""
    return tuple(Column(name, heading=name, show=value_text) for name in names)


# -- lines


def table_lines(columns: Sequence[Column], records: Iterable[Record], width: int | None) -> Iterator[Line]:
    """One line per record below a heading, or, if one of them is wider than the page, a block of lines per record.

    Args:
        width: characters of the page; None: no limit"""
    kept = list(records)
    cells = [[printable(column.show(record.get(column.key))) for record in kept] for column in columns]
    widths = [max(map(_cells, (column.title, *texts))) for column, texts in zip(columns, cells, strict=True)]
    if width is not None and sum(widths) + _GAP * (len(widths) - 1) > width:
        return _blocks(columns, kept, cells, width)
    if width is None:
        widths = [min(each, _PADDED_MAX) for each in widths]
    return _rows(columns, kept, cells, widths)


def sentence_lines(text: str, width: int | None, style: str = "") -> Iterator[Line]:
    """One sentence, broken between words at the page's width; its indent is repeated on every line."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    for line in _broken(printable(text.strip()), width, len(indent)):
        yield ((indent + line, style),)


def _rows(
    columns: Sequence[Column], records: Sequence[Record], cells: Sequence[Sequence[str]], widths: Sequence[int]
) -> Iterator[Line]:
    rights = [_is_of_numbers(column.key, records) for column in columns]
    headings = [column.title for column in columns]
    yield _row(headings, [HEADING] * len(columns), widths, rights)
    for place, record in enumerate(records):
        texts = [column[place] for column in cells]
        yield _row(texts, [column.style(record.get(column.key)) for column in columns], widths, rights)


def _row(texts: Sequence[str], styles: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> Line:
    line: list[Segment] = []
    last = len(texts) - 1
    for place, (text, style, width, right) in enumerate(zip(texts, styles, widths, rights, strict=True)):
        room = " " * max(width - _cells(text), 0)
        gap = "" if place == last else " " * _GAP
        if right:
            line += [(room, ""), (text, style), (gap, "")]
        else:
            line += [(text, style), ("" if place == last else room + gap, "")]
    return tuple(line)


def _blocks(
    columns: Sequence[Column], records: Sequence[Record], cells: Sequence[Sequence[str]], width: int
) -> Iterator[Line]:
    headings = [column.title for column in columns]
    left = max(map(_cells, headings)) + _GAP
    for place, record in enumerate(records):
        if place:
            yield ()
        for column, heading, texts in zip(columns, headings, cells, strict=True):
            style = column.style(record.get(column.key))
            before = heading + " " * (left - _cells(heading))
            for text in _broken(texts[place], width, left):
                yield ((before, HEADING), (text, style))
                before = " " * left


def _broken(text: str, width: int | None, indent: int) -> list[str]:
    """Breaks between words only: a word that is longer than a line stays whole, so that it can be copied."""
    if width is None or indent + _cells(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width - indent, 1), break_long_words=False, break_on_hyphens=False) or [""]


def _is_of_numbers(key: str, records: Sequence[Record]) -> bool:
    values = [record.get(key) for record in records]
    return any(value is not None for value in values) and all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values
    )


def _cells(text: str) -> int:
    """The width of a text on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
