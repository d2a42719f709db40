"""Collects small deltas and appends many at once, for programs that write thousands of them.

    append --> collected --(enough deltas or bytes, or old enough)--> one `Table.append_many` --> each delta's answer

One thread appends, so the deltas of one writer keep their order. Meanwhile further deltas are collected; when the limit
is reached, `append` blocks. A delta is durable when its result is available, not before: a program that is killed loses
the deltas without a result, and must append them again with the same delta ids.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from compactor.model.clock import Clock
from compactor.model.errors import Invalid, refuse_if
from compactor.model.names import Operation, PartitionValues

if TYPE_CHECKING:
    import pyarrow as pa

    from compactor.catalog.delta_files import DeltaSource
    from compactor.catalog.table_appends import Delta
    from compactor.catalog.tables import Table

SECONDS = 1.0
DELTAS_MAX = 1_000
SIZE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class PendingDelta:
    """A delta that a writer has collected. Its id is known at once, so that the caller can repeat the append."""

    delta_id: str
    _answer: Future[Delta] = field(repr=False)

    def result(self, timeout_seconds: float | None = None) -> Delta:
        """Waits until the delta is durable, and returns it. Raises the errors of `Table.append`, and TimeoutError."""
        return self._answer.result(timeout_seconds)

    @property
    def is_done(self) -> bool:
        return self._answer.done()


@dataclass(frozen=True)
class WriterLimits:
    """A writer appends the collected deltas when the first of these limits is reached: seconds, deltas or bytes."""

    seconds: float = SECONDS
    deltas: int = DELTAS_MAX
    size_bytes: int = SIZE_BYTES_MAX

    def __post_init__(self) -> None:
        limits = (("seconds", self.seconds), ("deltas", self.deltas), ("size_bytes", self.size_bytes))
        refuse_if([f"{name} is {value}: a writer collects for more than 0" for name, value in limits if value <= 0])


@dataclass(frozen=True)
class _Collected:
    partition: PartitionValues
    source: pa.Table | Sequence[str]
    operation: str
    delta_id: str
    answer: Future[Delta] = field(default_factory=Future)

    @property
    def size_bytes(self) -> int:
        import pyarrow as pa

        return int(self.source.nbytes) if isinstance(self.source, pa.Table) else 0


class DeltaWriter:
    """Collects deltas for one table. Safe to share between threads. As a context manager it closes itself."""

    def __init__(self, table: Table, limits: WriterLimits, clock: Clock) -> None:
        self._table = table
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._collected: list[_Collected] = []
        self._bytes = 0
        self._appending = 0
        self._flushes = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"deltas of {table.table_id}", daemon=True)
        self._thread.start()

    def append(
        self,
        partition: PartitionValues,
        source: DeltaSource,
        operation: str = Operation.UPSERT,
        delta_id: str | None = None,
    ) -> PendingDelta:
        """Collects a delta. A record batch reader is read at once. Raises `Invalid` if no table accepts the delta."""
        import pyarrow as pa

        from compactor.catalog.delta_files import open_source

        given = open_source(source)
        if isinstance(given, pa.RecordBatchReader):
            given = given.read_all()
        each = _Collected(
            dict(partition),
            given if isinstance(given, pa.Table) else [str(uri) for uri in given],
            operation,
            self._clock.new_id() if delta_id is None else delta_id,
        )
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._is_full and self._appending))
            if self._closed:
                raise Invalid("the writer is closed: open another one")
            self._collected.append(each)
            self._bytes += each.size_bytes
            self._changed.notify_all()
        return PendingDelta(each.delta_id, each.answer)

    def flush(self) -> None:
        """Appends the collected deltas; then all have results. Raises nothing: `PendingDelta.result` does."""
        with self._changed:
            self._flushes = bool(self._collected)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._flushes and not self._appending)

    def close(self) -> None:
        """Appends the collected deltas and accepts no more. Raises the first error of the deltas it appended."""
        with self._changed:
            left = [each.answer for each in self._collected]
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        for answer in left:
            answer.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close()

    # -- the thread

    @property
    def _is_full(self) -> bool:
        return len(self._collected) >= self._limits.deltas or self._bytes >= self._limits.size_bytes

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                self._append(batch)
            finally:
                with self._changed:
                    self._appending = 0
                    self._changed.notify_all()

    def _next_batch(self) -> list[_Collected] | None:
        """Waits until a limit is reached. None: the writer is closed and no delta is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._collected or self._closed)
            self._changed.wait_for(lambda: self._is_full or self._flushes or self._closed, self._limits.seconds)
            if not self._collected:
                return None
            batch = self._collected
            self._collected, self._bytes, self._appending, self._flushes = [], 0, len(batch), False
            self._changed.notify_all()
            return batch

    def _append(self, batch: Sequence[_Collected]) -> None:
        try:
            deltas = self._append_many(batch)
        except Invalid as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            # One delta is invalid. The others are appended one by one.
            middle = len(batch) // 2
            self._append(batch[:middle])
            self._append(batch[middle:])
        except Exception as error:  # noqa: BLE001  (the error becomes the deltas' result, the thread continues)
            for each in batch:
                each.answer.set_exception(error)
        else:
            for each, delta in zip(batch, deltas, strict=True):
                each.answer.set_result(delta)

    def _append_many(self, batch: Sequence[_Collected]) -> list[Delta]:
        deltas = [(each.partition, each.source, each.operation) for each in batch]
        return self._table.append_many(deltas, [each.delta_id for each in batch])
