"""Entries of logs, kept between readings: entries never change, so only those that a log has grown by are read."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from compactor.log.durable_log import DurableLog, Entry

LOGS_KEPT = 32
ENTRIES_MAX = 400
"""Of a log, the latest: a page of them can be read, and a server that runs for long does not grow."""

ActionT = TypeVar("ActionT")


class KeptEntries:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Entry[Any], ...]] = {}

    def of(self, log: DurableLog[Any, ActionT]) -> tuple[Entry[ActionT], ...]:
        """The latest entries, the oldest of them first. Raises the log's errors."""
        with self._lock:
            known = self._kept.pop(log.folder, ())
        if known:
            found = (*known, *log.entries(known[-1].number))
        else:
            last = log.load().entry_number
            found = tuple(log.entries_between(max(last - ENTRIES_MAX + 1, 1), last))
        with self._lock:
            self._kept[log.folder] = found[-ENTRIES_MAX:]
            while len(self._kept) > LOGS_KEPT:
                self._kept.pop(next(iter(self._kept)))
        return found[-ENTRIES_MAX:]
