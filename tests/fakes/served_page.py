"""The page of `lithify serve` over the state and the lake of a desk, without a server."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from compactor.lake import DeltaCatalog
from compactor.publishing.published_lake import PublishedLake
from compactor.storage.object_store import ObjectStore
from dispatcher.web.app import Doors, create_app
from dispatcher.web.iceberg_rest import IcebergRestCatalog
from dispatcher.web.readings import Readings
from tests.fakes.dispatch_desk import Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

HOST = "127.0.0.1:8642"


class Served:
    """A page over the state of a desk."""

    def __init__(self, folder: Path, token: str | None = None, state: ObjectStore | None = None) -> None:
        """`state`: its store; None: one in memory."""
        self.clock = ManualClock(1_760_000_000_000)
        self.state = FaultyStore(MemoryStore(self.clock) if state is None else state)
        self.desk = Desk(folder, clock=self.clock, state=self.state)
        (folder / "lake").mkdir(exist_ok=True)
        self.lake_store = FaultyStore(self.desk.lake.store)
        lake = DeltaCatalog(self.lake_store, self.clock)
        self.readings = Readings(self.state, lake, self.clock, self.desk.queue)
        catalog = IcebergRestCatalog(PublishedLake(self.desk.lake.store, self.clock))
        self.catalog = catalog
        self.app = create_app(self.readings, catalog, Doors([HOST], token))
        self.client = TestClient(self.app, base_url=f"http://{HOST}")

    def compacted(self, **fields: object) -> str:
        """A job run that has ended."""
        self.desk.append([{"id": 1}])
        job_run_id = self.desk.accept(**fields)
        self.desk.run()
        return job_run_id

    def page(self, path: str) -> str:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return str(answer.text)
