"""The pages, README and those of `docs/`: their blocks of code, and the places of what is generated.

A block that a test runs stands below `<!-- tested: NAME -->`; one that needs an account says so in the same place. What
`make generate` writes stands between two comments:

<!-- generated: NAME -->
| the table |
<!-- end of NAME -->
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
GENERATE = "make generate"

_BLOCK = re.compile(r"<!-- tested: (?P<name>\w+) -->\n```\w+\n(?P<text>.*?)^```$", re.S | re.M)


def pages() -> list[Path]:
    return [README, *sorted(DOCS.rglob("*.md"))]


@cache
def blocks() -> Mapping[str, str]:
    """The text of each block that a test runs, by its name. Raises `ValueError` for a name that two blocks have."""
    found: dict[str, str] = {}
    for page in pages():
        for each in _BLOCK.finditer(page.read_text()):
            if each["name"] in found:
                raise ValueError(f"{page.name} has a second block {each['name']!r}")
            found[each["name"]] = each["text"]
    return found


def section(page: Path, title: str) -> str:
    """The text below a heading, up to the next one. Raises `ValueError` if the page has no such heading."""
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", page.read_text(), re.S | re.M)
    if found is None:
        raise ValueError(f"{page.name} has no section {title!r}")
    return found[1]


def generated_names() -> Iterator[str]:
    """The names of all places, on any page."""
    for page in pages():
        yield from re.findall(r"^<!-- generated: (\w+) -->$", page.read_text(), re.M)


def generated(name: str) -> list[str]:
    """The lines that stand in a place. Raises `ValueError` if no page has it."""
    return _place(name)[1][1].splitlines()


def write(name: str, lines: Iterable[str]) -> None:
    """Replaces the lines of a place."""
    page, place = _place(name)
    text = page.read_text()
    page.write_text(text[: place.start(1)] + "".join(f"{line}\n" for line in lines) + text[place.end(1) :])


def _place(name: str) -> tuple[Path, re.Match[str]]:
    for page in pages():
        found = re.search(f"<!-- generated: {name} -->\n(.*?)<!-- end of {name} -->\n", page.read_text(), re.S)
        if found is not None:
            return page, found
    raise ValueError(f"no page has a place for {name!r}")
