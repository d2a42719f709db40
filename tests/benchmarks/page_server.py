"""The server whose speed and memory `page_speed` measures: `lithify serve` over a store each of whose requests takes a
while, and counted. It loads what `lithify serve` loads, and no more.

    python -m tests.benchmarks.page_server FOLDER PORT
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from compactor.lake import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.publishing.published_lake import PublishedLake
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation, parse_location
from compactor.storage.object_store import ObjectEntry
from dispatcher.cli.serve import bounded_memory
from dispatcher.web.app import Doors, create_app
from dispatcher.web.iceberg_rest import IcebergRestCatalog
from dispatcher.web.readings import PATIENCE_SECONDS, Readings

DELAY_SECONDS = 0.03


class FarStore(LocalStore):
    """Each request takes its time. `requests`: so far."""

    requests = 0
    lock = threading.Lock()

    def __init__(self, location: StoreLocation) -> None:
        """Its location is as that of a bucket, whose requests are sent side by side."""
        super().__init__(location)
        self.location = parse_location(f"s3://bench/{Path(location.root_uri).name}")

    def read(self, key: str) -> bytes | None:
        self._travel()
        return super().read(key)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        self._travel()
        return super().read_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectEntry]:
        self._travel()
        return super().list(prefix, start_after)

    def list_folders(self, prefix: str, *, even_empty: bool = False) -> Iterator[str]:
        self._travel()
        return super().list_folders(prefix, even_empty=even_empty)

    @classmethod
    def _travel(cls) -> None:
        with cls.lock:
            cls.requests += 1
        time.sleep(DELAY_SECONDS)


def serve(folder: Path, port: int) -> None:
    state, lake = (FarStore(parse_location(str(folder / name))) for name in ("state", "lake"))
    clock = SystemClock()
    readings = Readings(state, DeltaCatalog(lake, clock), clock, patience_seconds=PATIENCE_SECONDS)
    catalog = IcebergRestCatalog(PublishedLake(lake, clock))
    app: FastAPI = create_app(readings, catalog, Doors([f"127.0.0.1:{port}"]))
    app.add_api_route("/static-requests", lambda: FarStore.requests)
    with bounded_memory():
        uvicorn.run(app, port=port, log_level="warning", access_log=False, lifespan="off")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
