"""What every reader of a change feed makes of it: rows, and which of them are deletes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.model.errors import Invalid

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

OR_DROPPED = "or name a column that the source has dropped in the feed's `without`"
"""What to do about an update that lacks a column: its text cannot say whether the column was dropped, or not sent."""

ROWS_SHOWN_MAX = 5
REASONS_MAX = 20


@dataclass(frozen=True)
class FeedColumns:
    """The columns of a table, by their names in its feed.

    Attributes:
        declared: the table's schema; None: it has none
        order: its sort columns: of those that the rows lack, fields of the event are added to them
        needed: its key and partition columns, and which of them may be null
        without: columns of the feed that are left out
        placed: its partition columns"""

    declared: pa.Schema | None
    order: Sequence[str]
    needed: Mapping[str, bool]
    without: Collection[str] = ()
    placed: Collection[str] = ()

    def left(self, rows: pa.Table) -> pa.Table:
        """The rows without the columns that are left out."""
        return rows.drop_columns([name for name in self.without if name in rows.column_names])


@dataclass(frozen=True)
class ChangeBatch:
    """Changes of one file or table, in the order in which they happened, as far as their place tells.

    Attributes:
        source_name: for messages
        rows: the row after a change; of a delete the row before it, of which only key, partition and sort columns need
            a value
        deletes: bool (rows,)
        places: int64 (rows,): the change's number in the source, from 0. A change that is a delete of one key or
            partition and an upsert of another has two rows, the delete first"""

    source_name: str
    rows: pa.Table
    deletes: Bools
    places: Int64s


class ChangesRefused(Invalid):
    """Changes of a source that cannot be applied, each by itself: without them the source may be read again.

    Attributes:
        rows: by the number of a change, from 0, why"""

    def __init__(self, reasons: Sequence[str], rows: Mapping[int, Sequence[str]]) -> None:
        super().__init__(*reasons)
        self.rows = rows


class Refusals:
    """Changes that cannot be applied, with reasons. Nothing of a source is appended if it has one, unless refused
    changes are quarantined (`quarantine.py`)."""

    def __init__(self, source_name: str) -> None:
        self.source_name = source_name
        self._reasons: list[str] = []
        self._rows: dict[int, list[str]] = {}

    def add(self, rows: Bools | Sequence[int], reason: str) -> None:
        """`rows`: their numbers from 0, or a mask of all rows."""
        numbers = np.flatnonzero(rows) if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ else np.asarray(rows)
        if len(numbers) == 0:
            return
        for number in numbers.tolist():
            self._rows.setdefault(number, []).append(reason)
        shown = ", ".join(f"{number + 1:,}" for number in numbers[:ROWS_SHOWN_MAX].tolist())
        more = f" and {len(numbers) - ROWS_SHOWN_MAX:,} more" if len(numbers) > ROWS_SHOWN_MAX else ""
        self._reasons.append(f"{self.source_name}, row {shown}{more}: {reason}")

    def raise_if_any(self) -> None:
        """Raises `ChangesRefused` with every reason."""
        more = len(self._reasons) - REASONS_MAX
        told = [*self._reasons[:REASONS_MAX], *([f"and {more:,} more such reasons"] if more > 0 else ())]
        if told:
            raise ChangesRefused(told, self._rows)


def mask_of(values: pa.Array | pa.ChunkedArray) -> Bools:
    """bool (rows,): null is False."""
    return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
