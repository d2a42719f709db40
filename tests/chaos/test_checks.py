"""The harness itself: each check must see what it is there for, and a seed must always give the same schedule."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compactor.events.relay import Event
from compactor.model.errors import Invalid
from dispatcher.records.job_run_log import JobRunReleased
from tests.chaos import checks, schedule
from tests.chaos.checks import Found, JobRun, Sent
from tests.chaos.proof import KILL_SECONDS, SENT_MAX, STOP_SECONDS
from tests.chaos.run import PROOF_CLAIM_SECONDS, Options
from tests.chaos.schedule import Away, Back, Kill, Pause, Resume, Start, Terminate
from tests.chaos.tables import SMALL_TABLES, Fed
from tests.fakes.dispatch_desk import Desk
from tests.fakes.memory_sink import MemorySink
from tests.fakes.small_cluster import Fails

TABLE = SMALL_TABLES[0]
TABLES = (TABLE,)
STREAM = (TABLE.table_id, "")


@dataclass
class Past:
    """Two job runs over one table, by a dispatcher to which nothing happened."""

    desk: Desk
    fed: Fed
    sink: MemorySink

    @property
    def found(self) -> Found:
        return checks.read_all(self.desk.state)

    @property
    def sent(self) -> Sent:
        return Sent({"run-0": TABLE, "run-1": TABLE}, [])

    def everything(self) -> list[str]:
        found, lake = self.found, self.desk.lake
        return [
            *checks.outcomes(found, self.sent, {}, 3),
            *checks.no_more_than_sent(found, self.sent),
            *checks.dead_letters([], self.sent, 0),
            *checks.rows(lake, TABLES, self.fed),
            *checks.books(lake, TABLES, self.fed),
            *checks.files(lake, TABLES, self.fed),
            *checks.fenced(found),
            *checks.closed(found),
            *checks.events(found, self.sink.events),
        ]


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    sink = MemorySink()
    desk = Desk(tmp_path, sink=sink)
    fed = Fed(desk.lake)
    for number in range(2):
        fed.append(TABLE, number)
        desk.accept(**TABLE.document(f"run-{number}", 0))
        desk.run()
    yield Past(desk, fed, sink)
    desk.close()


def only(found: Iterator[str]) -> str:
    (sentence,) = found
    return sentence


def test_of_a_quiet_past_no_check_has_anything_to_say(past: Past) -> None:
    assert past.everything() == []


def test_clearing_leaves_what_is_needed(past: Past) -> None:
    assert checks.clear(past.desk.lake, TABLES) == 2, "the compacted file and the index file that round 2 has replaced"
    assert list(checks.rows(past.desk.lake, TABLES, past.fed)) == []


def test_a_row_that_is_lost_doubled_or_old_is_seen(past: Past) -> None:
    position, operation, files = past.fed.deltas[STREAM][-1]
    past.fed.deltas[STREAM][-1] = (position, operation, [[{"id": 1_000, "time": 1, "value": "not there"}, *files[0]]])
    assert "1 rows (('1000', '1', \"'not there'\")) are missing" in only(checks.rows(past.desk.lake, TABLES, past.fed))


def test_a_delta_row_that_did_not_come_in_just_once_is_seen(past: Past) -> None:
    past.fed.rows[STREAM] -= 1
    assert "delta rows were taken in, of" in only(checks.books(past.desk.lake, TABLES, past.fed))


def test_a_named_file_that_was_deleted_is_seen(past: Past) -> None:
    stream = past.desk.lake.table(TABLE.table_id).stream({})
    compacted = stream.load().state.compacted
    assert compacted is not None
    (file,) = compacted.files.values()
    Path(stream.uri_of(file.path).removeprefix("file://")).unlink()
    assert "which is gone" in only(checks.files(past.desk.lake, TABLES, past.fed))


def test_an_instruction_without_a_trace_and_one_that_nobody_sent_are_seen(past: Past) -> None:
    sent = Sent({"run-0": TABLE, "run-9": TABLE}, [])
    assert only(checks.outcomes(past.found, sent, {}, 3)) == "run-9 was sent, and there is no trace of it"
    assert "run-1 was accepted" in only(checks.no_more_than_sent(past.found, sent))


def test_a_failure_is_seen_unless_as_many_attempts_were_killed_as_may_fail(past: Past) -> None:
    past.desk.cluster.behaves = lambda job: Fails(Invalid("no good"))
    past.fed.append(TABLE, 2)
    past.desk.accept(**TABLE.document("run-2", 0))
    past.desk.run()
    sent = Sent({"run-2": TABLE}, [])
    assert only(checks.outcomes(past.found, sent, {}, 3)).startswith("run-2 failed: ")
    assert list(checks.outcomes(past.found, sent, {"job_runs/run-2/sessions/1/plan.json": 3}, 3)) == []


def test_an_open_job_run_and_a_marker_that_was_forgotten_are_seen(past: Past) -> None:
    past.fed.append(TABLE, 2)
    past.desk.accept(**TABLE.document("run-2", 0))
    past.desk.records.mark_over("run-1")
    assert set(checks.closed(past.found)) == {
        "run-2 is still waiting",
        "run-1 is still marked as open",
        "run-2 is still marked as open",
    }


def test_a_write_of_a_holder_that_was_taken_over_is_seen(past: Past) -> None:
    run = past.found.job_runs["run-1"]
    late = replace(run.entries[-1], actions=(JobRunReleased(epoch=7),))
    assert "job_run_released of a holder of another epoch than 1" in only(
        checks.fenced(_found(replace(run, entries=(*run.entries, late))))
    )


def test_a_write_of_an_attempt_that_was_superseded_is_seen(past: Past) -> None:
    run = past.found.job_runs["run-1"]
    ((session_id, entries),) = run.sessions.items()
    first = entries[0]
    later = replace(first, actions=(first.actions[0].model_copy(update={"attempt": 2}),))
    found = list(checks.fenced(_found(replace(run, sessions={session_id: (later, *entries)}))))
    assert found[0] == f"attempt 1 wrote session_started after attempt 2 of {session_id}"


def _found(run: JobRun) -> Found:
    return Found({run.job_run_id: run}, (), ())


def test_an_event_that_is_missing_changed_or_invented_is_seen(past: Past) -> None:
    published = past.sink.events
    assert "was never published" in only(checks.events(past.found, published[1:]))
    changed = published[0].model_copy(update={"time": "1970-01-01T00:00:00.000Z"})
    assert "in 2 different ways" in only(checks.events(past.found, [*published, changed]))
    invented: Event = published[0].model_copy(update={"id": "job_runs/run-0/log#77.0"})
    assert "tells of nothing that is in a log" in only(checks.events(past.found, [*published, invented]))
    assert list(checks.events(past.found, [*published, *published])) == []


def test_dead_letters_that_are_missing_too_many_or_dumb_are_seen() -> None:
    sent = Sent({}, ["rubbish"])
    assert "0 lie on the dead-letter queue" in only(checks.dead_letters([], sent, 0))
    assert "without a reason" in only(checks.dead_letters([("rubbish", [])], sent, 0))
    found = list(checks.dead_letters([("rubbish", ["why"]), ("good", ["why"])], sent, 2))
    assert found[0] == "2 messages are still on the queue"
    assert found[1].startswith("a good message lies on the dead-letter queue: good")


def test_of_two_bodies_with_one_job_run_id_either_may_be_refused_but_one_of_them_is() -> None:
    sent = Sent({}, [], [("first", "second")])
    assert list(checks.dead_letters([("first", ["why"])], sent, 0)) == []
    assert list(checks.dead_letters([("second", ["why"])], sent, 0)) == []
    assert "0 lie on the dead-letter queue" in only(checks.dead_letters([], sent, 0))
    both = checks.dead_letters([("first", ["why"]), ("second", ["why"])], sent, 0)
    assert "2 lie on the dead-letter queue" in only(both)


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_gives_the_same_schedule_each_time_and_all_that_is_harmed_is_up_again_in_the_end(seed: int) -> None:
    steps = Options(seed, 120.0).steps()
    assert steps == Options(seed, 120.0).steps() != Options(seed + 1, 120.0).steps()
    assert {type(step.act) for step in steps} >= {Kill, Pause, Terminate, Away, schedule.Rubbish, schedule.Duplicate}
    down: set[int | str] = set()
    for step in steps:
        match step.act:
            case Kill(number) | Terminate(number) | Pause(number):
                assert number not in down
                down.add(number)
            case Start(number) | Resume(number):
                down.remove(number)
            case Away(service):
                assert service not in down
                down.add(service)
            case Back(service):
                down.remove(service)
            case _:
                continue
    assert down == set()


@pytest.mark.parametrize("seed", range(3))
def test_in_a_proof_each_instruction_is_sent_one_to_five_times_while_dispatchers_are_killed_and_one_stops(
    seed: int,
) -> None:
    options = Options(seed, 180.0, on_s3=True, instructions=200)
    steps = options.steps()
    assert steps == options.steps() != replace(options, seed=seed + 1).steps()
    sent = Counter(step.act.number for step in steps if isinstance(step.act, schedule.Instruct | schedule.Duplicate))
    assert sorted(sent) == list(range(200))
    assert set(sent.values()) == set(range(1, SENT_MAX + 1))
    kills = [step.at_seconds for step in steps if isinstance(step.act, Kill)]
    assert {later - kill for kill, later in itertools.pairwise(kills)} == {KILL_SECONDS}
    stops = [(step.at_seconds, step.act.dispatcher) for step in steps if isinstance(step.act, Pause)]
    for at_seconds, stopped in stops:
        meanwhile = [step.act for step in steps if at_seconds <= step.at_seconds <= at_seconds + STOP_SECONDS]
        assert Resume(stopped) in meanwhile
        assert Kill(stopped) not in meanwhile
    assert len(stops) == 3
    assert STOP_SECONDS > 2 * PROOF_CLAIM_SECONDS
