"""How commands answer: a table or a few lines for people, JSON for programs. Answers go to stdout, logs to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic_core import to_json
from rich.console import Console
from rich.table import Table

from compactor.errors import Invalid
from dispatcher.cli.options import Output

Answer = Mapping[str, object] | Sequence[object]


def answer_json(value: object) -> None:
    """One JSON value, and a line's end."""
    text = to_json(value, indent=2, bytes_mode="base64", inf_nan_mode="strings", fallback=str)
    sys.stdout.write(text.decode() + "\n")


def console() -> Console:
    """For stdout. Wraps nothing where there is no terminal, so that lines can be searched."""
    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


def answer(output: Output, value: Answer, lines: Iterable[str]) -> None:
    """The same answer in either form."""
    if output is Output.JSON:
        answer_json(value)
        return
    out = console()
    for line in lines:
        out.print(line, markup=False)


def rows_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A table of texts; numbers stand to the right."""
    table = Table(title=title, title_justify="left", header_style="bold")
    kept = [list(row) for row in rows]
    for place, column in enumerate(columns):
        numbers = bool(kept) and all(isinstance(row[place], int | float) or row[place] is None for row in kept)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in kept:
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def parse_partition(pairs: Sequence[str] | None) -> dict[str, str]:
    """Raises `Invalid` for anything but key=value, each key once."""
    partition: dict[str, str] = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise Invalid(f"--partition {pair!r} is not key=value")
        if key in partition:
            raise Invalid(f"--partition names {key!r} twice")
        partition[key] = value
    return partition


def read_document(file: str) -> str:
    """The text of a file, or of standard input for `-`. Raises `Invalid` if it cannot be read."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} cannot be read: {error}") from error
