"""The checkpoints of a log: stored folds, so that a reader need not start from entry 1. All of it is derived from the
entries: without a valid checkpoint, reading takes longer and gives the same result.

Two forms:

    `WholeCheckpoint`   the fold as one Parquet file; for logs whose fold is small
    `SharedCheckpoint`  a *head* (JSON) that refers to *pieces* (Parquet). A piece never changes, and successive
                        checkpoints share it: a checkpoint writes the rows that are new since the one before

A fold is described by series of rows. One that *grows* (deltas, in position order) gets a piece for its new rows; many
small pieces are merged, so a row is written three times at most. One that is *replaced* (files of a compacted stream)
gets a new piece when its version changes.

Order of writes: new pieces, the head, the hint; then objects are deleted that no kept checkpoint refers to. A crash in
between leaves objects that no head names, which garbage collection finds (`unneeded`). Which checkpoints are kept: the
newest, and earlier ones at distances that double, and some between them, while all together are below
`KEPT_BYTES_RATIO` times the newest, or `KEPT_BYTES_MIN`. So a reader as of an earlier entry replays as many entries as
have been written since, or an eighth of them where these are many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from pydantic import Field, JsonValue

from compactor.log.keys import CheckpointObject, HintObject, WholeCheckpointObject
from compactor.log.row_files import SMALL_ROWS, parse_rows, render_rows
from compactor.log_context import LOG, Logged
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Denied, Outdated, Unavailable
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectEntry, ObjectStore

if TYPE_CHECKING:  # a log without checkpoints does without it
    import pyarrow as pa

WHOLE_FORMAT = 1

CHECKPOINT_ENTRIES = 32
"""Entries between two checkpoints. A reader without a cached state reads at most so many entries after one."""

KEPT_BYTES_RATIO = 6
"""Bytes of all kept checkpoints together, with their pieces, for each byte of the newest one."""

KEPT_BYTES_MIN = 4_000_000
"""Bytes that they may have in any case: those of two weeks of deltas that retire after one have about so many."""

MERGED_ENTRIES = 16 * CHECKPOINT_ENTRIES
"""Small pieces are merged at its multiples: checkpoints there share pieces with later ones, and are kept for long."""

MERGES = ((SMALL_ROWS * 3 // 4, 16, MERGED_ENTRIES), (8 * SMALL_ROWS * 3 // 4, 16, 8 * MERGED_ENTRIES))
"""(rows, pieces, entries): when so many of a series' last pieces have fewer rows each, and at multiples of this entry
number, they are merged into one."""

SMALL_KEPT = 64
"""Small pieces that a process remembers, so that it reads none again: to merge them, or for another snapshot."""

WHOLE_KEPT = 2
"""Earlier checkpoints of the whole form that are kept beside the newest."""

StateT = TypeVar("StateT")


@dataclass(frozen=True)
class LogState(Generic[StateT]):
    """The fold of entries 1 .. entry_number. `at_ms` is that entry's time; both are 0 for the empty log."""

    entry_number: int
    state: StateT
    at_ms: int = 0


@dataclass(frozen=True)
class WholeCheckpoint(Generic[StateT]):
    """Converts a state to an Arrow table and back. `from_table` raises `Corrupt` for any other table."""

    to_table: Callable[[StateT], pa.Table]
    from_table: Callable[[pa.Table], StateT]


@dataclass(frozen=True)
class GrowingSeries:
    """Rows in the order of a number that only grows; a row never changes, and the first ones may leave.

    Attributes:
        first, last: numbers of the first and the last row that the state has
        rows_after: the rows above a number; None: all"""

    name: str
    first: int
    last: int
    rows_after: Callable[[int | None], pa.Table]


@dataclass(frozen=True)
class ReplacedRows:
    """Rows that are replaced together. `version`: equal for equal rows, in one log."""

    name: str
    version: str
    rows: Callable[[], pa.Table]


@dataclass(frozen=True)
class Described:
    """A state: a small JSON object, and its rows."""

    state: dict[str, JsonValue]
    series: tuple[GrowingSeries | ReplacedRows, ...]


@dataclass(frozen=True)
class SharedCheckpoint(Generic[StateT]):
    """Converts a state to its description and back.

    Attributes:
        restore: gets the rows by series; of a growing one also rows that have left the state. Raises `Corrupt`"""

    describe: Callable[[StateT], Described]
    restore: Callable[[dict[str, JsonValue], Mapping[str, pa.Table]], StateT]


Checkpoint = WholeCheckpoint[StateT] | SharedCheckpoint[StateT]


class Piece(Document):
    """A Parquet file of a series' rows.

    Attributes:
        first, last: numbers of its rows, of a growing series
        version: of the rows, of a replaced one
        since: entry number of the first checkpoint that refers to it"""

    series: str
    name: str
    rows: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    since: int = Field(ge=1)
    first: int | None = None
    last: int | None = None
    version: str | None = None


class EarlierCheckpoint(Document):
    """An earlier checkpoint that is kept. `size_bytes`: of its head."""

    entry_number: int = Field(ge=1)
    size_bytes: int = Field(ge=0)


class EarlierPiece(Document):
    """A piece that only earlier checkpoints refer to: those from entry `since` on, below entry `until`."""

    name: str
    size_bytes: int = Field(ge=0)
    since: int = Field(ge=1)
    until: int = Field(ge=1)

    def is_of(self, checkpoint: EarlierCheckpoint) -> bool:
        return self.since <= checkpoint.entry_number < self.until


class CheckpointHead(Document):
    """One checkpoint of the shared form.

    Attributes:
        whole_until: has no effect, and is not written
        earlier: earlier checkpoints that are kept, ascending
        earlier_pieces: the pieces that only they refer to"""

    format: Literal[2] = 2
    log: str
    entry_number: int = Field(ge=1)
    at_ms: int
    state: dict[str, JsonValue]
    pieces: tuple[Piece, ...]
    whole_until: int = Field(default=0, exclude=True)
    earlier: tuple[EarlierCheckpoint, ...] = ()
    earlier_pieces: tuple[EarlierPiece, ...] = ()


class _Hint(Document):
    """Names the latest checkpoint: the only object of a log that is overwritten with other content."""

    format: Literal[1] = 1
    entry_number: int = Field(ge=1)


class CheckpointFolder(Generic[StateT]):
    """Reads and writes the checkpoints of one log."""

    def __init__(
        self, store: ObjectStore, folder: str, log_name: str, form: Checkpoint[StateT] | None, clock: Clock, every: int
    ) -> None:
        """`every`: entries between two checkpoints."""
        self._store = store
        self._folder = folder
        self._hint_key = HintObject(folder).key
        self._log_name = log_name
        self._form = form
        self._clock = clock
        self._every = every
        self._last_head: tuple[CheckpointHead, int] | None = None
        self._small: deque[tuple[str, pa.Table]] = deque(maxlen=SMALL_KEPT)
        self._is_broken = False
        self._may_delete = True

    # -- reading

    def nearest(self, as_of: int | None) -> LogState[StateT] | None:
        """The latest readable checkpoint at or before an entry, or of all."""
        form = self._form
        if form is None or (as_of is not None and as_of < self._every):
            return None
        hinted = self._read_hint()
        if isinstance(form, SharedCheckpoint):
            return None if hinted is None else self._nearest_shared(form, as_of, hinted)
        for entry_number in _whole_to_try(as_of, hinted, self._every):
            whole = self._read_whole(form, entry_number)
            if whole is not None:
                return whole
        return None

    def _nearest_shared(
        self, form: SharedCheckpoint[StateT], as_of: int | None, hinted: int
    ) -> LogState[StateT] | None:
        found_head = self._hinted_head(hinted)
        if found_head is not None:
            kept = [hinted, *(each.entry_number for each in reversed(found_head[0].earlier))]
            found = self._first_restored(form, (number for number in kept if as_of is None or number <= as_of))
            if found is not None or not self._is_broken:
                return found
        # The hint is old, or the checkpoint it names was just deleted: there may be others.
        listed = sorted(self._listed_heads(), reverse=True)
        return self._first_restored(form, (number for number in listed if as_of is None or number <= as_of))

    def nearest_after(self, number: int) -> int | None:
        """The first checkpoint after an entry, if it is nearer than all before it, by the head that was read last."""
        earlier = () if self._last_head is None else self._last_head[0].earlier
        before = max((each.entry_number for each in earlier if each.entry_number <= number), default=0)
        after = (each.entry_number for each in earlier if each.entry_number > number)
        return next((each for each in after if each - number < number - before), None)

    def _first_restored(self, form: SharedCheckpoint[StateT], entry_numbers: Iterator[int]) -> LogState[StateT] | None:
        for entry_number in entry_numbers:
            read = self._read_head(entry_number)
            if read is None:
                continue
            head, _ = read
            try:
                return LogState(entry_number, form.restore(head.state, self._read_series(head)), head.at_ms)
            except _unreadable() as error:
                self._is_broken = True
                LOG.warning("checkpoint_unreadable", log=self._folder, checkpoint=entry_number, reason=str(error))
        return None

    def _read_series(self, head: CheckpointHead) -> dict[str, pa.Table]:
        tables = run_concurrently(self._store.location, self._read_piece, head.pieces)
        series: dict[str, list[pa.Table]] = {}
        for piece, table in zip(head.pieces, tables, strict=True):
            series.setdefault(piece.series, []).append(table)
        return {name: _joined(parts) for name, parts in series.items()}

    def _read_piece(self, piece: Piece) -> pa.Table:
        for name, known in tuple(self._small):
            if name == piece.name:
                return known
        key = CheckpointObject(self._folder, piece.name).key
        body = self._store.read(key)
        if body is None:
            raise Corrupt(f"{key} is missing")
        table = parse_rows(body)
        if table.num_rows != piece.rows:
            raise Corrupt(f"{key} has {table.num_rows} rows, not {piece.rows}")
        if piece.rows < SMALL_ROWS and piece.last is not None:
            self._small.append((piece.name, table))
        return table

    def _hinted_head(self, entry_number: int) -> tuple[CheckpointHead, int] | None:
        """The newest one, as `_read_head` returns it; it is remembered."""
        found = self._read_head(entry_number)
        self._last_head = found or self._last_head
        return found

    def _read_head(self, entry_number: int) -> tuple[CheckpointHead, int] | None:
        """With its size."""
        if self._last_head is not None and self._last_head[0].entry_number == entry_number:
            return self._last_head
        key = CheckpointObject.head(self._folder, entry_number).key
        body = self._store.read(key)
        if body is None:
            return None
        try:
            head = CheckpointHead.parse_durable(body, key)
            if (head.log, head.entry_number) != (self._log_name, entry_number):
                raise Corrupt(f"{key} is of log {head.log} at entry {head.entry_number}")
        except (Corrupt, Outdated) as error:
            self._is_broken = True
            LOG.warning("checkpoint_unreadable", log=self._folder, checkpoint=key, reason=str(error))
            return None
        return head, len(body)

    def _listed_heads(self) -> Iterator[int]:
        for entry in self._store.list(CheckpointObject.prefix(self._folder)):
            name = entry.key.rpartition("/")[2]
            if name.endswith(".json"):
                yield int(name.removesuffix(".json"))

    def _read_hint(self) -> int | None:
        body = self._store.read(self._hint_key)
        if body is None:
            return None
        with Logged("checkpoint_hint_unreadable", Corrupt, Outdated, log=self._folder):
            return _Hint.parse_durable(body, self._hint_key).entry_number
        return None

    def _read_whole(self, form: WholeCheckpoint[StateT], entry_number: int) -> LogState[StateT] | None:
        key = WholeCheckpointObject(self._folder, entry_number).key
        body = self._store.read(key)
        if body is None:
            LOG.warning("checkpoint_missing", log=self._folder, checkpoint=key)
            return None
        try:
            table = parse_rows(body)
            metadata = table.schema.metadata or {}
            identity = tuple(
                metadata.get(name) for name in (b"lithify.format", b"lithify.log", b"lithify.entry_number")
            )
            expected = (str(WHOLE_FORMAT), self._log_name, str(entry_number))
            if identity != tuple(text.encode() for text in expected):
                raise Corrupt(f"it says that its format, log and entry are {identity}, not {expected}")
            return LogState(entry_number, form.from_table(table), int(metadata[b"lithify.at_ms"]))
        except _unreadable() as error:
            LOG.warning("checkpoint_unreadable", log=self._folder, checkpoint=key, reason=str(error))
            return None

    # -- writing

    def write(self, log_state: LogState[StateT]) -> None:
        """Writes this fold as a checkpoint and names it in the hint. Does nothing for a log without checkpoints."""
        if self._form is None or log_state.entry_number == 0:
            return
        if isinstance(self._form, WholeCheckpoint):
            self._write_whole(self._form, log_state)
        else:
            self._write_shared(self._form, log_state)

    def _write_whole(self, form: WholeCheckpoint[StateT], log_state: LogState[StateT]) -> None:
        table = form.to_table(log_state.state)
        metadata = {
            **(table.schema.metadata or {}),
            "lithify.format": str(WHOLE_FORMAT),
            "lithify.log": self._log_name,
            "lithify.entry_number": str(log_state.entry_number),
            "lithify.at_ms": str(log_state.at_ms),
        }
        body = render_rows(table.replace_schema_metadata(metadata))
        self._store.overwrite(WholeCheckpointObject(self._folder, log_state.entry_number).key, body)
        self._write_hint(log_state.entry_number)
        leaves = log_state.entry_number - (WHOLE_KEPT + 1) * self._every
        if leaves > 0:
            self._delete([WholeCheckpointObject(self._folder, leaves).key])

    def _delete(self, keys: Sequence[str]) -> None:
        """Deletes objects of earlier checkpoints. Garbage collection deletes what is left (`unneeded`): all of it where
        Spark jobs have no permission to delete."""
        if not self._may_delete:
            return
        try:
            for key in keys:
                self._store.delete(key)
        except Denied:
            self._may_delete = False
            LOG.debug("earlier_checkpoints_left_to_gc", log=self._folder)
        except Unavailable as error:
            LOG.warning("earlier_checkpoints_not_deleted", log=self._folder, reason=str(error))

    def _write_shared(self, form: SharedCheckpoint[StateT], log_state: LogState[StateT]) -> None:
        number = log_state.entry_number
        hinted = self._read_hint()
        if hinted is not None and hinted >= number:
            return  # another writer has written a later one
        before = self._head_to_share_with(hinted)
        described = form.describe(log_state.state)
        writer = _PieceWriter(self._store, self._folder, number, self._clock, self._small, self._read_piece)
        try:
            pieces = writer.pieces(described, before[0].pieces if before else ())
        except _unreadable() as error:  # a piece of the earlier checkpoint is gone: share nothing with it
            LOG.warning("checkpoint_unreadable", log=self._folder, checkpoint=hinted, reason=str(error))
            before, pieces = None, writer.pieces(described, ())
        head = CheckpointHead(
            log=self._log_name, entry_number=number, at_ms=log_state.at_ms, state=described.state, pieces=pieces
        )
        head, unneeded = _with_earlier(head, *before) if before else (head, [])
        body = head.render()
        self._store.overwrite(CheckpointObject.head(self._folder, number).key, body)
        if (self._read_hint() or 0) < number:
            self._write_hint(number)
            self._delete([CheckpointObject(self._folder, name).key for name in unneeded])
        self._last_head = head, len(body)
        self._is_broken = False

    def _head_to_share_with(self, hinted: int | None) -> tuple[CheckpointHead, int] | None:
        """The head that the hint names, and its size; None: there is none, or it is damaged."""
        return None if hinted is None or self._is_broken else self._hinted_head(hinted)

    def _write_hint(self, entry_number: int) -> None:
        self._store.overwrite(self._hint_key, _Hint(entry_number=entry_number).render())

    # -- garbage

    def unneeded(self) -> Iterator[ObjectEntry]:
        """Objects of checkpoints of the shared form that the newest known head does not name. They include objects of
        active writers, and of newer heads: only old ones may be deleted."""
        hinted = self._read_hint() if self._last_head is None else None
        newest = self._last_head if hinted is None else self._hinted_head(hinted)
        if newest is None:
            return
        head, _ = newest
        heads = [head.entry_number, *(each.entry_number for each in head.earlier)]
        needed = {CheckpointObject.head(self._folder, number).key for number in heads}
        names = [piece.name for piece in head.pieces] + [piece.name for piece in head.earlier_pieces]
        needed |= {CheckpointObject(self._folder, name).key for name in names}
        for entry in self._store.list(CheckpointObject.prefix(self._folder)):
            if entry.key not in needed:
                yield entry


class _PieceWriter:
    """Writes the pieces of one checkpoint, each under a unique name."""

    def __init__(
        self,
        store: ObjectStore,
        folder: str,
        entry_number: int,
        clock: Clock,
        small: deque[tuple[str, pa.Table]],
        read: Callable[[Piece], pa.Table],
    ) -> None:
        """`small`: pieces by name that were written here; new ones are added."""
        self._store = store
        self._folder = folder
        self._entry_number = entry_number
        self._clock = clock
        self._small = small
        self._read = read

    def pieces(self, described: Described, stored: Sequence[Piece]) -> tuple[Piece, ...]:
        """The pieces of a state. Stored pieces are reused."""
        found: list[Piece] = []
        for series in described.series:
            of_series = [piece for piece in stored if piece.series == series.name]
            if isinstance(series, ReplacedRows):
                same = [piece for piece in of_series if piece.version == series.version]
                found += same or [self._put(series.name, series.rows(), version=series.version)]
            else:
                found += self._grown(series, of_series)
        return tuple(found)

    def _grown(self, series: GrowingSeries, stored: Sequence[Piece]) -> list[Piece]:
        kept = [piece for piece in stored if piece.last is not None and piece.last >= series.first]
        last = kept[-1].last if kept else None
        if last is None or last < series.last:
            first = series.first if last is None else last + 1
            kept.append(self._put(series.name, series.rows_after(last), first=first, last=series.last))
        is_beside, rows_min = self._entry_number % CHECKPOINT_ENTRIES != 0, 0
        for rows_max, count, entries in MERGES:
            small = _last_below(kept, rows_max)
            is_due = self._entry_number % entries == 0 or (is_beside and not rows_min)
            # Smaller pieces wait for a merge of their own: else each merge would write all rows since the last one.
            if len(small) > 1 and (is_due or sum(each.rows >= rows_min for each in small) >= count):
                rows = _joined([self._read(each) for each in small])
                kept[-len(small) :] = [self._put(series.name, rows, first=small[0].first, last=small[-1].last)]
            rows_min = rows_max
        return kept

    def _put(
        self, series: str, rows: pa.Table, first: int | None = None, last: int | None = None, version: str | None = None
    ) -> Piece:
        name = CheckpointObject.piece(self._folder, self._entry_number, self._clock.new_id()).name
        body = render_rows(rows)
        self._store.overwrite(CheckpointObject(self._folder, name).key, body)
        if rows.num_rows < SMALL_ROWS:
            self._small.append((name, rows))
        return Piece(
            series=series,
            name=name,
            rows=rows.num_rows,
            size_bytes=len(body),
            since=self._entry_number,
            first=first,
            last=last,
            version=version,
        )


def _last_below(pieces: Sequence[Piece], rows_max: int) -> list[Piece]:
    """The pieces at the end that have fewer rows."""
    return [*takewhile(lambda piece: piece.rows < rows_max, reversed(pieces))][::-1]


def _with_earlier(head: CheckpointHead, before: CheckpointHead, before_bytes: int) -> tuple[CheckpointHead, list[str]]:
    """The head with the earlier checkpoints that are kept, and the names of the objects that no kept one needs."""
    still = {piece.name for piece in head.pieces}
    pieces: list[EarlierPiece] = list(before.earlier_pieces)
    pieces += [
        EarlierPiece(name=piece.name, size_bytes=piece.size_bytes, since=piece.since, until=head.entry_number)
        for piece in before.pieces
        if piece.name not in still
    ]
    earlier = [*before.earlier, EarlierCheckpoint(entry_number=before.entry_number, size_bytes=before_bytes)]
    kept = _kept(head, earlier, pieces)
    kept_pieces = tuple(piece for piece in pieces if any(piece.is_of(each) for each in kept))
    names = {piece.name for piece in kept_pieces}
    unneeded = [CheckpointObject.head_name(each.entry_number) for each in earlier if each not in kept]
    unneeded += [each.name for each in pieces if each.name not in names]
    return head.model_copy(update={"earlier": tuple(kept), "earlier_pieces": kept_pieces}), unneeded


def _kept(
    head: CheckpointHead, earlier: Sequence[EarlierCheckpoint], pieces: Sequence[EarlierPiece]
) -> list[EarlierCheckpoint]:
    """The kept checkpoints, while bytes suffice: of each doubling of the distance from the newest the earliest, 8 at
    which pieces were merged, and 8 beside the multiples, with the multiple just before one."""
    earliest: dict[tuple[str, int], EarlierCheckpoint] = {}
    numbers = {head.entry_number, *(each.entry_number for each in earlier)}
    for each in reversed(earlier):
        number = each.entry_number
        distance = (head.entry_number - number).bit_length()
        step = max(MERGED_ENTRIES, (1 << distance) // 16)
        if number % step == 0:
            earliest["merged", number // step] = each
        if number % CHECKPOINT_ENTRIES:
            earliest["beside", number // step] = each
        elif number + 1 in numbers:
            earliest["just before", number // step] = each
        earliest["distance", distance] = each
    chosen = sorted(set(earliest.values()), key=lambda each: -each.entry_number)
    # The list of earlier checkpoints is part of the newest head, and short.
    one = len(head.render()) + sum(piece.size_bytes for piece in head.pieces)
    total, counted, kept = one, set[str](), list[EarlierCheckpoint]()
    for each in chosen:
        own = [piece for piece in pieces if piece.is_of(each) and piece.name not in counted]
        total += each.size_bytes + sum(piece.size_bytes for piece in own)
        if total > max(KEPT_BYTES_RATIO * one, KEPT_BYTES_MIN):
            break
        counted |= {piece.name for piece in own}
        kept.append(each)
    return kept[::-1]


def _whole_to_try(as_of: int | None, hinted: int | None, every: int) -> list[int]:
    """Entry numbers, latest first: that of the hint, and the two multiples before it."""
    usable = hinted is not None and (as_of is None or hinted <= as_of)
    latest = hinted if usable else as_of
    if latest is None:
        return []
    due = latest // every * every
    numbers = [latest] if usable else []
    numbers += [due, due - every, due - 2 * every]
    return [number for number in dict.fromkeys(numbers) if number > 0]


def _unreadable() -> tuple[type[Exception], ...]:
    """Errors of reading a broken checkpoint; a broken document is a ValueError."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, KeyError, Corrupt, Outdated)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of pieces. A field that a piece lacks is null."""
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]
