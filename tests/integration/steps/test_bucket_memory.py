"""What a row of a hash bucket takes in the tasks that have a whole bucket in memory, held to what sizing plans."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.engine.in_process import InProcessEngine
from compactor.kernels.warm import warm_kernels
from compactor.planning.sizing import dedupe_bytes_per_row
from compactor.sessions import round_runner

TABLE = "ACME.ORDERS.V1"
ROWS = 500_000
SORT_VALUES_BYTES = 9
PLANNED_OVER_MEASURED_MAX = 1.15

KEYS = np.random.default_rng(1).permutation(ROWS)


class TaskMemory:
    """Runs each task as a cluster does, its records coming from elsewhere and going elsewhere, here to files; and keeps
    the most bytes of arrays that a task of each kind had at once."""

    def __init__(self, folder: Path) -> None:
        self.peaks: dict[str, int] = {}
        self._given, self._found = folder / "given", folder / "found"

    def measuring(self, name: str, task: Callable[..., object]) -> Callable[..., object]:
        def measured(*arguments: object) -> object:
            *fixed, last = arguments
            is_stream = isinstance(last, Iterator)
            _write(self._given, last if isinstance(last, Iterator) else iter([last]))
            tracemalloc.start()
            try:
                given = _read(self._given)
                found = task(*fixed, given if is_stream else next(given))
                value = _write(self._found, found) if isinstance(found, Iterator) else found
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            self.peaks[name] = max(self.peaks.get(name, 0), peak)
            return self._again(value) if isinstance(found, Iterator) else value

        return measured

    def _again(self, value: object) -> Generator[object, None, object]:
        yield from list(_read(self._found))
        return value


def _write(path: Path, records: Iterator[object]) -> object:
    """Returns what the generator of the records returns."""
    with path.open("wb") as file:
        while True:
            try:
                pickle.dump(next(records), file, protocol=5)
            except StopIteration as end:
                return end.value


def _read(path: Path) -> Iterator[object]:
    with path.open("rb") as file:
        while file.peek(1):
            yield pickle.load(file)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskMemory:
    warm_kernels()  # what compiling takes is not the tasks'
    found = TaskMemory(tmp_path)
    for name in ("dedupe_partition", "finish_partition", "split_bucket", "join_bucket"):
        monkeypatch.setattr(round_runner, name, found.measuring(name, getattr(round_runner, name)))
    return found


def append(lake: DeltaCatalog, folder: Path, keys: npt.NDArray[np.int64]) -> None:
    files = []
    for number, part in enumerate(np.array_split(keys, 8)):
        path = folder / f"{len(list(folder.iterdir()))}-{number}.parquet"
        pq.write_table(pa.table({"id": part, "at": part[::-1].copy(), "amount": part / 7}), path)
        files.append(path)
    lake.table(TABLE).append({}, files)


def compacted(lake: DeltaCatalog, hash_bucket_count: int, sort_keys: list[tuple[str, str]]) -> None:
    compact(
        TABLE,
        ["id"],
        sort_keys,
        delta_catalog_client=lake,
        hash_bucket_count=hash_bucket_count,
        engine=InProcessEngine(),
    )


@pytest.mark.parametrize("sorts", [False, True], ids=["by position", "by a column"])
def test_a_row_of_a_bucket_takes_what_is_planned_for_it(tmp_path: Path, memory: TaskMemory, sorts: bool) -> None:
    lake = DeltaCatalog.open(tmp_path / "lake")
    lake.create_table(TABLE)
    sort_keys = [("at", "ascending")] if sorts else []
    planned = dedupe_bytes_per_row(SORT_VALUES_BYTES if sorts else 0)
    most = 0.0
    rounds = {
        "new keys": KEYS,
        "the same again": KEYS,
        "others": KEYS + ROWS,
        "a few of each": KEYS[:20_000] * 2,
        "others, with two runs": KEYS + 2 * ROWS,
    }
    for arriving in rounds.values():
        append(lake, tmp_path, arriving)
        before = lake.table(TABLE).stream({}).load().state.compacted
        in_index = 0 if before is None else sum(file.rows for file in before.index_files)
        memory.peaks.clear()
        compacted(lake, 1, sort_keys)
        bytes_per_row = max(memory.peaks.values()) / (in_index + len(arriving))
        assert bytes_per_row <= planned
        most = max(most, bytes_per_row)
    assert planned <= PLANNED_OVER_MEASURED_MAX * most


@pytest.mark.parametrize("sorts", [False, True], ids=["by position", "by a column"])
def test_a_row_that_is_rehashed_takes_no_more(tmp_path: Path, memory: TaskMemory, sorts: bool) -> None:
    """An old bucket of two runs is divided, and a new one is put together."""
    lake = DeltaCatalog.open(tmp_path / "lake")
    lake.create_table(TABLE)
    sort_keys = [("at", "ascending")] if sorts else []
    for keys in (KEYS, KEYS[: ROWS // 10] + ROWS):
        append(lake, tmp_path, keys)
        compacted(lake, 1, sort_keys)
    append(lake, tmp_path, KEYS[:10])
    memory.peaks.clear()
    compacted(lake, 2, sort_keys)
    rows = ROWS + ROWS // 10
    planned = dedupe_bytes_per_row(SORT_VALUES_BYTES if sorts else 0)
    assert memory.peaks["split_bucket"] <= planned * rows
    assert memory.peaks["join_bucket"] <= planned * rows
