"""Values that describe a round: sort keys, high watermark, row counts, seconds and memory per step."""

from compactor.model.document import Document
from compactor.model.names import SortOrder


class SortKey(Document):
    """One sort key column. Its order decides which value wins: the greatest (ascending) or the smallest."""

    column: str
    order: SortOrder = SortOrder.ASCENDING


class Watermark(Document):
    """How far a source stream has been compacted: all files up to and including this one, by (position, file number).

    Attributes:
        file_number: None: every file of the delta at `position`"""

    position: int
    file_number: int | None = None

    @property
    def whole_position(self) -> int:
        """Deltas up to and including this position are compacted with all of their files."""
        return self.position if self.file_number is None else self.position - 1

    def covers(self, position: int, file_number: int) -> bool:
        """Whether that delta file is already in the compacted stream."""
        if position != self.position:
            return position < self.position
        return self.file_number is None or file_number <= self.file_number


class RowTotals(Document):
    """Row counts over the rounds of sessions. The fields are those of `RowCounts`."""

    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int


class RowCounts(Document):
    """The row counts of a round, which must reconcile: rows_in = rows_out + rows_deduplicated + rows_deleted.

    Attributes:
        rows_before: live compacted rows before the round
        rows_in: rows_before, and every row of the round's delta files
        rows_out: live compacted rows after the round
        rows_deduplicated: rows that lost to another row of their key
        rows_deleted: delete rows that won, each of which removes its key
        rows_carried: of rows_out: rows in compacted files that were carried over by reference
        tombstones: keys that the index remembers as deleted after the round"""

    rows_before: int
    rows_in: int
    rows_out: int
    rows_deduplicated: int
    rows_deleted: int
    rows_carried: int
    tombstones: int


class StepFigures(Document):
    """Time and memory of one step of a round. `peak_memory_bytes` is that of its largest Python worker.

    Attributes:
        cores: the cores that its tasks shared; None: not recorded"""

    seconds: float
    tasks: int
    peak_memory_bytes: int
    cores: int | None = None
