"""The picture of the demo: runs `lithify demo`, and draws what it prints as a terminal.

python -m tests.pages.demo_picture          runs it, in about a minute
python -m tests.pages.demo_picture FILE     draws what a run has printed
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.text import Text
from rich.theme import Theme

from tests.pages.sources import DOCS

PICTURE = DOCS / "pictures" / "demo.svg"
COLUMNS = 124
FIRST_LINES, LAST_EVENTS = 12, 4
"""Of the lines with a time: those that are shown before and after the gap."""

_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>make demo</title>
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own, without the font that it fetches from another site."""


class _Colours(RegexHighlighter):
    base_style = "demo."
    highlights = [
        r"^(?P<time> *\d+\.\d s)",
        r"(?P<event>\b(?:job_run|session)\.\w+)",
        r"^(?P<right>right)\b",
        r"^(?P<head>(?:partition|Order ID) .*)$",
    ]


_THEME = Theme({"demo.time": "bright_black", "demo.event": "cyan", "demo.right": "bold green", "demo.head": "bold"})


def shown(lines: Sequence[str]) -> Iterator[str]:
    """What fits a picture: the beginning, the last events, the tables and the verdict."""
    timed = [number for number, line in enumerate(lines) if line[:8].strip().endswith(" s")]
    end = next(number for number, line in enumerate(lines) if "in all" in line)
    yield from lines[:FIRST_LINES]
    yield "  ..."
    yield from lines[timed[-LAST_EVENTS] : end]


def main(given: Sequence[str]) -> None:
    if given:
        printed = Path(given[0]).read_text()
    else:
        with TemporaryDirectory() as folder:
            command = [str(Path(sys.executable).with_name("lithify")), "demo"]
            printed = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    console = Console(record=True, width=COLUMNS, file=StringIO(), theme=_THEME, highlight=False)
    colours = _Colours()
    console.print("[bold]$[/] make demo")
    for line in shown(printed.splitlines()):
        console.print(colours(Text(line[:COLUMNS])))
    svg = console.export_svg(title="make demo", code_format=_SVG, unique_id="demo")
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
