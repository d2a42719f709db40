"""What every reader of a change feed makes of it: rows, and which of them are deletes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.model.errors import Invalid

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

REASONS_SHOWN_MAX = 5


@dataclass(frozen=True)
class ChangeBatch:
    """Changes of one file or table, in the order in which they happened, as far as their place tells.

    source_name  for messages
    rows         the row after a change; of a delete the row before it, of which only key, partition and sort columns
                 need a value
    deletes      bool (rows,)
    places       int64 (rows,): the change's number in the source, from 0. A change that is a delete of one key or
                 partition and an upsert of another has two rows, the delete first
    """

    source_name: str
    rows: pa.Table
    deletes: Bools
    places: Int64s


class Refusals:
    """Changes that cannot be applied, with reasons. Nothing of a source is appended if it has one."""

    def __init__(self, source_name: str) -> None:
        self._source_name = source_name
        self._reasons: list[str] = []
        self._count = 0

    def add(self, rows: Bools | Sequence[int], reason: str) -> None:
        """`rows`: their numbers from 0, or a mask of all rows."""
        numbers = np.flatnonzero(rows) if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ else np.asarray(rows)
        if len(numbers) == 0:
            return
        self._count += len(numbers)
        shown = ", ".join(f"{number + 1:,}" for number in numbers[:REASONS_SHOWN_MAX].tolist())
        more = f" and {len(numbers) - REASONS_SHOWN_MAX:,} more" if len(numbers) > REASONS_SHOWN_MAX else ""
        self._reasons.append(f"{self._source_name}, row {shown}{more}: {reason}")

    def raise_if_any(self) -> None:
        """Raises `Invalid` with every reason."""
        if self._reasons:
            raise Invalid(*self._reasons)


def mask_of(values: pa.Array | pa.ChunkedArray) -> Bools:
    """bool (rows,): null is False."""
    return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
