"""What becomes of job runs that have ended: a record, a file for each day, and no more than their logs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow import BufferReader

from compactor.log.keys import EntryObject, WholeCheckpointObject
from compactor.model.errors import Invalid, Unavailable
from compactor.sessions.keys import JobRunFolder
from compactor.storage.object_store import ObjectStore
from dispatcher.operations.status import UNREADABLE, view_all
from dispatcher.outbox.event_publisher import publish_to_the_end
from dispatcher.records.history import NEWEST_MAX, EndedJobRun, History, day_of
from dispatcher.records.history_upkeep import HistoryUpkeep
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import HistoryDayLog, HistoryFile
from tests.fakes.dispatch_desk import Desk, instruction
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_sink import MemorySink
from tests.fakes.memory_store import MemoryStore

DAY_MS = 86_400_000
START_MS = 1_760_000_000_000
TODAY = day_of(START_MS)


def ended(number: int, at_ms: int = START_MS) -> EndedJobRun:
    return EndedJobRun(
        job_run_id=f"run-{number}",
        status="succeeded",
        table="ACME.ORDERS.V1",
        destination="ACME.ORDERS.V1",
        accepted_at_ms=at_ms - 1_000,
        ended_at_ms=at_ms,
        seconds=1.0,
        rows_in=number,
        reasons=("one", "two"),
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def store(clock: ManualClock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def history(store: FaultyStore, clock: ManualClock) -> History:
    return History(store, clock)


@pytest.fixture
def desk(tmp_path: Path, store: FaultyStore, clock: ManualClock) -> Iterator[Desk]:
    desk = Desk(tmp_path, clock=clock, state=store)
    yield desk
    desk.close()


def upkeep(desk: Desk, **settings: float) -> HistoryUpkeep:
    return HistoryUpkeep(desk.records, desk.clock, **settings)


def recorded(history: History) -> dict[str, list[str]]:
    return {day.day: sorted(each.job_run_id for each in day.job_runs) for day in history.read()}


def run_once(desk: Desk, job_run_id: str = "run") -> None:
    desk.append([{"id": 1}])
    desk.accept(job_run_id=job_run_id)
    desk.run()


# ------------------------------------------------------------------------------------------------------- the history


def test_what_is_recorded_is_read_with_all_of_its_fields_by_the_log_and_by_the_file(
    history: History, store: FaultyStore, clock: ManualClock
) -> None:
    full = replace_all(ended(1))
    history.record([full])
    (by_log,) = History(store, clock).read()
    history.close(TODAY)
    store.requests.clear()
    (by_file,) = History(store, clock).read()
    assert by_log.job_runs == by_file.job_runs == (full,)
    assert store.count("read", HistoryFile(TODAY).key) == 1
    assert store.count("read", "history/days/") == 0


def replace_all(record: EndedJobRun) -> EndedJobRun:
    """With a value in every field."""
    values = {str: "text", int: 7, float: 1.5, bool: True}
    update = {
        name: next(value for kind, value in values.items() if kind.__name__ in str(field.annotation))
        for name, field in EndedJobRun.model_fields.items()
        if getattr(record, name) in (None, 0, False)
    }
    return EndedJobRun.model_validate({**record.model_dump(), **update})


def test_a_job_run_is_recorded_once_however_often_it_is_told(history: History, store: FaultyStore) -> None:
    for _ in range(3):
        history.record([ended(1), ended(2)])
    assert recorded(history) == {TODAY: ["run-1", "run-2"]}
    assert store.count("put_if_absent", "history/") == 1


def test_two_dispatchers_that_record_the_same_at_the_same_time_record_it_once(store: FaultyStore) -> None:
    histories = [History(store, ManualClock(START_MS)) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda each=each: [each.record([ended(n)]) for n in range(20)]) for each in histories
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorded(histories[0]) == {TODAY: sorted(f"run-{n}" for n in range(20))}


def test_a_job_run_belongs_to_the_day_of_its_end_in_utc(history: History) -> None:
    midnight = START_MS // DAY_MS * DAY_MS
    history.record([ended(1, midnight - 1), ended(2, midnight)])
    assert recorded(history) == {day_of(midnight - 1): ["run-1"], TODAY: ["run-2"]}


def test_a_closed_day_never_changes_and_what_comes_late_is_on_the_next_day_once(
    history: History, store: FaultyStore, clock: ManualClock
) -> None:
    history.record([ended(1)])
    history.close(TODAY)
    before = store.read(HistoryFile(TODAY).key)
    tomorrow = day_of(START_MS + DAY_MS)
    history.record([ended(1), ended(2)])
    History(store, clock).record([ended(2)])
    history.close(TODAY)
    history.close(tomorrow)
    history.record([ended(2)])
    assert recorded(history) == {TODAY: ["run-1"], tomorrow: ["run-2"]}
    assert store.read(HistoryFile(TODAY).key) == before


def test_a_day_that_was_closed_and_has_no_file_gets_it_from_whoever_closes_it_again(
    history: History, store: FaultyStore, clock: ManualClock
) -> None:
    history.record([ended(1)])
    store.fail("put_if_absent", HistoryFile(TODAY).key)
    with pytest.raises(Unavailable):
        history.close(TODAY)
    assert history.closed_days() == []
    assert recorded(history) == {TODAY: ["run-1"]}
    History(store, clock).close(TODAY)
    assert history.closed_days() == [TODAY]


def test_a_checkpoint_of_a_day_is_a_table_with_a_row_for_each_job_run(history: History, store: FaultyStore) -> None:
    for number in range(16):
        history.record([ended(number)])
    body = store.read(WholeCheckpointObject(HistoryDayLog(TODAY).key, 16).key)
    assert body is not None
    table = pq.read_table(BufferReader(body))
    assert table.column("rows_in").to_pylist() == list(range(16))
    assert table.column("reasons").to_pylist()[0] == ["one", "two"]


def test_a_day_that_is_closed_with_its_16th_entry_stays_closed_for_who_reads_the_checkpoint(
    history: History, store: FaultyStore, clock: ManualClock
) -> None:
    for number in range(15):
        history.record([ended(number)])
    history.close(TODAY)
    other = History(store, clock)
    other.record([ended(99)])
    assert recorded(other)[day_of(START_MS + DAY_MS)] == ["run-99"]


def test_a_file_that_cannot_be_read_costs_a_look_at_the_log(history: History, store: FaultyStore) -> None:
    history.record([ended(1)])
    history.close(TODAY)
    store.overwrite(HistoryFile(TODAY).key, b"rubbish")
    assert recorded(history) == {TODAY: ["run-1"]}


def test_a_day_that_cannot_be_read_at_all_says_why_and_the_others_are_read(
    history: History, store: FaultyStore, clock: ManualClock
) -> None:
    history.record([ended(1), ended(2, START_MS - DAY_MS)])
    store.overwrite(EntryObject(HistoryDayLog(TODAY).key, 1).key, b"rubbish")
    bad, good = History(store, clock).read()
    assert bad.failure is not None
    assert TODAY in bad.failure
    assert [each.job_run_id for each in good.job_runs] == ["run-2"]


def test_more_job_runs_than_an_entry_takes_are_recorded_in_several(history: History, store: FaultyStore) -> None:
    history.record(ended(number) for number in range(1_001))
    assert len(recorded(history)[TODAY]) == 1_001
    assert store.count("put_if_absent", "history/") == 3


def test_records_of_a_busy_day_are_recorded_once_and_read_whole_also_as_columns(
    history: History, store: FaultyStore, clock: ManualClock
) -> None:
    every = [ended(number, START_MS + number) for number in range(2 * NEWEST_MAX + 5)]
    for start in range(0, len(every), 100):
        history.record(every[max(start - 150, 0) : start + 100])  # most of them again
    history.record([every[0], every[NEWEST_MAX], every[-1]])
    for reader in (history, History(store, clock)):
        (day,) = reader.read()
        assert list(day.job_runs) == every[::-1]
    history.close(TODAY)
    assert list(History(store, clock).job_runs_of(TODAY)) == every[::-1]


# --------------------------------------------------------------------------------------------- who records, and when


def test_a_job_run_that_has_ended_is_in_the_history_before_its_marker_goes(desk: Desk, store: FaultyStore) -> None:
    run_once(desk)
    (day,) = desk.records.history.read()
    (record,) = day.job_runs
    state = desk.job_run("run")
    assert state.ended is not None
    assert (record.job_run_id, record.status, record.rows_out) == ("run", "succeeded", 1)
    assert record.seconds == state.ended.seconds
    writes = [key for verb, key in store.requests if verb in ("put_if_absent", "delete")]
    in_history = next(n for n, key in enumerate(writes) if key.startswith("history/days/"))
    gone = max(n for n, key in enumerate(writes) if key.startswith("open_job_runs_by_owner/"))
    assert in_history < gone
    assert desk.records.open_job_run_ids() == []


@pytest.mark.parametrize("own_id", [None, "orders-7"])
def test_a_rejected_document_is_in_the_history_under_its_own_id(desk: Desk, own_id: str | None) -> None:
    message_id = desk.send("{}" if own_id is None else json.dumps({"job_run_id": own_id}))
    desk.take()
    desk.publish(message_id)
    desk.tick_until(lambda: desk.records.open_job_run_ids() == [])
    ((record,),) = (day.job_runs for day in desk.records.history.read())
    assert (record.job_run_id, record.own_id, record.status) == (message_id, own_id or message_id, "rejected")
    assert record.reasons


def test_job_runs_that_end_together_are_recorded_in_one_entry(desk: Desk, store: FaultyStore) -> None:
    desk.append([{"id": 1}])
    for number in range(5):
        desk.accept(job_run_id=f"run-{number}")
    desk.controller.tick()
    desk.tick_until(lambda: desk.controller.job_runs_held == 0 or not desk.publisher.is_idle)
    while desk.controller.job_runs_held:
        desk.controller.tick()
    store.requests.clear()
    desk.run()
    assert store.count("put_if_absent", "history/days/") <= 1
    assert recorded(desk.records.history) == {TODAY: [f"run-{n}" for n in range(5)]}


def test_while_the_history_cannot_be_written_the_marker_stays(desk: Desk, store: FaultyStore) -> None:
    store.fail("put_if_absent", "history/days/", times=None)
    desk.append([{"id": 1}])
    desk.accept(job_run_id="run")
    desk.tick_until(lambda: desk.job_run("run").ended is not None)
    for _ in range(3):
        desk.tick()
    assert desk.records.open_job_run_ids() == ["run"]
    store.heal()
    desk.run()
    assert desk.records.open_job_run_ids() == []
    assert recorded(desk.records.history) == {TODAY: ["run"]}


def test_a_dispatcher_that_is_killed_before_the_record_leaves_the_marker_and_the_next_one_records_it(
    desk: Desk, store: FaultyStore
) -> None:
    """Every write from the end of the job run on is tried as the last one."""
    for point in range(40):
        job_run_id = f"run-{point}"
        desk.append([{"id": point}])
        first = desk.second(owner=f"first-{point}")
        first.accept(job_run_id=job_run_id)
        while desk.job_run(job_run_id).ended is None:
            first.controller.tick()
            first.clock.sleep(0.005)
        store.stop_at(point)
        stopped = False
        try:
            for _ in range(4):
                first.tick()
        except Stopped:
            stopped = True
        store.heal()
        first.close()
        second = desk.second(owner=f"second-{point}")
        second.tick()
        second.move_on(400.0)  # the first one is silent
        second.tick_until(lambda second=second: second.records.open_job_run_ids() == [])  # type: ignore[misc]
        second.close()
        assert recorded(desk.records.history)[TODAY].count(job_run_id) == 1
        if not stopped:
            assert point > 3
            return
    raise AssertionError("it never came to its end")


def test_a_job_run_whose_topic_refuses_is_in_the_history_before_it_is_marked_as_untold(
    tmp_path: Path, store: FaultyStore, clock: ManualClock
) -> None:
    sink = MemorySink(repeat(Invalid("there is no such topic")))
    broken = Desk(tmp_path, clock=clock, state=store, sink=sink)
    broken.append([{"id": 1}])
    broken.accept(job_run_id="run")
    broken.tick_until(lambda: broken.records.unpublished_job_run_ids() == ["run"])
    assert recorded(broken.records.history) == {TODAY: ["run"]}
    broken.close()
    assert publish_to_the_end(broken.records, "run", lambda _: MemorySink())
    assert recorded(broken.records.history) == {TODAY: ["run"]}


def test_what_a_person_tells_to_the_end_is_in_the_history(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.accept(job_run_id="run")
    while desk.job_run("run").ended is None:
        desk.controller.tick()
        desk.clock.sleep(0.005)
    assert publish_to_the_end(desk.records, "run", lambda _: MemorySink())
    assert recorded(desk.records.history) == {TODAY: ["run"]}


# ---------------------------------------------------------------------------------------------------- from time to time


def test_days_that_are_over_get_their_file_those_of_a_dead_dispatcher_too(desk: Desk, history: History) -> None:
    history.record([ended(1), ended(2, START_MS + DAY_MS)])
    desk.clock.sleep(86_400.0)
    midnight_s = (DAY_MS - START_MS % DAY_MS) / 1000
    assert upkeep(desk).close_days() == [TODAY]
    assert upkeep(desk).close_days() == []
    desk.clock.sleep(midnight_s + 3_500.0)
    assert upkeep(desk).close_days() == []  # some events are late
    desk.clock.sleep(200.0)
    assert upkeep(desk).close_days() == [day_of(START_MS + DAY_MS)]


def test_one_day_that_cannot_be_read_keeps_no_other_open(desk: Desk, history: History, store: FaultyStore) -> None:
    history.record([ended(1), ended(2, START_MS - DAY_MS)])
    store.overwrite(EntryObject(HistoryDayLog(day_of(START_MS - DAY_MS)).key, 1).key, b"rubbish")
    desk.clock.sleep(2 * 86_400.0)
    upkeep(desk).close_days()
    assert history.closed_days() == [TODAY]


def test_a_round_closes_and_cleans(desk: Desk) -> None:
    run_once(desk)
    desk.clock.sleep(3 * 86_400.0)
    upkeep(desk, keep_plans_days=1.0).round()
    assert desk.records.history.closed_days() == [TODAY]
    assert desk.records.history.cleaned_days() == [TODAY]


def test_a_day_that_cannot_be_cleaned_keeps_no_other_from_it_and_is_tried_again(desk: Desk, store: FaultyStore) -> None:
    run_once(desk)
    desk.clock.sleep(86_400.0)
    run_once(desk, "second")
    desk.clock.sleep(3 * 86_400.0)
    kept_up = upkeep(desk, keep_plans_days=1.0)
    store.fail("delete", "job_runs/run/", times=None)
    kept_up.round()
    assert (leftovers(store) != [], leftovers(store, "second")) == (True, [])
    assert kept_up.days_to_clean() == [TODAY]
    store.heal()
    kept_up.round()
    assert leftovers(store) == []
    assert kept_up.days_to_clean() == []


def test_a_round_without_anything_to_do_takes_four_requests(desk: Desk, store: FaultyStore) -> None:
    run_once(desk)
    desk.clock.sleep(3 * 86_400.0)
    kept_up = upkeep(desk, keep_plans_days=1.0)
    kept_up.round()
    store.requests.clear()
    kept_up.round()
    assert len(store.requests) <= 4


def leftovers(store: ObjectStore, job_run_id: str = "run") -> list[str]:
    keys = [entry.key for entry in store.list(f"{JobRunFolder(job_run_id).key}/")]
    return [key for key in keys if EntryObject.parse_or_none(key) is None]


def test_plans_heartbeats_and_cursors_go_after_a_time_and_logs_stay(desk: Desk, store: FaultyStore) -> None:
    run_once(desk)
    logs = [entry.key for entry in store.list("job_runs/") if "/log/" in entry.key]
    before = leftovers(store)
    assert {key.rpartition("/")[2] for key in before} == {"plan.json", "heartbeat.json", "published.json"}
    desk.clock.sleep(3 * 86_400.0)
    kept_up = upkeep(desk, keep_plans_days=1.0)
    kept_up.close_days()
    assert upkeep(desk, keep_plans_days=10.0).days_to_clean() == []
    assert kept_up.days_to_clean() == [TODAY]
    assert leftovers(store) == before
    kept_up.clean(TODAY)
    assert leftovers(store) == []
    assert [entry.key for entry in store.list("job_runs/") if "/log/" in entry.key] == logs
    assert kept_up.days_to_clean() == []


def test_a_repeat_of_a_cleaned_job_run_is_told_and_what_was_told_before_is_not_told_again(desk: Desk) -> None:
    run_once(desk)
    upkeep(desk).close_days()
    desk.clock.sleep(3 * 86_400.0)
    kept_up = upkeep(desk, keep_plans_days=1.0)
    kept_up.round()
    published = len(desk.sink.names)
    other = desk.second()
    other.send(instruction(job_run_id="run"))
    other.take()
    other.controller.offer("run")
    other.run()
    assert desk.sink.names[published:] == ["job_run.repeated"]
    assert other.records.open_job_run_ids() == []
    other.close()


def test_what_is_still_to_be_told_keeps_its_cursors_and_is_told_whole_later(
    tmp_path: Path, store: FaultyStore, clock: ManualClock
) -> None:
    broken = Desk(tmp_path, clock=clock, state=store, sink=MemorySink(repeat(Invalid("there is no such topic"))))
    broken.append([{"id": 1}])
    broken.accept(job_run_id="run")
    broken.tick_until(lambda: broken.records.unpublished_job_run_ids() == ["run"])
    broken.close()
    clock.sleep(3 * 86_400.0)
    before = leftovers(store)
    upkeep(broken, keep_plans_days=1.0).round()
    assert leftovers(store) == before
    sink = MemorySink()
    assert publish_to_the_end(JobRunStore(store, clock), "run", lambda _: sink)
    assert {"job_run.accepted", "session.started", "job_run.succeeded"} <= set(sink.names)


def test_a_job_run_that_nobody_told_until_its_day_was_cleaned_is_told_whole(desk: Desk, history: History) -> None:
    desk.append([{"id": 1}])
    desk.accept(job_run_id="run")
    while desk.job_run("run").ended is None:
        desk.controller.tick()
        desk.clock.sleep(0.005)
    desk.close()
    history.record([ended(1)])
    desk.clock.sleep(3 * 86_400.0)
    upkeep(desk, keep_plans_days=1.0).round()
    assert history.cleaned_days() == [TODAY]
    second = desk.second()
    second.tick()
    second.move_on(400.0)  # the first one is silent
    second.run()
    assert {"job_run.accepted", "session.started", "job_run.succeeded"} <= set(desk.sink.names)
    assert recorded(history) == {TODAY: ["run-1"], day_of(START_MS + DAY_MS): ["run"]}
    second.close()


# ------------------------------------------------------------------------------------------------------- the overview


def a_year(history: History, days: int = 365, job_runs: int = 1) -> None:
    first_ms = START_MS - (days - 1) * DAY_MS
    for number in range(days):
        at_ms = first_ms + number * DAY_MS
        history.record(ended(number * job_runs + n, at_ms) for n in range(job_runs))
        if number < days - 1:
            history.close(day_of(at_ms))


@pytest.mark.parametrize("job_runs", [1, 10])
def test_an_overview_of_a_year_takes_400_requests_however_many_job_runs_end_on_a_day(
    history: History, store: FaultyStore, clock: ManualClock, job_runs: int
) -> None:
    """365,000 differ only by the rows of each file."""
    a_year(history, job_runs=job_runs)
    for number in range(46):  # as many entries after the last checkpoint as there can be
        history.record([ended(1_000_000 + number)])
    store.requests.clear()
    views = view_all(JobRunStore(store, clock), clock)
    assert len(views) == 365 * job_runs + 46
    assert store.count("read", "history/days/") == 2 + 15 + 1  # hint, checkpoint, entries, and that there is no other
    assert len(store.requests) <= 400


def test_an_overview_of_the_latest_reads_only_the_days_that_they_ended_on(
    history: History, store: FaultyStore, clock: ManualClock
) -> None:
    a_year(history, days=100, job_runs=3)
    store.requests.clear()
    views = view_all(JobRunStore(store, clock), clock, ended_max=30)
    assert len(views) >= 30
    assert views[0].accepted_at_ms == START_MS - 1_000
    assert store.count("read", "history/job_runs/") <= 32


def test_an_overview_shows_open_job_runs_beside_the_history(desk: Desk, history: History) -> None:
    history.record([ended(1)])
    desk.append([{"id": 1}])
    desk.accept(job_run_id="open")
    assert {view.job_run_id: view.status for view in view_all(desk.records, desk.clock)} == {
        "open": "waiting",
        "run-1": "succeeded",
    }


def test_an_overview_shows_a_day_that_cannot_be_read(desk: Desk, history: History, store: FaultyStore) -> None:
    history.record([ended(1)])
    store.overwrite(EntryObject(HistoryDayLog(TODAY).key, 1).key, b"rubbish")
    (view,) = view_all(JobRunStore(store, desk.clock), desk.clock)
    assert (view.status, view.job_run_id) == (UNREADABLE, f"history of {TODAY}")
    assert TODAY in view.reasons[0]


def test_the_overview_of_a_job_run_is_the_same_by_its_log_and_by_its_record(desk: Desk) -> None:
    run_once(desk)
    by_record = view_all(desk.records, desk.clock)
    desk.records.mark_over("run")
    assert view_all(desk.records, desk.clock) == by_record
