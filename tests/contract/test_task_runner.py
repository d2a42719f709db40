"""The guarantees that a bundle of sessions needs of what runs its tasks: Spark, a worker, and a fake."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from compactor.engine.in_process_tasks import InProcessTasks
from compactor.engine.protocol import TaskRunner
from compactor.engine.spark_tasks import SparkTaskRunner
from compactor.model.errors import Invalid, OutOfMemory
from tests.fakes.in_process_runner import InProcessTaskRunner, ProcessDied

MakeRunner = Callable[[], TaskRunner[int, str]]


ON_SPARK = pytest.param("spark", marks=pytest.mark.spark)


@pytest.fixture(params=["worker", "fake", ON_SPARK])
def make_runner(request: pytest.FixtureRequest) -> MakeRunner:
    return _makes(request)


@pytest.fixture(params=["fake", ON_SPARK])
def make_isolating_runner(request: pytest.FixtureRequest) -> MakeRunner:
    """Of those whose tasks have processes of their own; that of a worker is ended, and seen by its dispatcher."""
    return _makes(request)


def _makes(request: pytest.FixtureRequest) -> MakeRunner:
    if request.param == "spark":
        context = request.getfixturevalue("spark").sparkContext
        return lambda: SparkTaskRunner(context)
    return InProcessTasks if request.param == "worker" else InProcessTaskRunner


def _called(element: int, is_again: bool) -> str:
    return f"{element} again" if is_again else str(element)


def _dies_at_three(process_of_tests: int, element: int, is_again: bool) -> str:
    if element == 3:
        if os.getpid() == process_of_tests:
            raise ProcessDied
        os.kill(os.getpid(), signal.SIGKILL)
    return str(element)


def _refuses(element: int, is_again: bool) -> str:
    raise Invalid(f"{element} is refused")


def test_each_element_is_given_to_the_function_once_and_its_answer_stands_at_its_place(
    make_runner: MakeRunner,
) -> None:
    runner = make_runner()
    assert runner.run([10, 11, 12, 13, 14], _called) == {}
    assert runner.ended() == {0: "10", 1: "11", 2: "12", 3: "13", 4: "14"}


def test_nothing_is_run_for_no_elements(make_runner: MakeRunner) -> None:
    runner = make_runner()
    assert runner.run([], _called) == {}
    assert runner.ended() == {}


def test_a_task_that_takes_its_process_down_is_not_tried_again_and_harms_no_other(
    make_isolating_runner: MakeRunner,
) -> None:
    runner = make_isolating_runner()
    lost = runner.run([1, 2, 3, 4, 5, 6], partial(_dies_at_three, os.getpid()))
    assert list(lost) == [2]
    assert isinstance(lost[2], OutOfMemory)
    assert runner.ended() == {0: "1", 1: "2", 3: "4", 4: "5", 5: "6"}


def test_elements_of_a_group_share_a_process_and_run_side_by_side(make_runner: MakeRunner) -> None:
    runner = make_runner()
    assert runner.run([10, 11, 12, 13], _meets_others, [[3, 0, 1], [2]]) == {}
    assert runner.ended() == {0: "3 met", 1: "3 met", 2: "1 met", 3: "3 met"}


_ALL_MET = threading.Barrier(3)


def _meets_others(element: int, is_again: bool) -> str:
    """12 is alone, the others wait for each other."""
    if element == 12:
        return "1 met"
    _ALL_MET.wait(30)
    return "3 met"


def test_a_group_whose_process_dies_is_tried_again_one_by_one_and_only_the_killer_is_lost(
    make_isolating_runner: MakeRunner,
) -> None:
    runner = make_isolating_runner()
    lost = runner.run([1, 2, 3, 4, 5, 6], partial(_dies_at_three, os.getpid()), [[0, 1, 2], [3, 4, 5]])
    assert list(lost) == [2]
    assert isinstance(lost[2], OutOfMemory)
    assert runner.ended() == {0: "1", 1: "2", 3: "4", 4: "5", 5: "6"}


def test_errors_of_the_function_are_raised(make_runner: MakeRunner) -> None:
    with pytest.raises(Invalid, match="7 is refused"):
        make_runner().run([7], _refuses)
