"""A round's source files as arrays for dedupe: numbers, not names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from compactor.index.deletion_vectors import read_dead_rows
from compactor.kernels.live_rows import LiveFiles, LiveRows
from compactor.kernels.survivors import DELETE, DELETE_WITHOUT_SORT_VALUES, UPSERT
from compactor.model.files import DeletionVector
from compactor.model.names import Operation
from compactor.planning.round_plan import DeltaSource, RoundPlan
from compactor.steps.parts import Parts
from compactor.storage.location import StoreLocation

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sources:
    """By ordinal: first the compacted files, then the delta files.

    Attributes:
        rows: int64 (sources,): of each file, dead ones included
        file_numbers: int32 (compacted,)
        vectors: the deletion vectors of compacted files that have one, by ordinal
        operations: uint8 (deltas,): UPSERT, DELETE or DELETE_WITHOUT_SORT_VALUES
        positions: int64 (deltas,): stream positions
        parts: of all of them"""

    location: StoreLocation
    rows: Int64s
    file_numbers: Int32s
    vectors: Mapping[int, DeletionVector]
    operations: npt.NDArray[np.uint8]
    positions: Int64s
    parts: Parts

    @classmethod
    def of(cls, plan: RoundPlan) -> Self:
        return cls(
            location=plan.location,
            rows=np.array([file.rows for file in plan.sources], np.int64),
            file_numbers=np.array([file.file_number for file in plan.compacted], np.int32),
            vectors={file.ordinal: file.vector for file in plan.compacted if file.vector is not None},
            operations=np.array([_operation(file) for file in plan.deltas], np.uint8),
            positions=np.array([file.position for file in plan.deltas], np.int64),
            parts=Parts.of_round(plan),
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def compacted_count(self) -> int:
        return len(self.file_numbers)

    def live_files(self) -> LiveFiles:
        """The compacted files."""
        return LiveFiles.of(self.file_numbers)

    def live_rows(self, died: Mapping[int, Int64s]) -> LiveRows:
        """The live rows of the stream before the round, without those that `died` (by ordinal)."""
        dead = {ordinal: _dead_rows(self.location, vector) for ordinal, vector in self.vectors.items()}
        for ordinal, rows in died.items():
            dead[ordinal] = np.concatenate([dead.get(ordinal, np.empty(0, np.int64)), rows])
        return LiveRows.of(self.live_files(), self.rows, dead)


def _operation(file: DeltaSource) -> int:
    if file.operation is Operation.UPSERT:
        return UPSERT
    return DELETE if file.sorts else DELETE_WITHOUT_SORT_VALUES


@lru_cache(maxsize=128)
def _dead_rows(location: StoreLocation, vector: DeletionVector) -> Int64s:
    """Cached because vectors never change and every bucket needs them."""
    return read_dead_rows(location, vector)
