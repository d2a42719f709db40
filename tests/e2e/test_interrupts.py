"""Ctrl-C at any moment of a verb that compacts, with a Spark or without, or its Java killed: nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.maintenance.verify import verify
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]
TABLE = "ACME.ORDERS.V1"
DELTAS = 320
PROGRESS = re.compile(r" *[0-9.]+ s  \(unpartitioned\): ")
INTERRUPTED = "interrupted: what was written until then stays, and all its processes have ended"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Enough to be worth a Spark: a round for each of its deltas."""
    return lake_of(tmp_path / "lake", DELTAS)


def lake_of(folder: Path, deltas: int) -> Path:
    table = DeltaCatalog.open(folder).create_table(TABLE)
    for number in range(deltas):
        table.append({}, pa.table({"id": [number, number + 1], "v": ["a", "b"]}))
    return folder


COMPACT = ("compact", TABLE, "--primary-key", "id", "--max-rows-per-round", "2")


@contextmanager
def running(lake: Path, verb: Sequence[str] = COMPACT, **environment: str) -> Iterator[psutil.Popen]:
    """A verb of `lithify`; whatever it leaves behind is ended."""
    command = [sys.executable, "-c", "from dispatcher.start import main; main()"]
    with psutil.Popen(
        [*command, *verb, "--lake", str(lake)],
        cwd=lake.parent,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LITHIFY_LOG_LEVEL": "error", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        group = process.pid
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def descendants(process: psutil.Popen, *words: str) -> list[psutil.Process]:
    found = []
    for each in process.children(recursive=True):
        try:
            if all(word in " ".join(each.cmdline()) for word in words):
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found


def of_group(group: int) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter():
        try:
            if os.getpgid(each.pid) == group and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return found


def is_importing(process: psutil.Popen) -> bool:
    """Python runs, and has not come to the end of its imports."""
    return bool(process.cpu_times().user > 0.1)


def starts_java(process: psutil.Popen) -> bool:
    return bool(descendants(process, "spark-submit") or descendants(process, "org.apache.spark"))


def has_java(process: psutil.Popen) -> bool:
    return bool(descendants(process, "java", "pyspark-shell"))


def has_workers(process: psutil.Popen) -> bool:
    return bool(descendants(process, "compactor.worker_daemon"))


@pytest.mark.parametrize(
    "moment",
    [is_importing, starts_java, pytest.param(has_java, marks=pytest.mark.long), has_workers],
)
def test_ctrl_c_leaves_no_process_and_says_one_sentence(lake: Path, moment: Callable[[psutil.Popen], bool]) -> None:
    interrupt(lake, moment)


def test_ctrl_c_in_a_session_without_spark_leaves_its_rounds_and_the_next_run_does_the_rest(tmp_path: Path) -> None:
    folder = lake_of(tmp_path / "lake", deltas=40)
    table = DeltaCatalog.open(folder).table(TABLE)
    interrupt(folder, lambda _: table.stream({}).load().state.compacted is not None)
    compact(TABLE, {"id"}, delta_catalog_client=DeltaCatalog.open(folder))
    assert verify(table.stream({})).problems == ()
    assert table.scan().to_table().num_rows == 41


@pytest.mark.parametrize("when", ["it is loaded", "it writes the index"])
def test_ctrl_c_in_a_rehash_leaves_no_process_and_a_sound_index(tmp_path: Path, when: str) -> None:
    folder = lake_of(tmp_path / "lake", deltas=40)  # about as many index files are written
    compact(TABLE, {"id"}, delta_catalog_client=DeltaCatalog.open(folder), hash_bucket_count=1)
    before = index_files(folder)

    def moment(process: psutil.Popen) -> bool:
        return is_importing(process) if when == "it is loaded" else index_files(folder) > before

    interrupt(folder, moment, ("rehash", TABLE, "--hash-bucket-count", "8192"))
    assert verify(DeltaCatalog.open(folder).table(TABLE).stream({})).problems == ()


def index_files(folder: Path) -> int:
    return sum(1 for each in folder.rglob("index/**/*") if each.is_file())


def interrupt(lake: Path, moment: Callable[[psutil.Popen], bool], verb: Sequence[str] = COMPACT) -> None:
    with running(lake, verb) as process:
        wait_until(lambda: moment(process))
        process.send_signal(signal.SIGINT)
        process.wait(60)
        wait_until(lambda: not of_group(process.pid), 30)
        message = process.stderr.read().strip()
        assert (process.returncode, process.stdout.read()) == (130, "")
    assert message.splitlines()[-1] in (f"lithify: {INTERRUPTED}", "lithify: interrupted")
    assert "Traceback" not in message
    assert len(sentences_of(message)) == 1


def test_a_java_process_that_is_killed_in_a_round_is_told_as_such_and_leaves_no_process(lake: Path) -> None:
    with running(lake) as process:
        wait_until(lambda: rounds_committed(lake) > 0)
        (java,) = [child for child in process.children(recursive=True) if child.name() == "java"]
        java.kill()
        process.wait(60)
        wait_until(lambda: not of_group(process.pid), 30)
        message = process.stderr.read().strip()
        assert (process.returncode, process.stdout.read()) == (1, "")
    sentences = sentences_of(message)
    assert len(sentences) == 1, message
    (sentence,) = sentences
    assert sentence.startswith("lithify: Spark's Java process died during ")
    assert sentence.endswith(": if nobody killed it, this machine ran out of memory")
    assert 0 < rounds_committed(lake) < DELTAS


def sentences_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if not PROGRESS.match(line)]


def rounds_committed(lake: Path) -> int:
    entries = DeltaCatalog.open(lake).table(TABLE).stream({}).log.entries()
    return sum(action.action == "round_committed" for entry in entries for action in entry.actions)
