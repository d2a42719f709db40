"""Rounds of a published table made by hand, for tests of publishers: no data file is written, since none may be opened.

Deletion vectors are real: a publisher reads those.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from compactor.catalog.keys import OpenFilePath, StreamFolder, partition_hash
from compactor.catalog.snapshot import CompactedStream
from compactor.catalog.stream import PartitionStream
from compactor.index.deletion_vectors import read_dead_rows, write_dead_rows
from compactor.index.keys import DeletionVectorPath
from compactor.model.clock import Clock
from compactor.model.files import ColumnStats, DataFile, DeletionVector
from compactor.model.names import ContentType
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from tests.builders import TABLE_ID
from tests.crashes import HurriedClock
from tests.fakes.memory_store import MemoryStore
from tests.rounds import a_round, commit_now

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "at": pa.timestamp("us", "UTC")})
ROWS = 100
"""Of each file."""


class OpenLake:
    """A published table whose rounds a test writes."""

    def __init__(self, folder: Path, store: ObjectStore | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or HurriedClock()
        self.store = store or MemoryStore(self.clock, StoreLocation(f"file://{folder}"))

    def stream(self, name: str, store: ObjectStore | None = None) -> PartitionStream:
        folder = StreamFolder(TABLE_ID, (("region", name),))
        return PartitionStream.open(store or self.store, folder, self.clock)

    def commit(
        self,
        name: str,
        added: int = 0,
        removed: Sequence[int] = (),
        dead: Mapping[int, Sequence[int]] | None = None,
        schema: pa.Schema = SCHEMA,
    ) -> int:
        """One round: so many new files, files removed by number, dead rows by file number. Returns its entry."""
        stream = self.stream(name)
        compacted = stream.load().state.compacted
        first = 1 if compacted is None else compacted.next_file_number
        commit_id = self.clock.new_id()
        files = [a_file(stream, commit_id, number) for number in range(first, first + added)]
        action = a_round(stream, commit_id, files, removed, schema)
        vectors = [self._vector(stream, commit_id, number, rows) for number, rows in (dead or {}).items()]
        commit_now(stream, action.model_copy(update={"deletion_vectors": tuple(vectors)}))
        return self.stream(name).load().entry_number

    def random_round(self, name: str, chance: random.Random) -> int:
        """Files come, go, and lose rows."""
        compacted = self.stream(name).load().state.compacted
        live = sorted(compacted.files) if compacted is not None else []
        removed = [number for number in live if chance.random() < 0.3]
        dead = {
            number: sorted({*dead_rows(self.store.location, compacted, number), *chance.sample(range(ROWS), 5)})
            for number in live
            if compacted is not None and number not in removed and chance.random() < 0.4
        }
        return self.commit(name, chance.randint(0, 3), removed, dead)

    def _vector(self, stream: PartitionStream, commit_id: str, number: int, rows: Sequence[int]) -> DeletionVector:
        path = DeletionVectorPath(stream.folder, commit_id, number, "ab")
        return write_dead_rows(self.store.location, path, np.array(rows, np.int64))


def dead_rows(location: StoreLocation, compacted: CompactedStream, number: int) -> list[int]:
    vectors = [vector for vector in compacted.deletion_vectors if vector.file_number == number]
    return [row for vector in vectors for row in read_dead_rows(location, vector).tolist()]


def a_file(stream: PartitionStream, commit_id: str, number: int) -> DataFile:
    path = OpenFilePath(stream.table_id, partition_hash(stream.partition), commit_id, number, "ab")
    return DataFile(
        file_number=number,
        path=path.key,
        content_type=ContentType.PARQUET,
        rows=ROWS,
        size_bytes=1_000 + number,
        columns={
            "id": ColumnStats(null_count=0, min_value=number * ROWS, max_value=(number + 1) * ROWS - 1),
            "at": ColumnStats(
                null_count=0, min_value="2026-11-23T00:00:00.000001Z", max_value="2026-11-23T10:00:00.000001Z"
            ),
        },
    )
