"""The entry of the `lithify` command: Ctrl-C is one sentence even while everything else is still being imported."""

from __future__ import annotations

import sys

from compactor.model.exit_codes import EXIT_INTERRUPTED


def main() -> None:
    try:
        from dispatcher.main import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("lithify: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
