"""The loop that does some work again and again in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class BackgroundLoop:
    """Calls `work` after each interval, in a thread of its own, until it ends. A context manager.

    An error of `work` ends the loop, and is raised where the loop is ended.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        interval_seconds: float,
        *,
        at_once: bool = False,
        ends: threading.Event | None = None,
    ) -> None:
        """
        name              of the thread
        interval_seconds  between the end of one call and the beginning of the next
        at_once           whether the first call comes before the first interval
        ends              set when several loops are to end together; None: the loop has an event of its own
        """
        self._work = work
        self._interval_seconds = interval_seconds
        self._at_once = at_once
        self._ends = threading.Event() if ends is None else ends
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def end(self) -> None:
        """Returns when the last call of `work` has returned. May be repeated."""
        self.__exit__(None, None, None)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            if self._at_once and not self._ends.is_set():
                self._work()
            while not self._ends.wait(self._interval_seconds):
                self._work()
        except BaseException as error:  # noqa: BLE001  (it is raised where the loop is ended)
            self._error = error
