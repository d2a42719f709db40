"""Output of commands: text for people, JSON or JSON lines for programs. Answers go to stdout, logs to stderr.

    answer(output, value, lines)              one thing: JSON of `value`, or `lines`
    answer_records(output, value, key, ...)   many of a kind, under `value[key]`: a table, or a line each

A partition is an object of its values by key in JSON and JSON lines, and `key=value` in text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import typer
from pydantic_core import to_json

from compactor.model.errors import EXIT_FAILED, Invalid, Unavailable
from dispatcher.cli.options import Output
from dispatcher.layout import FAILED, Column, Line, Record, data_text, printable, sentence_lines, table_lines

if TYPE_CHECKING:  # rich is loaded for a terminal
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.text import Text

Lines = Iterable[str | Line]


def answer(output: Output, value: Record, lines: Lines) -> None:
    """Writes one value, in any form. A text among the lines is a sentence or a command, wrapped between words."""
    match output:
        case Output.JSON:
            answer_json(value)
        case Output.JSONL:
            _write([data_text(value) + "\n"])
        case Output.TEXT:
            write_lines(lines)


def answer_records(
    output: Output,
    value: Record,
    key: str,
    columns: Sequence[Column],
    *,
    none: str,
    before: Lines = (),
    after: Lines = (),
    notes: Sequence[str] = (),
) -> None:
    """Writes many records of a kind.

    Args:
        value: the complete answer, for JSON
        key: where in it the records are: mappings, which have the columns' keys and maybe more
        columns: of the text
        none: the text if there is no record
        before: the text above the table
        after: the text below it
        notes: important: below the text, on stderr for JSON lines. JSON's `value` has them"""
    records = value[key]
    if not isinstance(records, Iterable):
        raise TypeError(f"{key} holds no records")
    match output:
        case Output.JSON:
            answer_json(value)
        case Output.JSONL:
            _write(data_text(record) + "\n" for record in records)
            for note in notes:
                print_error(note)
        case Output.TEXT:
            kept = list(records)
            table = table_lines(columns, kept, page_width()) if kept else [none] if none else ()
            write_lines((*before, *table, *after, *notes))


def answer_json(value: object) -> None:
    """Writes one JSON value, and a newline."""
    text = to_json(value, indent=2, bytes_mode="base64", inf_nan_mode="strings", fallback=str)
    _write([text.decode(), "\n"])


def write_lines(lines: Lines) -> None:
    """Writes to stdout: with colours on a terminal that has them, without wrapping if there is no terminal."""
    ink, width = _ink(sys.stdout), page_width()
    _write(f"{ink.render(line)}\n" for line in _laid_out(lines, width))


def page_width() -> int | None:
    """Characters per line of stdout; None without a terminal, where nothing is wrapped."""
    return console().width if sys.stdout.isatty() else None


def console() -> Console:
    """The console for live displays on stdout. Without a terminal nothing is wrapped, so that lines can be searched."""
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False, markup=False)


def on_page(sentences: Iterable[str], style: str = "") -> list[Line]:
    """Sentences in a style, wrapped between words."""
    return [line for sentence in sentences for line in sentence_lines(sentence, page_width(), style)]


def as_text(lines: Lines, width: int | None) -> Text:
    """The same, for a live display of rich."""
    from rich.text import Text

    return Text("\n").join(Text.assemble(*line) for line in _laid_out(lines, width))


def print_error(sentence: str) -> None:
    """Writes to stderr, with a red first word on a terminal."""
    name = _ink(sys.stderr).render((("lithify:", FAILED),))
    sys.stderr.write(f"{name} {printable(sentence)}\n")


def exit_if_failed(failed: Mapping[str, str]) -> None:
    """After the answer on all others: names each that failed, with its reason."""
    for name, reason in failed.items():
        print_error(f"{name}: {reason}")
    if failed:
        raise typer.Exit(EXIT_FAILED)


def flush() -> None:
    """Ends an answer. Raises as `_written` does."""
    with _written():
        sys.stdout.flush()


def _write(texts: Iterable[str]) -> None:
    for text in texts:  # rendered before: its errors are not stdout's
        with _written():
            sys.stdout.write(text)


@contextmanager
def _written() -> Iterator[None]:
    """Raises `Unavailable` if stdout cannot be written, `BrokenPipeError` if its reader has ended."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unavailable(f"the answer cannot be written to standard output: {error.strerror}") from error


@dataclass(frozen=True)
class _Ink:
    color_system: ColorSystem | None

    def render(self, line: Line) -> str:
        if self.color_system is None:
            return "".join(text for text, _ in line)
        from rich.style import Style

        return "".join(
            Style.parse(style).render(text, color_system=self.color_system) if style and text else text
            for text, style in line
        )


def _ink(stream: TextIO) -> _Ink:
    if not stream.isatty():
        return _Ink(None)
    from rich.color import ColorSystem
    from rich.console import Console

    of = Console(file=stream)
    return _Ink(None if of.color_system is None or of.no_color else ColorSystem.STANDARD)


def _laid_out(lines: Lines, width: int | None) -> Iterable[Line]:
    for line in lines:
        if isinstance(line, str):
            yield from sentence_lines(line, width)
        else:
            yield line


def parse_partition(pairs: Sequence[str] | None) -> dict[str, str]:
    """Raises `Invalid` for anything but key=value, each key once. A value of two double quotes is the empty text: no
    value at all is mostly a variable of a shell that is not set."""
    partition: dict[str, str] = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise Invalid(f"--partition {pair!r} is not key=value")
        if key in partition:
            raise Invalid(f"--partition names {key!r} twice")
        if not value:
            raise Invalid(f"--partition {pair!r} has no value: if it is the empty text, write --partition '{key}=\"\"'")
        partition[key] = "" if value == '""' else value
    return partition
