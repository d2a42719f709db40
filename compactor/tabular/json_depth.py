"""How deep the objects and arrays of JSON lines are nested.

PyArrow's parser calls itself for each level, and a line with very many would end the process.
"""

import numpy as np
import numpy.typing as npt

from compactor.model.errors import Invalid

DEPTH_MAX = 100
"""Most objects and arrays inside each other, the line's own object included. Columns that are appended may be less deep
(`schemas/nesting.py`)."""

_QUOTE, _BACKSLASH, _NEWLINE = b'"\\\n'
_OPENS, _CLOSES = b"{}"
_BRACE_OF_BRACKET = 0x20
"""The bit in which [ and ] differ from { and }."""


def refuse_deep_lines(uri: str, lines: bytes) -> None:
    """Raises `Invalid` if a line is nested deeper than DEPTH_MAX. What is between quotes does not count."""
    text = np.frombuffer(lines, np.uint8)
    braces = text | _BRACE_OF_BRACKET
    opening = np.flatnonzero(braces == _OPENS)
    starts = np.concatenate(([0], np.flatnonzero(text == _NEWLINE) + 1))
    if _are_far_apart(opening, starts, len(lines)):
        return
    brackets = np.flatnonzero((braces == _OPENS) | (braces == _CLOSES))
    steps = np.where(braces[brackets] == _OPENS, 1, -1)
    line_of = np.searchsorted(starts, brackets, side="right") - 1
    quotes = _quotes(text)
    quotes_before = np.searchsorted(quotes, brackets) - np.searchsorted(quotes, starts)[line_of]
    steps[quotes_before % 2 == 1] = 0
    depths = np.concatenate(([0], np.cumsum(steps)))
    depths_before_line = depths[np.searchsorted(brackets, starts)]
    deep = np.flatnonzero(depths[1:] - depths_before_line[line_of] > DEPTH_MAX)
    if len(deep):
        begin = lines[starts[line_of[deep[0]]] :][:40].decode(errors="replace")
        raise Invalid(
            f"{uri} has a line that is nested deeper than {DEPTH_MAX} objects and arrays, which begins with {begin!r}: "
            "store what is inside as text, or flatten it"
        )


def _are_far_apart(opening: npt.NDArray[np.intp], starts: npt.NDArray[np.intp], size_bytes: int) -> bool:
    """Whether no line can have more than DEPTH_MAX opening brackets: so many are longer than the longest line."""
    if len(opening) <= DEPTH_MAX:
        return True
    longest_line = np.diff(starts, append=size_bytes).max()
    return bool((opening[DEPTH_MAX:] - opening[:-DEPTH_MAX]).min() >= longest_line)


def _quotes(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Where texts begin and end: not at a quote after an odd number of backslashes."""
    quotes = np.flatnonzero(text == _QUOTE)
    escaped = np.zeros(len(quotes), np.bool_)
    after_backslash = np.flatnonzero((quotes > 0) & (text[quotes - 1] == _BACKSLASH))
    for number in after_backslash.tolist():
        place = end = int(quotes[number])
        while place > 0 and text[place - 1] == _BACKSLASH:
            place -= 1
        escaped[number] = (end - place) % 2 == 1
    return quotes[~escaped]
