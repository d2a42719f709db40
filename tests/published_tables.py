"""Lakes of tables that are published as Apache Iceberg, without a compaction: rounds are made by hand."""

from __future__ import annotations

from compactor.catalog.keys import StreamFolder
from compactor.catalog.partition_split import NO_PARTITIONS
from compactor.catalog.properties import GRACE_SECONDS
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import DeltaCatalog
from compactor.model.clock import Clock
from compactor.publishing.iceberg import IcebergPublisher
from compactor.storage.location import StoreLocation
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.open_rounds import SCHEMA, a_file
from tests.rounds import a_round, commit_now


class PublishedTables:
    """A lake in memory, which counts the requests to it. Tables have one partition."""

    def __init__(self, location: StoreLocation | str, clock: Clock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.location = StoreLocation(location) if isinstance(location, str) else location
        self.store = FaultyStore(MemoryStore(self.clock, self.location))
        self.lake = DeltaCatalog(self.store, self.clock)

    def create(self, table_id: str, publish: str | None = "iceberg", glue_database: str | None = None) -> None:
        given = {"publish": publish, "glue_database": glue_database}
        self.lake.create_table(table_id, properties={name: value for name, value in given.items() if value})

    def set(self, table_id: str, **properties: str | None) -> None:
        self.lake.table(table_id).set_properties(properties)

    def commit(self, table_id: str) -> int:
        """One round with one file, published. Returns the version."""
        stream = PartitionStream.open(self.store, StreamFolder(table_id, ()), self.clock)
        compacted = stream.load().state.compacted
        commit_id = self.clock.new_id()
        file = a_file(stream, commit_id, 1 if compacted is None else compacted.next_file_number)
        commit_now(stream, a_round(stream, commit_id, [file], (), SCHEMA))
        version = (
            IcebergPublisher(self.store, table_id, NO_PARTITIONS, self.clock, GRACE_SECONDS).publish([stream]).version
        )
        assert version is not None
        return version

    def published(self, table_id: str, glue_database: str | None = None) -> None:
        """A table with one published round."""
        self.create(table_id, glue_database=glue_database)
        self.commit(table_id)

    def requests(self) -> int:
        """The requests since the last call."""
        found = len(self.store.requests)
        self.store.requests.clear()
        return found
