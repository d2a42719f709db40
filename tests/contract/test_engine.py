"""The guarantees that a round needs of every engine: Spark, in-process (also with tasks side by side), and in-process
with a cluster's behaviour."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from compactor.engine.in_process import InProcessEngine
from compactor.engine.protocol import Engine
from compactor.engine.spark import SparkEngine
from compactor.model.errors import Corrupt, Invalid
from tests.fakes.unruly_engine import UnrulyEngine


@pytest.fixture(
    params=[
        "in process",
        "in process, side by side",
        "unruly",
        "unruly with files",
        pytest.param("spark", marks=pytest.mark.spark),
    ],
)
def engine(request: pytest.FixtureRequest) -> Engine:
    match request.param:
        case "in process":
            return InProcessEngine()
        case "in process, side by side":
            return InProcessEngine(tasks_at_once=3)
        case "unruly":
            return UnrulyEngine(0)
        case "unruly with files":
            return UnrulyEngine(1)
        case _:
            return SparkEngine(request.getfixturevalue("spark").sparkContext)


Array = npt.NDArray[np.int64]


def _by_remainder(divisor: int, elements: Iterable[int]) -> Iterator[tuple[int, int]]:
    for element in elements:
        yield element % divisor, element


def _listed(task: str, records: Iterable[int]) -> tuple[str, list[int]]:
    return task, sorted(records)


def _nothing_each(_: int) -> Iterator[tuple[int, int]]:
    return iter(())


def _count(_: object, records: Iterable[object]) -> int:
    return sum(1 for _ in records)


def test_a_shuffle_brings_every_record_once_to_its_partition(engine: Engine) -> None:
    with engine.exchange() as exchange:
        elements = [range(20), range(20, 30), range(30, 50)]
        found = exchange.map(elements, partial(_by_remainder, 5)).shuffle(6).collect("test", list("abcdef"), _listed)
    assert [task for task, _ in found] == list("abcdef")
    for partition, (_, records) in enumerate(found):
        assert records == [number for number in range(50) if number % 5 == partition]


def test_no_elements_are_no_records_and_every_partition_has_a_task(engine: Engine) -> None:
    with engine.exchange() as exchange:
        empty: list[range] = []
        assert exchange.map(empty, partial(_by_remainder, 2)).shuffle(3).collect("test", range(3), _count) == [0, 0, 0]
        assert exchange.map([1, 2], _nothing_each).shuffle(2).collect("test", range(2), _count) == [0, 0]


def _noting_file(folder: str, partition: int, records: Iterable[int]) -> Generator[int, None, str]:
    note = os.open(f"{folder}/{partition}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(note, b"x")
    os.close(note)
    values = sorted(records)
    yield from values
    return f"{partition}: {len(values)}"


def _values(_: int, records: Iterable[int]) -> list[int]:
    return list(records)


def _times(factor: int, records: Iterable[int]) -> Iterator[int]:
    return (factor * record for record in records)


def test_kept_records_are_computed_once_keep_their_order_and_have_a_note_a_partition(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("notes")
    with engine.exchange() as exchange:
        by_remainder = exchange.map([range(4), range(4, 7)], partial(_by_remainder, 2)).shuffle(2)
        with by_remainder.keep("test", range(2), partial(_noting_file, str(folder)), 1000) as kept:
            assert kept.notes == ("0: 4", "1: 3")
            computed = {note.name: note.read_bytes() for note in folder.iterdir()}
            assert kept.records.collect("test", range(2), _values) == [[0, 2, 4, 6], [1, 3, 5]]
            assert kept.records.map([2, 3], _times).collect("test", range(2), _values) == [[0, 4, 8, 12], [3, 9, 15]]
            assert {note.name: note.read_bytes() for note in folder.iterdir()} == computed


def _sums(task: Array, records: Iterable[int]) -> tuple[int, int]:
    return int(task.sum()), sum(records)


@pytest.mark.parametrize("numbers", [3, 30_000])
def test_a_task_gets_its_own_value_of_any_size(engine: Engine, numbers: int) -> None:
    tasks = [np.full(numbers, partition) for partition in range(3)]
    with engine.exchange() as exchange:
        records = exchange.map([range(9)], partial(_by_remainder, 3)).shuffle(3)
        assert records.collect("test", tasks, _sums) == [(0, 9), (numbers, 12), (2 * numbers, 15)]
        with records.keep("test", tasks, _kept_with_sum, 1000) as kept:
            assert kept.notes == (0, numbers, 2 * numbers)
            assert kept.records.map(tasks, _plus_first).collect("test", tasks, _sums) == [
                (0, 9),
                (numbers, 15),
                (2 * numbers, 21),
            ]


def _kept_with_sum(task: Array, records: Iterable[int]) -> Generator[int, None, int]:
    yield from records
    return int(task.sum())


def _plus_first(task: Array, records: Iterable[int]) -> Iterator[int]:
    return (record + int(task[0]) for record in records)


def _large(element: int) -> Iterator[tuple[int, Array]]:
    yield element % 2, np.full(300_000, element)


def _kept(_: int, arrays: Iterable[Array]) -> Generator[Array, None, int]:
    count = 0
    for array in arrays:
        array += 1
        yield array
        count += 1
    return count


def _adding_one(_: int, arrays: Iterable[Array]) -> int:
    total = 0
    for array in arrays:
        array += 1
        total += int(array.sum())
    return total


def test_arrays_of_megabytes_belong_to_the_task_that_gets_them(engine: Engine) -> None:
    with ExitStack() as stack:
        shuffled = stack.enter_context(engine.exchange()).map(range(4), _large).shuffle(2)
        kept = stack.enter_context(shuffled.keep("test", range(2), _kept, 10_000_000))
        assert kept.notes == (2, 2)
        assert kept.records.collect("test", range(2), _adding_one) == [300_000 * 6, 300_000 * 8]


def _failing(error: Exception, _: int, __: Iterable[object]) -> int:
    raise error


@pytest.mark.parametrize("error", [Corrupt("orders/1.parquet is damaged"), Invalid("column id: null")])
def test_an_error_of_ours_comes_out_of_a_task_as_itself(engine: Engine, error: Exception) -> None:
    with engine.exchange() as exchange:
        records = exchange.map([range(3)], partial(_by_remainder, 2)).shuffle(2)
        with pytest.raises(type(error), match=str(error)):
            records.collect("test", range(2), partial(_failing, error))


def _failing_while_kept(error: Exception, _: int, __: Iterable[object]) -> Generator[int, None, int]:
    yield 1
    raise error


def test_an_error_while_records_are_kept_comes_out_too(engine: Engine) -> None:
    error = Corrupt("the index is damaged")
    with engine.exchange() as exchange:
        records = exchange.map([range(3)], partial(_by_remainder, 2)).shuffle(2)
        with (
            pytest.raises(Corrupt, match="the index is damaged"),
            records.keep("test", range(2), partial(_failing_while_kept, error), 100),
        ):
            pass


def test_two_exchanges_do_not_see_each_other_s_records(engine: Engine) -> None:
    with engine.exchange() as first, engine.exchange() as second:
        some = first.map([range(3)], partial(_by_remainder, 1)).shuffle(1)
        others = second.map([range(5)], partial(_by_remainder, 1)).shuffle(1)
        assert some.collect("test", [0], _count) == [3]
        assert others.collect("test", [0], _count) == [5]


def test_cores_are_at_least_one_and_tasks_that_ended_are_counted(engine: Engine) -> None:
    assert engine.resources().tasks >= 1
    assert engine.tasks_done() >= 0
