"""Work in threads: once, or again and again."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import wait

import pytest

from compactor.model.background import BackgroundLoop, SharedLoop, SharedWork, soon
from tests.waiting import wait_until


def test_work_is_done_after_each_interval_until_the_loop_is_left() -> None:
    done: list[str] = []
    with BackgroundLoop("work", lambda: done.append(threading.current_thread().name), 0.001) as loop:
        wait_until(lambda: len(done) >= 3)
    assert set(done) == {"work"}
    assert not loop.is_running


def test_no_work_is_done_before_the_first_interval_unless_it_is_asked_for() -> None:
    later: list[int] = []
    now: list[int] = []
    with BackgroundLoop("later", lambda: later.append(1), 3600.0):
        with BackgroundLoop("now", lambda: now.append(1), 3600.0, at_once=True):
            wait_until(lambda: now == [1])
        assert later == []


def test_an_error_of_the_work_ends_the_loop_and_is_raised_where_it_is_left() -> None:
    def fail() -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"), BackgroundLoop("work", fail, 0.001) as loop:
        wait_until(lambda: not loop.is_running)


def test_an_error_of_the_block_hides_no_error_of_the_work() -> None:
    def fail() -> None:
        raise ZeroDivisionError("the work's")

    def leave_by_an_error() -> None:
        with BackgroundLoop("work", fail, 0.001) as loop:
            wait_until(lambda: not loop.is_running)
            raise KeyError("the block's")

    with pytest.raises(KeyError, match="the block's"):
        leave_by_an_error()


def test_loops_with_one_event_end_together() -> None:
    ends = threading.Event()
    with (
        BackgroundLoop("one", lambda: None, 0.001, ends=ends) as one,
        BackgroundLoop("other", ends.set, 0.001, ends=ends),
    ):
        wait_until(lambda: not one.is_running)


def test_a_shared_loop_calls_each_work_from_its_first_whole_interval_on_until_it_ends() -> None:
    calls: list[str] = []
    loop = SharedLoop("shared", 3600.0)
    early, late = SharedWork(loop, lambda: calls.append("early")), SharedWork(loop, lambda: calls.append("late"))
    with early:
        loop.call_all()
        assert calls == []
        with late:
            loop.call_all()
            assert calls == ["early"]
            loop.call_all()
            assert calls == ["early", "early", "late"]
        assert not late.is_running
        loop.call_all()
        assert calls[3:] == ["early"]
        assert early.is_running
    loop.call_all()
    assert len(calls) == 4


def test_works_of_a_shared_loop_are_called_in_its_thread() -> None:
    called: queue.Queue[str] = queue.Queue()
    with (
        SharedLoop("shared", 0.001) as loop,
        SharedWork(loop, lambda: called.put(threading.current_thread().name)),
    ):
        assert called.get(timeout=60) == "shared"


def test_a_thread_is_kept_for_the_next_call() -> None:
    first = soon(threading.get_ident).result()
    assert first != threading.get_ident()
    assert soon(threading.get_ident).result() == first


def test_a_call_that_does_not_end_holds_up_no_other_and_its_thread_serves_again_when_it_has() -> None:
    ends = threading.Event()
    begun = threading.Event()

    def hang() -> int:
        begun.set()
        assert ends.wait(60)
        return threading.get_ident()

    hanging = soon(hang)
    assert begun.wait(60)
    beside = soon(threading.get_ident).result()
    assert not wait([hanging], 0.0).done
    ends.set()
    assert hanging.result() != beside
    wait_until(lambda: soon(threading.get_ident).result() == hanging.result())


def test_an_error_is_raised_to_who_asks_for_the_outcome() -> None:
    def fail() -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        soon(fail).result()
