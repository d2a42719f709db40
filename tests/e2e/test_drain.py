"""What happens to work in flight when its dispatcher ends: `lithify dispatch` as a real process, and its successor.

The Spark job is a process that runs its session on the in-process engine; `hold` is a file that keeps it from
committing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dispatcher.records.job_run_events import SessionRetriedEvent
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.records.sessions import SessionState
from tests.e2e.conftest import House, Mailroom, ask_to_stop
from tests.fakes.dispatch_desk import instruction
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

EXIT_SECONDS_MAX = 60
ROUNDS = 30


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
    """Processes that run a session of this test."""
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
    assert mailroom.event_types()[-1] == "job_run.succeeded"


EVENTS_OF_ONE_ATTEMPT = [
    "job_run.accepted",
    "job_run.started",
    "job_run.succeeded",
    "session.launched",
    "session.planned",
    "session.round_completed",
    "session.started",
    "session.succeeded",
]


def test_a_session_that_cannot_is_left_running_and_the_next_dispatcher_attaches_to_it(
    house: House, mailroom: Mailroom, hold: Path
) -> None:
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    spark_home = house.small_spark_home()
    process = house.start("--drain-seconds", "0.5", spark_home=spark_home, hold=hold)
    await_launch(house, job_run_id)
    wait_until(lambda: len(spark_jobs(house)) == 1, every_seconds=0.1)

    ask_to_stop(process)

    assert process.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert len(spark_jobs(house)) == 1
    assert "1 Spark job may run on, for the next dispatcher to attach to" in house.log()
    assert house.job_run(job_run_id).status is JobRunStatus.WAITING
    assert mailroom.waiting() == 0
    assert house.rows() == []

    second = house.start("--until-idle", spark_home=spark_home)
    wait_until(lambda: "session_attached" in house.log())
    hold.unlink()

    assert second.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert only_session(house, job_run_id).attempt == 1
    assert house.rows() == [{"id": 1, "v": "a"}]
    assert house.rounds() == 1
    event_types = mailroom.event_types()
    assert event_types[0] == "job_run.accepted"
    assert event_types[-1] == "job_run.succeeded"
    assert sorted(event_types) == sorted(EVENTS_OF_ONE_ATTEMPT)
    assert len({event.id for event in mailroom.events()}) == len(mailroom.events())
    assert list((house.folder / "work" / "scratch").iterdir()) == []


@pytest.mark.parametrize("how", ["Ctrl-C", "--drain-jobs stop"])
def test_a_session_is_stopped_by_ctrl_c_or_where_that_was_asked_for_and_the_next_dispatcher_finishes_it(
    house: House, mailroom: Mailroom, hold: Path, how: str
) -> None:
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    spark_home = house.small_spark_home()
    options = how.split() if how.startswith("--") else []
    process = house.start("--drain-seconds", "0.5", *options, spark_home=spark_home, hold=hold)
    await_launch(house, job_run_id)
    wait_until(lambda: len(spark_jobs(house)) == 1, every_seconds=0.1)

    process.send_signal(signal.SIGTERM if options else signal.SIGINT)

    assert process.wait(EXIT_SECONDS_MAX) == (0 if options else 130), house.log()
    assert spark_jobs(house) == []
    assert "nothing is left in flight" in house.log()

    hold.unlink()
    second = house.start("--until-idle", spark_home=spark_home)

    assert second.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
    assert only_session(house, job_run_id).attempt == 2
    assert house.rounds() == 1
    event_types = mailroom.event_types()
    assert event_types.count("session.launched") == 2
    assert "session.retried" not in event_types  # it is no failure


def test_after_a_dispatcher_was_killed_another_attaches_once_the_claim_has_run_out(
    house: House, mailroom: Mailroom, hold: Path
) -> None:
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    spark_home = house.small_spark_home()
    process = house.start(spark_home=spark_home, hold=hold)
    await_launch(house, job_run_id)
    process.kill()
    process.wait()
    wait_until(lambda: len(spark_jobs(house)) == 1, every_seconds=0.1)  # nobody was there to stop it

    second = house.start(spark_home=spark_home)
    wait_until(lambda: "session_attached" in house.log())
    hold.unlink()
    wait_until(lambda: house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED)

    ask_to_stop(second)
    assert second.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert house.job_run(job_run_id).epoch == 2
    assert only_session(house, job_run_id).attempt == 1
    assert house.rows() == [{"id": 1, "v": "a"}]
    assert house.rounds() == 1
    # The killed one may not have noted what it had published: that comes again, under the same ids.
    assert set(mailroom.event_types()) == set(EVENTS_OF_ONE_ATTEMPT)
    distinct = list({event.id: event.type for event in mailroom.events()}.values())
    assert [distinct.count(f"lithify.{name}.v1") for name in EVENTS_OF_ONE_ATTEMPT] == [1] * len(EVENTS_OF_ONE_ATTEMPT)


def test_a_cancelled_job_run_has_its_spark_job_stopped(house: House, mailroom: Mailroom, hold: Path) -> None:
    house.append([{"id": 1, "v": "a"}])
    mailroom.send(instruction(job_run_id="unwanted"))
    process = house.start(spark_home=house.small_spark_home(), hold=hold)
    await_launch(house, "unwanted")
    wait_until(lambda: len(spark_jobs(house)) == 1, every_seconds=0.1)

    cancelled = house.lithify("cancel", "unwanted", "--state", str(house.folder / "state"), "--reason", "not now")
    wait_until(lambda: house.job_run("unwanted").status is JobRunStatus.CANCELLED)

    assert cancelled.exit_code == 0
    assert spark_jobs(house) == []
    ask_to_stop(process)
    assert process.wait(EXIT_SECONDS_MAX) == 0
    assert house.rows() == []
    assert mailroom.event_types()[-1] == "job_run.cancelled"
    again = house.lithify("cancel", "unwanted", "--state", str(house.folder / "state"))
    assert (again.exit_code, again.err) == (2, "lithify: job run unwanted is over: it was cancelled\n")


@pytest.mark.spark
@pytest.mark.long
def test_with_a_real_spark_the_rows_are_the_same_wherever_in_any_locale_and_though_its_java_was_killed(
    tmp_path: Path, mailroom: Mailroom
) -> None:
    (tmp_path / "Zustände").mkdir()
    house = House(tmp_path / "Zustände", mailroom)
    house.append([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    house.append([{"id": 1, "v": "c"}, {"id": 3, "v": "d"}])
    house.append([{"id": 2}], operation="delete")
    for number in range(ROUNDS):
        house.append([{"id": 4, "v": str(number)}, {"id": 5, "v": str(number)}])
    job_run_id = mailroom.send(instruction(max_rows_per_round=2))

    process = house.start("--until-idle", "--memory-gib", "2", LC_ALL="C")
    wait_until(lambda: house.rounds() > 0, every_seconds=0.2)  # a look reads the whole log
    (java,) = [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "java"]
    java.kill()

    assert process.wait(EXIT_SECONDS_MAX * 3) == 0, house.log()
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED, house.log()
    last = str(ROUNDS - 1)
    assert house.rows() == [{"id": 1, "v": "c"}, {"id": 3, "v": "d"}, {"id": 4, "v": last}, {"id": 5, "v": last}]
    assert mailroom.event_types()[-1] == "job_run.succeeded"
    outcome = house.job_run(job_run_id).ended
    assert outcome is not None
    assert (outcome.outcome.rows_in, outcome.outcome.rows_out) == (5 + 2 * ROUNDS, 4)
    (retried,) = [event.data for event in mailroom.events() if isinstance(event.data, SessionRetriedEvent)]
    assert "Spark's Java process" in retried.reasons[0]
    assert all(word not in " ".join(retried.reasons) for word in ("Py4J", "ConnectionRefused", "Traceback"))
    assert list((house.folder / "work" / "scratch").iterdir()) == []
    assert len(list((house.folder / "work" / "logs").iterdir())) == 1  # that of the attempt that was killed


def test_a_second_sigterm_does_not_cut_a_drain_short(house: House, mailroom: Mailroom, hold: Path) -> None:
    house.append([{"id": 1, "v": "a"}])
    job_run_id = mailroom.send(instruction())
    process = house.start("--drain-seconds", "60", spark_home=house.small_spark_home(), hold=hold)
    await_launch(house, job_run_id)

    ask_to_stop(process)
    wait_until(lambda: "draining" in house.log())
    for _ in range(3):
        ask_to_stop(process)
        house.clock.sleep(0.2)
    assert process.poll() is None
    assert len(spark_jobs(house)) == 1
    hold.unlink()

    assert process.wait(EXIT_SECONDS_MAX) == 0, house.log()
    assert house.job_run(job_run_id).status is JobRunStatus.SUCCEEDED
