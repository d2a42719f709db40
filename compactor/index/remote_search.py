"""Finds digests in a sorted index file that is far away, and reads only the rows among which they lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from compactor.kernels.search import find_digests
from compactor.kernels.sha1 import Digests

_DEVIATIONS = 4
_ROWS_AROUND_MIN = 64
_WORTH_ALL = 0.5
"""Share of a file's digests to read from which on all of them are read."""


@dataclass(frozen=True)
class RowsInRun:
    """Where a file lies in its run: the rows before it, and all of the run's."""

    rows_before: int
    run_rows: int


def expected_share(digest: Digests) -> float:
    """The share of a run's rows that lie before one digest, (1, 5), as uniform digests do."""
    return float(_keys(digest)[0]) / 2.0**64


def expected_rows(digests: Digests, rows_in_run: RowsInRun, rows: int) -> list[tuple[int, int]]:
    """Which rows [start, end) of a file probably hold digests, or where they would be: digests are uniform, so each
    lies at its value's share of the run's rows, off by about their square root at most."""
    if not len(digests) or not rows:
        return []
    reach = max(_DEVIATIONS * isqrt(rows_in_run.run_rows) // 2, _ROWS_AROUND_MIN)
    expected = (_keys(digests) / 2.0**64 * rows_in_run.run_rows).astype(np.int64) - rows_in_run.rows_before
    expected = np.clip(expected, 0, rows - 1)
    starts, ends = np.maximum(expected - reach, 0), np.minimum(expected + reach, rows)
    begins = np.flatnonzero(np.concatenate(([True], starts[1:] > ends[:-1])))
    found = list(zip(starts[begins].tolist(), ends[np.append(begins[1:], len(ends)) - 1].tolist(), strict=True))
    if sum(end - start for start, end in found) > _WORTH_ALL * rows:
        return [(0, rows)]
    return found


def _keys(digests: Digests) -> npt.NDArray[np.uint64]:
    """The first 8 bytes of digests, as numbers in digest order."""
    keys: npt.NDArray[np.uint64] = (digests[:, 0].astype(np.uint64) << np.uint64(32)) | digests[:, 1]
    return keys


class RemoteSearch:
    """Finds digests in a sorted file of which only some rows are at hand, and others are asked for as needed.

    A digest is found, or known not to be there, if rows at hand that lie next to each other enclose it. Where that is
    not so, rows around them are asked for until it is.
    """

    def __init__(
        self, raw: Digests, digests: Digests, rows_in_run: RowsInRun, need: Callable[[Sequence[tuple[int, int]]], None]
    ) -> None:
        self._raw = raw
        self._digests = digests
        self._keys = _keys(digests)
        self._need = need
        self._runs = expected_rows(digests, rows_in_run, len(raw))

    def positions(self) -> npt.NDArray[np.int64]:
        if not self._runs:
            return np.empty(0, np.int64)
        while True:
            self._need(self._runs)
            slices = [self._enclosed(low, high) for low, high in self._runs]
            known = np.zeros(len(self._digests) + 1, np.int64)
            for first, end in slices:
                known[first] += 1
                known[end] -= 1
            unknown = np.flatnonzero(np.cumsum(known[:-1]) <= 0)
            if not len(unknown):
                break
            self._runs = self._wider(unknown)
        found = [
            find_digests(self._raw[low:high], self._digests[first:end]) + low
            for (low, high), (first, end) in zip(self._runs, slices, strict=True)
        ]
        return np.unique(np.concatenate(found))

    def _enclosed(self, low: int, high: int) -> tuple[int, int]:
        """The digests [first, end) that lie between a run's first and last row, or where the file ends, beyond them."""
        bounds = _keys(self._raw[[low, high - 1]].view(">u4").astype(np.uint32))
        # Two digests may begin alike: what begins as a run's edge does is left to a wider run.
        first = 0 if low == 0 else int(np.searchsorted(self._keys, bounds[0], side="right"))
        end = len(self._keys) if high == len(self._raw) else int(np.searchsorted(self._keys, bounds[1], side="left"))
        return first, max(first, end)

    def _wider(self, unknown: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """The runs; those beside an unknown digest are as long again to both sides, and those that meet are one."""
        firsts = _keys(self._raw[[low for low, _ in self._runs]].view(">u4").astype(np.uint32))
        after = np.searchsorted(firsts, self._keys[unknown], side="right")
        beside = {*(after - 1).tolist(), *after.tolist()}
        wider: list[tuple[int, int]] = []
        for number, (low, high) in enumerate(self._runs):
            reach = max(high - low, _ROWS_AROUND_MIN) if number in beside else 0
            start, end = max(low - reach, 0), min(high + reach, len(self._raw))
            if wider and start <= wider[-1][1]:
                wider[-1] = wider[-1][0], max(wider[-1][1], end)
            else:
                wider.append((start, end))
        return wider
