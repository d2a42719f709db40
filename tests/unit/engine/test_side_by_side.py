"""Tasks of the in-process engine, side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest
from structlog.contextvars import get_contextvars

from compactor.engine.in_process import InProcessEngine
from compactor.log_context import bound
from compactor.model.errors import Corrupt

SECONDS_MAX = 10.0


def _same(element: int) -> Iterator[tuple[int, int]]:
    yield element, element


def test_as_many_tasks_as_said_run_at_the_same_time() -> None:
    engine, all_there = InProcessEngine(tasks_at_once=3), threading.Barrier(3)

    def waits_for_the_others(_: int, records: Iterable[int]) -> int:
        all_there.wait(SECONDS_MAX)
        return sum(records)

    with engine.exchange() as exchange:
        records = exchange.map(range(3), _same).shuffle(3)
        assert records.collect("test", range(3), waits_for_the_others) == [0, 1, 2]


def test_the_tasks_of_the_running_step_are_counted_without_those_before_its_shuffle() -> None:
    engine, done = InProcessEngine(), []

    def noted(_: int, records: Iterable[int]) -> int:
        done.append(engine.tasks_done())
        return sum(records)

    with engine.exchange() as exchange:
        exchange.map(range(3), _same).shuffle(3).collect("test", range(3), noted)
    assert done == [0, 1, 2]


def test_what_is_before_a_shuffle_runs_once_though_several_tasks_read_from_it() -> None:
    engine, ran = InProcessEngine(tasks_at_once=4), []

    def noted(element: int) -> Iterator[tuple[int, int]]:
        ran.append(element)
        for address in range(8):
            yield address, element

    with engine.exchange() as exchange:
        found = exchange.map(range(4), noted).shuffle(8).collect("test", range(8), lambda _, each: sum(each))
    assert sorted(ran) == [0, 1, 2, 3]
    assert found == [6] * 8


def test_the_first_error_is_raised_when_the_tasks_that_had_begun_have_ended() -> None:
    engine, ended = InProcessEngine(tasks_at_once=2), threading.Event()
    both_have_begun, failed = threading.Barrier(2), threading.Event()

    def task(number: int, _: Iterable[int]) -> int:
        both_have_begun.wait(SECONDS_MAX)
        if number == 0:
            failed.set()
            raise Corrupt("the first task")
        failed.wait(SECONDS_MAX)
        ended.set()
        return number

    with engine.exchange() as exchange, pytest.raises(Corrupt, match="the first task"):
        exchange.map(range(2), _same).shuffle(2).collect("test", range(2), task)
    assert ended.is_set()


def test_an_interrupt_waits_for_no_task() -> None:
    engine, running, let_go = InProcessEngine(tasks_at_once=2), threading.Barrier(2), threading.Event()

    def task(number: int, _: Iterable[int]) -> None:
        running.wait(SECONDS_MAX)
        if number == 0:
            raise KeyboardInterrupt
        assert let_go.wait(SECONDS_MAX)

    with engine.exchange() as exchange, pytest.raises(KeyboardInterrupt):
        exchange.map(range(2), _same).shuffle(2).collect("test", range(2), task)
    assert not let_go.is_set()
    let_go.set()


def test_log_lines_of_tasks_name_their_session() -> None:
    def names(_: int, __: Iterable[int]) -> object:
        return get_contextvars().get("session_id")

    with bound(session_id="of-orders"), InProcessEngine(tasks_at_once=2).exchange() as exchange:
        found = exchange.map(range(2), _same).shuffle(2).collect("test", range(2), names)
    assert found == ["of-orders"] * 2


def test_each_task_has_its_part_of_the_memory() -> None:
    alone, beside = InProcessEngine().resources(), InProcessEngine(tasks_at_once=4).resources()
    assert beside.task_memory_bytes == alone.task_memory_bytes // 4
