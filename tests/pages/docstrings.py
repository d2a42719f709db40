"""Docstrings and signatures as Markdown: what the pages say of events and of the Python API."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum

WIDTH = 88
"""A longer signature has a line a parameter."""

_SECTIONS = ("Args:", "Attributes:")
_ENTRY = re.compile(r" {4}(\w[\w, ]*?): (\S.*)")


def paragraph(text: str) -> str:
    """On one line. What stands in angle brackets is text and no HTML, but in code nothing needs an escape."""
    pieces = " ".join(text.split()).split("`")
    return "`".join(each if number % 2 else each.replace("<", "&lt;") for number, each in enumerate(pieces))


def markdown(docstring: str) -> Iterator[str]:
    """Paragraphs, a blank line before each; a section that explains names becomes a list of them."""
    for each in inspect.cleandoc(docstring).split("\n\n"):
        lines = each.splitlines()
        if lines:
            yield from ("", *_entries(lines[1:])) if lines[0] in _SECTIONS else ("", paragraph(each))


def _entries(lines: list[str]) -> Iterator[str]:
    """A name begins an entry; other lines go on with the last one."""
    entries: list[tuple[str, str]] = []
    for line in lines:
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            entries.append((entry[1], entry[2]))
        else:
            names, text = entries.pop()
            entries.append((names, f"{text} {line.strip()}"))
    for names, text in entries:
        yield f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {paragraph(text)}"


def signature(name: str, function: Callable[..., object]) -> Iterator[str]:
    """As Python: on one line, or with a line a parameter."""
    found = inspect.signature(function)
    parameters = [each for each in found.parameters.values() if each.name != "self"]
    written = [_parameter(each) for each in parameters]
    first_keyword = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if first_keyword is not None:
        written.insert(first_keyword, "*")
    returns = f" -> {returned(function)}"
    line = f"{name}({', '.join(written)}){returns}"
    yield from (line,) if len(line) <= WIDTH else (f"{name}(", *(f"    {each}," for each in written), f"){returns}")


def _parameter(of: inspect.Parameter) -> str:
    text = f"{of.name}: {type_name(of.annotation)}"
    if of.default is of.empty:
        return text
    return f"{text} = {(of.default.value if isinstance(of.default, Enum) else of.default)!r}"


def returned(function: Callable[..., object] | None) -> str:
    return type_name(inspect.signature(function).return_annotation) if function is not None else ""


def type_name(annotation: object) -> str:
    """Without the modules of its names, but for Arrow's, which has tables too."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("'", "")
    return re.sub(r"\b(?!pa\.|pc\.)(?:\w+\.)+(\w+)", r"\1", text)
