"""The entry of the `lithify` command: Ctrl-C is one sentence even while everything else is still being imported."""

from __future__ import annotations

import signal
import sys
import threading

from compactor.model.exit_codes import EXIT_INTERRUPTED


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores it, as `nohup` may
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from dispatcher.main import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("lithify: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)


def _interrupt(*_: object) -> None:
    sys.unraisablehook = _after_interrupt
    raise KeyboardInterrupt


def _after_interrupt(ignored: sys.UnraisableHookArgs) -> None:
    """Python prints the errors of destructors. An object whose constructor was interrupted has no other way to end, so
    these are not shown. An interrupt of a destructor itself would be lost: it is sent again."""
    if isinstance(ignored.exc_value, KeyboardInterrupt):
        # later, because an error of this function would be lost too
        threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
