"""Ctrl-C waits until something is done that it would leave half done."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class DeferredInterrupts:
    """From a `begin` to its `end`, Ctrl-C is only noted; the last `end` restores the signal's handler, whatever was
    installed meanwhile, and calls it.

    Only the main thread is interrupted: in others nothing is changed. Nor is it where the program around Python has a
    handler of its own, which Python could not restore (`signal.getsignal` returns None).
    """

    def __init__(self) -> None:
        self._depth = 0
        self._handler: _Handler = None
        self._interrupted = False

    def begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            if not self._depth:
                self._handler = signal.getsignal(signal.SIGINT)
                if self._handler is not None:
                    signal.signal(signal.SIGINT, self._note)
            self._depth += 1

    def end(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth -= 1
            if not self._depth and self._handler is not None:
                signal.signal(signal.SIGINT, self._handler)
                if self._interrupted:
                    self._interrupted = False
                    signal.raise_signal(signal.SIGINT)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Ctrl-C takes effect after the block."""
    interrupts = DeferredInterrupts()
    interrupts.begin()
    try:
        yield
    finally:
        interrupts.end()
