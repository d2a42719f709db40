"""The lakes that a dispatcher works on, each opened once: its clients, and what was read of its tables' logs, are kept.

A log's entries never change, so what is kept may be incomplete and is never wrong: each use reads what was added.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from compactor.catalog.tables import DeltaCatalog
from compactor.storage.location import StoreLocation

LAKES_KEPT = 16
"""Each keeps a bounded part of what was read, so that memory does not grow with the job runs."""


class OpenLakes:
    """Threads may share it."""

    def __init__(self, open_lake: Callable[[StoreLocation], DeltaCatalog]) -> None:
        self._open_lake = open_lake
        self._lock = threading.Lock()
        self._lakes: OrderedDict[StoreLocation, DeltaCatalog] = OrderedDict()

    def at(self, location: StoreLocation) -> DeltaCatalog:
        with self._lock:
            lake = self._lakes.pop(location, None)
            if lake is None:
                lake = self._open_lake(location)
            self._lakes[location] = lake
            if len(self._lakes) > LAKES_KEPT:
                self._lakes.popitem(last=False)
            return lake
