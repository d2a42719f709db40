"""What happens to work in flight when its dispatcher ends: `lithify dispatch` as a real process, and its successor.

The Spark job is a small session behind a real process; `hold` is a file that keeps it from committing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dispatcher.job_runs import JobRunStatus, SessionState
from tests.e2e.conftest import House, Mailroom, ask_to_stop
from tests.fakes.dispatch_desk import instruction
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

EXIT_SECONDS_MAX = 60


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "hold"
    file.touch()
    yield file
    file.unlink(missing_ok=True)


def only_session(house: House, job_run_id: str) -> SessionState:
    (session,) = house.job_run(job_run_id).sessions.values()
    return session


def await_launch(house: House, job_run_id: str, attempt: int = 1) -> None:
    def launched() -> bool:
        sessions = house.job_run(job_run_id).sessions.values()
        return any(session.attempt == attempt and session.cluster is not None for session in sessions)

    wait_until(launched)


def spark_jobs(house: House) -> list[psutil.Process]:
    """Processes that run a small session of this test."""
    state = str(house.folder / "state")
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "tests.fakes.spark_submit" in command and f"file://{state}" in command:
            found.append(process)
    return found


def test_a_session_that_can_end_in_time_is_let_end(house: House, mailroom: Mailroom, hold: Path) -> None:
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    process = house.start("--drain-seconds", "60", spark_home=house.small_spark_home(), hold=hold)
    await_launch(house, job_run_id)

    ask_to_stop(process)
    mailroom.send(instruction(job_run_id="later"))
    hold.unlink()

    assert process.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert house.rows() == [{"id": 1, "v": "a"}]
    assert house.job_run("later").status is JobRunStatus.ABSENT
    assert mailroom.waiting() == 1
    assert mailroom.told()[-1] == "job_run.succeeded"


def test_a_session_that_cannot_is_stopped_and_the_next_dispatcher_finishes_it(
    house: House, mailroom: Mailroom, hold: Path
) -> None:
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    spark_home = house.small_spark_home()
    process = house.start("--drain-seconds", "0.5", spark_home=spark_home, hold=hold)
    await_launch(house, job_run_id)
    assert len(spark_jobs(house)) == 1

    ask_to_stop(process)

    assert process.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert spark_jobs(house) == []
    assert house.job_run(job_run_id).status is JobRunStatus.WAITING
    assert mailroom.waiting() == 0
    assert house.rows() == []

    hold.unlink()
    second = house.start("--until-idle", spark_home=spark_home)

    assert second.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert only_session(house, job_run_id).attempt == 2
    assert house.rows() == [{"id": 1, "v": "a"}]
    assert house.rounds() == 1
    told = mailroom.told()
    assert told[0] == "job_run.accepted"
    assert told[-1] == "job_run.succeeded"
    assert sorted(set(told)) == sorted(
        [
            "job_run.accepted",
            "job_run.started",
            "job_run.succeeded",
            "session.launched",
            "session.planned",
            "session.round_completed",
            "session.started",
            "session.succeeded",
        ]
    )
    assert told.count("session.launched") == 2
    assert len({event.id for event in mailroom.events()}) == len(mailroom.events())


def test_after_a_dispatcher_was_killed_another_takes_over_once_the_claim_has_run_out(
    house: House, mailroom: Mailroom, hold: Path
) -> None:
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    spark_home = house.small_spark_home()
    process = house.start(spark_home=spark_home, hold=hold)
    await_launch(house, job_run_id)
    process.kill()
    process.wait()
    (orphan,) = spark_jobs(house)  # nobody was there to stop it

    second = house.start(spark_home=spark_home)
    wait_until(lambda: house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED)

    hold.unlink()  # the orphan goes on, finds itself superseded, and changes nothing
    orphan.wait(EXIT_SECONDS_MAX)
    ask_to_stop(second)
    assert second.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert house.job_run(job_run_id).epoch == 2
    assert only_session(house, job_run_id).attempt == 2
    assert house.rows() == [{"id": 1, "v": "a"}]
    assert house.rounds() == 1
    assert mailroom.told()[-1] == "job_run.succeeded"


def test_a_cancelled_job_run_has_its_spark_job_stopped(house: House, mailroom: Mailroom, hold: Path) -> None:
    house.append([{"id": 1, "v": "a"}])
    mailroom.send(instruction(job_run_id="unwanted"))
    process = house.start(spark_home=house.small_spark_home(), hold=hold)
    await_launch(house, "unwanted")

    cancelled = house.lithify("cancel", "unwanted", "--state", str(house.folder / "state"), "--reason", "not now")
    wait_until(lambda: house.job_run("unwanted").status is JobRunStatus.CANCELLED)

    assert cancelled.returncode == 0
    assert spark_jobs(house) == []
    ask_to_stop(process)
    assert process.wait(EXIT_SECONDS_MAX) == 0
    assert house.rows() == []
    assert mailroom.told()[-1] == "job_run.cancelled"
    again = house.lithify("cancel", "unwanted", "--state", str(house.folder / "state"))
    assert (again.returncode, again.stderr) == (2, "lithify: job run unwanted is cancelled already\n")


@pytest.mark.spark
def test_with_a_real_spark_the_rows_are_the_same(house: House, mailroom: Mailroom) -> None:
    house.append([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    house.append([{"id": 1, "v": "c"}, {"id": 3, "v": "d"}])
    house.append([{"id": 2}], operation="delete")
    job_run_id = mailroom.send(instruction())

    process = house.start("--until-idle", "--memory-gib", "2")

    assert process.wait(EXIT_SECONDS_MAX * 3) == 0, house.log()
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED, house.log()
    assert house.rows() == [{"id": 1, "v": "c"}, {"id": 3, "v": "d"}]
    assert mailroom.told()[-1] == "job_run.succeeded"
    outcome = house.job_run(job_run_id).ended
    assert outcome is not None
    assert (outcome.outcome.rows_in, outcome.outcome.rows_out) == (5, 2)


def test_a_dispatcher_without_its_queue_says_so_and_ends(house: House) -> None:
    answer = house.lithify("dispatch", *house.options(), "--queue-url", f"{house.mailroom.queue_url}-not")

    assert answer.returncode == 2
    assert "cannot be used" in answer.stderr
    assert "Traceback" not in answer.stderr
