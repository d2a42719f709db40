"""README's tables that come from values. Each stands between two comments, and `make generate` writes it anew:

<!-- generated: NAME -->
| the table |
<!-- end of NAME -->
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
GENERATE = "make generate"


def table_in(page: str, name: str) -> list[str]:
    """The lines of a generated table. Raises `ValueError` if the page has no place for it."""
    return _place(page, name)[1].splitlines()


def with_table(page: str, name: str, lines: Iterable[str]) -> str:
    """The page, with the table replaced by these lines."""
    place = _place(page, name)
    return page[: place.start(1)] + "".join(f"{line}\n" for line in lines) + page[place.end(1) :]


def _place(page: str, name: str) -> re.Match[str]:
    found = re.search(f"<!-- generated: {name} -->\n(.*?)<!-- end of {name} -->\n", page, re.S)
    if found is None:
        raise ValueError(f"there is no place for table {name!r}")
    return found
