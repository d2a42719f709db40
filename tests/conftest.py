"""What every test shares: how Hypothesis chooses its examples, the order in which tests run, and one Spark."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# Without the bytecode of an earlier run, each of the processes that tests start compiles all that it imports, and each
# process of pytest-xdist all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# `nohup make test &` ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow machine is no failure. A failure is shrunk and not explained: to explain it, Hypothesis traces every line while
# it shrinks, which takes minutes.
_UNHURRIED = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[each for each in Phase if each != Phase.explain],
)

# A failure is shown as far as it has been shrunk by then, well before pytest's own limit ends the test without it.
engine.MAX_SHRINKING_SECONDS = 60

# Examples follow from the test's own text, so that what fails on one machine fails on every other.
settings.register_profile("ci", _UNHURRIED, derandomize=True, max_examples=40)
# `HYPOTHESIS_PROFILE=dev make test` looks for new examples, and for more of them.
settings.register_profile("dev", _UNHURRIED, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


PYSPARK_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")
"""PySpark does not close the sockets to Java and those of results; only tests that start a Spark accept this."""


EXIT_SECONDS_MAX = 60.0
"""From pytest's closing line to the end of its process."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In one process, the quickest answer first: unit tests, then the other rooms in their own order, Spark last.

    In several processes, as `make test` starts them, the longest begin first, so that none waits for another at the
    end.
    """
    items.sort(key=_expected_wait)
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(PYSPARK_SOCKETS)
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        items.sort(key=_expected_wait, reverse=True)


def pytest_collection_finish() -> None:
    """All that was imported and collected stays to the end: a collection of garbage need not go through it again,
    which takes half a second each time. At its exit the process clears it as ever."""
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    from tests.one_spark import ByFileWithOneSpark  # the environment of infra/ has no xdist

    return ByFileWithOneSpark(config, log) if config.getoption("dist") == "loadfile" else None


def _expected_wait(item: pytest.Item) -> int:
    if item.get_closest_marker("spark") is not None:
        return 3
    if item.get_closest_marker("slow") is not None:
        return 2
    if item.get_closest_marker("servers") is not None:
        return 1
    return 0


def pytest_unconfigure(config: pytest.Config) -> None:
    """A thread that a test left waiting would keep this process for ever: its stack is shown, and the run fails. A
    process of pytest-xdist that has no file left waits for the others, and is ended with them."""
    if hasattr(config, "workerinput"):
        return
    faulthandler.dump_traceback_later(EXIT_SECONDS_MAX, exit=True)


@pytest.fixture(scope="session")
def folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all processes of pytest-xdist together."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Files of this process are not forced to disk: a power failure ends the test as well, and many small files wait
    for the disk longer than for anything else. `fstat` still refuses what is no open file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def no_logging_of_an_earlier_test() -> Iterator[None]:
    """A test that runs a process's main sets up logging, at its level: the next one would capture fewer lines."""
    _configure_test_logging()
    yield
    structlog.reset_defaults()


def _configure_test_logging() -> None:
    """structlog's defaults with plain tracebacks: drawing each frame in colors with its variables is slow."""
    structlog.reset_defaults()
    line = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], line])


@dataclass(frozen=True)
class CommandResult:
    """What a command answered."""

    exit_code: int
    out: str
    err: str


Command = Callable[..., CommandResult]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """`lithify` with these arguments, in this process, with nothing from the environment."""
    from dispatcher.main import run

    def run_command(*arguments: str) -> CommandResult:
        exit_code = run(arguments, {})
        return CommandResult(exit_code, *capsys.readouterr())

    yield run_command
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine, made once: a job on it takes a fraction of a second."""
    # Loaded here, because the tests of infra/ share this file and run where none of it is installed.
    from pyspark.sql import SparkSession

    from compactor.engine.java_home import find_java_home
    from compactor.engine.settings import JOB_SETTINGS, LOCAL_SETTINGS

    os.environ["JAVA_HOME"] = str(find_java_home(os.environ, Path.home() / ".cache" / "lithify"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("lithify tests").master("local[2]")
    local = {"spark.local.dir": str(tmp_path_factory.mktemp("spark"))}
    for name, value in {**JOB_SETTINGS, **LOCAL_SETTINGS, **local}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
