"""For the pages of the Python API: docstrings explain parameters in two columns, which become lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import griffe

_ENTRY = re.compile(r"(\w[\w, =()]*?) {2,}(\S.*)")
_NAMES = re.compile(r"\w+(?:, \w+)+,?")


class DocstringLists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401  (griffe's own signature)
        if obj.docstring is not None:
            paragraphs = obj.docstring.value.split("\n\n")
            obj.docstring.value = "\n\n".join("\n".join(_listed(each.splitlines())) for each in paragraphs)


def _listed(lines: Sequence[str]) -> Iterator[str]:
    """The lines of a paragraph; as a list where the first one is a name, two spaces, and what it means."""
    if not lines or not _ENTRY.fullmatch(lines[0]):
        yield from lines
        return
    for line in lines:
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            yield f"- `{entry[1]}`: {entry[2]}"
        elif _NAMES.fullmatch(line):
            yield f"- `{line.rstrip(',')}`:"
        else:
            yield f"    {line.strip()}"
