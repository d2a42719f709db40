"""What keepers have written of the lag of a day."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow.parquet as pq

from compactor.storage.object_store import ObjectStore
from dispatcher.records.keys import LagDay, LagMinutesOfDay
from dispatcher.records.lag_samples import LagSample


def read_samples(store: ObjectStore, day: str) -> Iterator[LagSample]:
    """All of them, in the order of their times."""
    whole = store.read(LagDay(day).key)
    keys = [entry.key for entry in store.list(f"{LagMinutesOfDay(day).key}/")]
    for body in [whole] if whole is not None else map(store.read, keys):
        assert body is not None
        yield from (LagSample(**row) for row in pq.read_table(io.BytesIO(body)).to_pylist())
