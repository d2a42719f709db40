"""The entry of the `lithify` command, whose signals are handled before everything else is imported: Ctrl-C is one
sentence, and a service that is asked to end does so in order, with exit code 0. `lithify --version` loads no more."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from typing import TYPE_CHECKING

from compactor.model.errors import EXIT_INTERRUPTED
from dispatcher.stops import Stops

if TYPE_CHECKING:
    from dispatcher.assembly import DispatcherSettings


def main(settings: DispatcherSettings | None = None) -> None:
    """`settings`: of a dispatcher, where its options do not say otherwise."""
    stops = Stops()
    if sys.argv[1:2] == ["dispatch"]:  # every other verb ends at once, as by default
        stops.set_by(signal.SIGTERM)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores it, as `nohup` may
        signal.signal(signal.SIGINT, _interrupt)
    gc.disable()  # what modules make stays: the verb's `_command` turns it on
    try:
        if sys.argv[1:] in (["--version"], ["-V"]) and _said_version():
            return
        from dispatcher.main import main as command

        command(stops, settings)
    except KeyboardInterrupt:
        sys.stderr.write("lithify: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)


def _said_version() -> bool:
    """False: standard output cannot be written. The command itself explains why."""
    from compactor.model.machine import this_release

    try:
        print(f"lithify {this_release()}", flush=True)  # noqa: T201  (which allows that it is closed: `lithify ... >&-`)
    except OSError:
        return False
    return True


def _interrupt(*_: object) -> None:
    sys.unraisablehook = _after_interrupt
    raise KeyboardInterrupt


def _after_interrupt(ignored: sys.UnraisableHookArgs) -> None:
    """Python prints the errors of destructors. An object whose constructor was interrupted has no other way to end, so
    these are not shown. An interrupt of a destructor itself would be lost: it is sent again."""
    if isinstance(ignored.exc_value, KeyboardInterrupt):
        # later, because an error of this function would be lost too
        threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()


if __name__ == "__main__":
    main()
