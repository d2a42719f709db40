"""The lakes of a dispatcher. Each is opened once; its clients and the entries read from its tables' logs are cached.

Entries never change, so a cached log may be incomplete but is never wrong: each use reads the entries that were added.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from compactor.catalog.tables import DeltaCatalog
from compactor.storage.location import StoreLocation

LAKES_KEPT = 16
"""Each caches a bounded part of its logs, so memory does not grow with the number of job runs."""


class OpenLakes:
    """Thread-safe."""

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
