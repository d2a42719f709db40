"""The deltas of a stream version in memory: an immutable sequence that shares its parts with the one before it.

A fold makes a new state for every action. Adding a delta to this sequence copies a few references: the sequence is a
list of runs, and when the last 8 runs have about the same length, they are merged. So each delta is copied log8(n)
times in all, and the lookup of a delta id searches about as many runs.

Deltas that a checkpoint has stay rows until somebody asks for them: of 10,000 a compaction needs the last ones, and
garbage collection needs paths and ids, which are columns.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias, overload

from compactor.catalog.actions import DeltaAdded

if TYPE_CHECKING:  # a log without a checkpoint needs neither
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_FAN_OUT = 8

_STORED_TOGETHER = 256
"""Rows of a checkpoint that are decoded together."""

Decode: TypeAlias = "Callable[[pa.StructArray], Sequence[DeltaAdded]]"

_position = attrgetter("position")


def object_of(delta_id: str) -> str:
    """The object of which a delta's rows are a version (FORMAT.md, section 6.2)."""
    return delta_id.rpartition("@")[0]


class _Run:
    """Some deltas. The first `skipped` ones are no longer part of the sequence; a later copy drops them."""

    def __init__(self, deltas: tuple[DeltaAdded, ...], skipped: int = 0) -> None:
        self.deltas = deltas
        self.skipped = skipped

    def __len__(self) -> int:
        return len(self.deltas) - self.skipped

    def live(self) -> tuple[DeltaAdded, ...]:
        return self.deltas[self.skipped :] if self.skipped else self.deltas

    def part(self, start: int, end: int) -> _Run:
        return _Run(self.deltas[start:end])

    def at(self, offset: int) -> DeltaAdded:
        return self.deltas[offset]

    @property
    def last_position(self) -> int:
        return self.deltas[-1].position

    def ids(self) -> Iterator[tuple[str, ...]]:
        return (delta.ids for delta in self.deltas[self.skipped :])

    def paths(self) -> Iterator[str]:
        return (file.path for delta in self.deltas[self.skipped :] for file in delta.files)

    @cached_property
    def _by_id(self) -> dict[str, int]:
        return {delta_id: self.skipped + offset for offset, ids in enumerate(self.ids()) for delta_id in ids}

    @cached_property
    def _by_object(self) -> dict[str, int]:
        return {
            object_of(each.delta_id): offset
            for offset, delta in enumerate(self.deltas)
            for each in delta.joined
            if each.sequencer is not None
        }

    def find(self, delta_id: str) -> DeltaAdded | None:
        return self._at(self._by_id.get(delta_id))

    def find_version(self, object_name: str) -> DeltaAdded | None:
        return self._at(self._by_object.get(object_name))

    def _at(self, offset: int | None) -> DeltaAdded | None:
        return None if offset is None or offset < self.skipped else self.at(offset)

    def above(self, position: int) -> int:
        """The list index of the first delta above a position."""
        return bisect_right(self.deltas, position, lo=self.skipped, key=_position)

    def without_first(self, offset: int) -> _Run:
        if 2 * offset > len(self.deltas):
            return _Run(self.deltas[offset:])
        run = _Run(self.deltas, offset)
        for name in ("_by_id", "_by_object"):
            if name in self.__dict__:
                run.__dict__[name] = self.__dict__[name]
        return run


class _StoredRun(_Run):
    """Rows of a checkpoint, which are decoded when they are asked for."""

    def __init__(self, rows: pa.StructArray, decode: Decode) -> None:
        self._rows = rows
        self._decode = decode
        self.skipped = 0

    @cached_property
    def deltas(self) -> tuple[DeltaAdded, ...]:  # type: ignore[override]
        return tuple(self._decode(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def _is_decoded(self) -> bool:
        return "deltas" in self.__dict__

    def at(self, offset: int) -> DeltaAdded:
        if self._is_decoded:
            return self.deltas[offset]
        (delta,) = self._decode(self._rows.slice(offset, 1))
        return delta

    @cached_property
    def _positions(self) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self._rows.field("position").to_numpy()
        return found

    @property
    def last_position(self) -> int:
        return int(self._positions[-1])

    def above(self, position: int) -> int:
        import numpy as np

        return int(np.searchsorted(self._positions, position, side="right"))

    def part(self, start: int, end: int) -> _Run:
        if self._is_decoded:
            return super().part(start, end)
        return _StoredRun(self._rows.slice(start, end - start), self._decode)

    def without_first(self, offset: int) -> _Run:
        return super().without_first(offset) if self._is_decoded else self.part(offset, len(self))

    def ids(self) -> Iterator[tuple[str, ...]]:
        own = self._rows.field("delta_id").to_pylist()
        if "joined" not in self._rows.type.names:
            return ((each,) for each in own)
        joined = self._rows.field("joined").to_pylist()
        return (
            tuple(dict.fromkeys((each, *(append["delta_id"] for append in appends or ()))))
            for each, appends in zip(own, joined, strict=True)
        )

    def paths(self) -> Iterator[str]:
        return iter(self._rows.field("files").flatten().field("path").to_pylist())


class DeltaSequence(Sequence[DeltaAdded]):
    """Deltas in position order. Compares equal to any sequence of the same deltas."""

    __slots__ = ("_length", "_runs")

    def __init__(self, deltas: Iterable[DeltaAdded] = ()) -> None:
        given = tuple(deltas)
        self._runs: tuple[_Run, ...] = (_Run(given),) if given else ()
        self._length = len(given)

    @classmethod
    def stored(cls, rows: pa.StructArray, decode: Decode) -> DeltaSequence:
        """Of rows that are decoded when they are asked for. They have the columns of a `DeltaAdded`."""
        starts = range(0, len(rows), _STORED_TOGETHER)
        return cls._of(_StoredRun(rows.slice(start, _STORED_TOGETHER), decode) for start in starts)

    @classmethod
    def _of(cls, runs: Iterable[_Run]) -> DeltaSequence:
        made = cls()
        made._runs = tuple(run for run in runs if len(run))
        made._length = sum(map(len, made._runs))
        return made

    def added(self, delta: DeltaAdded) -> DeltaSequence:
        """A sequence with one more delta, which has the greatest position."""
        runs = [*self._runs, _Run((delta,))]
        while len(runs) >= _FAN_OUT and len(runs[-_FAN_OUT]) < _FAN_OUT * len(runs[-1]):
            last = runs[-_FAN_OUT:]
            runs[-_FAN_OUT:] = [_Run(tuple(each for run in last for each in run.live()))]
        made = DeltaSequence()
        made._runs, made._length = tuple(runs), self._length + 1
        return made

    def without(self, position: int) -> DeltaSequence:
        runs = list(self._runs)
        for number, run in enumerate(runs):
            offset = run.above(position) - 1
            if offset >= run.skipped and run.at(offset).position == position:
                runs[number] = _Run((*run.deltas[run.skipped : offset], *run.deltas[offset + 1 :]))
        return DeltaSequence._of(runs)

    def split(self, position: int) -> tuple[DeltaSequence, DeltaSequence]:
        """The deltas up to and including a position, and those above it."""
        before: list[_Run] = []
        after: list[_Run] = []
        for run in self._runs:
            offset = run.above(position)
            if offset > run.skipped:
                before.append(run.part(run.skipped, offset))
            if offset < run.skipped + len(run):
                after.append(run.without_first(offset) if offset > run.skipped else run)
        return DeltaSequence._of(before), DeltaSequence._of(after)

    def above(self, position: int) -> Iterator[DeltaAdded]:
        """In order."""
        for run in self._runs:
            if run.last_position > position:
                yield from run.deltas[run.above(position) :]

    def ids(self) -> Iterator[str]:
        """The ids of all deltas (`DeltaAdded.ids`)."""
        return (each for run in self._runs for ids in run.ids() for each in ids)

    def paths(self) -> Iterator[str]:
        return (path for run in self._runs for path in run.paths())

    def find(self, delta_id: str) -> DeltaAdded | None:
        """The delta that has this id, or the append of this id; None if there is none."""
        return next(filter(None, (run.find(delta_id) for run in reversed(self._runs))), None)

    def find_version(self, object_name: str) -> DeltaAdded | None:
        """The last delta with a version of an object whose sequencer is known; None if there is none."""
        return next(filter(None, (run.find_version(object_name) for run in reversed(self._runs))), None)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[DeltaAdded]:
        for run in self._runs:
            yield from run.live()

    def __reversed__(self) -> Iterator[DeltaAdded]:
        for run in reversed(self._runs):
            yield from reversed(run.live())

    @overload
    def __getitem__(self, index: int) -> DeltaAdded: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DeltaAdded]: ...
    def __getitem__(self, index: int | slice) -> DeltaAdded | Sequence[DeltaAdded]:
        if isinstance(index, slice):
            return tuple(self)[index]
        offset = index + self._length if index < 0 else index
        for run in self._runs:
            if 0 <= offset < len(run):
                return run.at(run.skipped + offset)
            offset -= len(run)
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"DeltaSequence({list(self)!r})"
