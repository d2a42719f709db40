"""What every test shares: how Hypothesis chooses its examples, the order in which tests run, and one Spark."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A slow machine is no failure.
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Examples follow from the test's own text, so that what fails on one machine fails on every other.
settings.register_profile("ci", _UNHURRIED, derandomize=True)
# `HYPOTHESIS_PROFILE=dev make test` looks for new examples, and for more of them.
settings.register_profile("dev", _UNHURRIED, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quickest answer first: unit tests, then the other rooms in their own order, what needs Spark last."""
    items.sort(key=_expected_wait)


def _expected_wait(item: pytest.Item) -> int:
    if item.get_closest_marker("spark") is not None:
        return 3
    if item.get_closest_marker("slow") is not None:
        return 2
    if item.get_closest_marker("servers") is not None:
        return 1
    return 0


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    exit_code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """`lithify` with these arguments, in this process, with nothing from the environment."""
    import structlog

    from dispatcher.main import run

    def say(*arguments: str) -> Said:
        exit_code = run(arguments, {})
        return Said(exit_code, *capsys.readouterr())

    yield say
    structlog.reset_defaults()  # it was set up to write where nobody reads any more
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two cores of this machine, made once: a job on it takes a fraction of a second."""
    # Loaded here, because the tests of infra/ share this file and run where none of it is installed.
    from pyspark.sql import SparkSession

    from compactor.java_home import find_java_home
    from compactor.spark_settings import JOB_SETTINGS, LOCAL_SETTINGS

    os.environ["JAVA_HOME"] = str(find_java_home(os.environ, Path.home() / ".cache" / "lithify"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("lithify tests").master("local[2]")
    for name, value in {**JOB_SETTINGS, **LOCAL_SETTINGS}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
