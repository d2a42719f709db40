"""What a dispatcher counts, and the forms in which monitoring reads it."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.model.errors import Fenced, Invalid
from dispatcher.intake.receiver import Receiver, ReceiverSettings
from dispatcher.operations.metrics import EmbeddedMetrics, embedded_lines, parse_namespace, prometheus_text
from dispatcher.records.metrics_samples import (
    CONFLICTS,
    HEARTBEAT_AGE,
    ROWS,
    SESSION_ATTEMPTS,
    SESSION_RATIO,
    SESSION_SECONDS,
    Metric,
    Metrics,
    Sample,
)
from launcher.outcomes import NothingToDo
from tests.fakes.dispatch_desk import Desk, instruction
from tests.fakes.manual_clock import ManualClock
from tests.fakes.small_cluster import Behaviour, Crashes, Fails, Hangs, Succeeds

AGE = Metric("age", "seconds", "How old it is.", counts=False)
TAKEN = Metric("taken", "count", "How many were taken.")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.append([{"id": 1}, {"id": 1}, {"id": 2}])
    yield desk
    desk.close()


def read(metrics: Metrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {each.labels: each.value for each in metrics.samples() if each.metric.name == name}


def label(name: str, value: str) -> tuple[tuple[str, str], ...]:
    return ((name, value),)


def test_a_job_run_s_rows_bytes_times_and_ends_are_counted(desk: Desk) -> None:
    desk.accept()
    desk.run()
    assert read(desk.metrics, "rows") == {
        label("kind", "in"): 3,
        label("kind", "out"): 2,
        label("kind", "deduplicated"): 1,
        label("kind", "deleted"): 0,
    }
    assert read(desk.metrics, "job_runs_ended") == {
        label("status", "succeeded"): 1,
        label("status", "failed"): 0,
        label("status", "cancelled"): 0,
    }
    assert read(desk.metrics, "sessions_ended") == {label("end", "succeeded"): 1}
    assert read(desk.metrics, "job_run_expected_duration")[()] > 0
    assert read(desk.metrics, "job_run_duration")[()] > 0
    assert read(desk.metrics, "written")[()] > 0


@pytest.mark.parametrize(("desired_sla", "late"), [(1, 1), (3_600, 0)])
def test_a_job_run_is_late_if_it_took_longer_than_desired(desk: Desk, desired_sla: int, late: int) -> None:
    desk.accept(desired_sla=desired_sla)
    desk.move_on(60)
    desk.run()
    assert read(desk.metrics, "job_runs_late") == {(): late}


def test_a_job_run_without_a_desired_sla_is_neither_late_nor_in_time(desk: Desk) -> None:
    desk.accept()
    desk.run()
    assert read(desk.metrics, "job_runs_late") == {}


def test_retries_and_conflicts_are_counted_by_kind(desk: Desk) -> None:
    ends: Iterator[Behaviour] = iter([Crashes(exit_code=7), Fails(Fenced("somebody else was faster"))])
    desk.cluster.behaves = lambda _: next(ends, Succeeds())
    desk.accept()
    desk.run()
    assert read(desk.metrics, "session_retries") == {
        label("error_kind", "crashed"): 1,
        label("error_kind", "Fenced"): 1,
    }
    assert read(desk.metrics, CONFLICTS.name) == {(): 1}


def test_the_heartbeat_age_is_that_of_the_session_that_is_quiet_for_longest(tmp_path: Path) -> None:
    clock = ManualClock()
    metrics = Metrics(clock)
    assert read(metrics, HEARTBEAT_AGE.name) == {(): 0}
    metrics.session_progressed("run", "1")
    clock.sleep(40)
    metrics.session_progressed("run", "2")
    clock.sleep(10)
    assert read(metrics, HEARTBEAT_AGE.name) == {(): 50}
    assert read(metrics, "sessions_running") == {(): 2}
    metrics.session_left("run", "1")
    assert read(metrics, HEARTBEAT_AGE.name) == {(): 10}


def test_a_session_that_has_stopped_does_not_run(desk: Desk) -> None:
    desk.cluster.behaves = lambda _: Hangs()
    desk.accept()
    desk.tick_until(lambda: read(desk.metrics, "sessions_running") == {(): 1})
    desk.controller.stop(stops_jobs=True)
    assert read(desk.metrics, "sessions_running") == {(): 0}


def test_the_queue_s_age_grows_while_there_is_no_room_and_is_0_once_it_is_empty(tmp_path: Path) -> None:
    desk = Desk(tmp_path, clock=ManualClock())
    receiver = Receiver(desk.queue, desk.intake, desk.controller, desk.metrics, ReceiverSettings(), desk.clock)
    desk.append([{"id": 1}])
    desk.send(instruction())
    desk.move_on(90)
    receiver.receive_once(threading.Event())
    assert receiver.queue_age_seconds == pytest.approx(90)
    desk.move_on(30)
    assert receiver.queue_age_seconds == pytest.approx(120)
    receiver.receive_once(threading.Event())
    assert receiver.queue_age_seconds == 0
    assert read(desk.metrics, "messages_taken") == {label("outcome", "Accepted"): 1}
    desk.close()


# -------------------------------------------------------------------------------------------------------- forms


READINGS = (
    Sample(TAKEN, 3, (("outcome", "Accepted"),)),
    Sample(TAKEN, 1, (("outcome", "Rejected"),)),
    Sample(AGE, 1.5),
)


def test_prometheus_reads_counters_and_gauges_with_labels_and_units() -> None:
    lines = prometheus_text(READINGS).decode().splitlines()
    assert 'lithify_taken_total{outcome="Accepted"} 3.0' in lines
    assert 'lithify_taken_total{outcome="Rejected"} 1.0' in lines
    assert "# TYPE lithify_taken_total counter" in lines
    assert "# TYPE lithify_age_seconds gauge" in lines
    assert "lithify_age_seconds 1.5" in lines


def test_a_histogram_has_buckets_a_sum_and_a_count() -> None:
    metrics = Metrics(ManualClock())
    for attempts in (1, 1, 3, 12):
        metrics.session_ended(NothingToDo(), attempts)
    metrics.session_ended(NothingToDo(), 0)
    lines = [line for line in prometheus_text(metrics.samples()).decode().splitlines() if "session_attempts" in line]
    assert "# TYPE lithify_session_attempts histogram" in lines
    assert [line.removeprefix("lithify_session_attempts_") for line in lines if line[0] != "#"] == [
        'bucket{le="1.0"} 2.0',
        'bucket{le="2.0"} 2.0',
        'bucket{le="3.0"} 3.0',
        'bucket{le="5.0"} 3.0',
        'bucket{le="10.0"} 3.0',
        'bucket{le="+Inf"} 4.0',
        "count 4.0",
        "sum 17.0",
    ]


def test_times_of_sessions_are_a_histogram_beside_what_was_expected(desk: Desk) -> None:
    desk.accept()
    desk.run()
    found = {each.metric: each for each in desk.metrics.samples()}
    for histogram in (SESSION_SECONDS, SESSION_RATIO, SESSION_ATTEMPTS):
        assert sum(found[histogram].observed) == 1, histogram
        assert len(found[histogram].observed) == len(histogram.buckets) + 1
    assert found[SESSION_ATTEMPTS].value == 1
    seconds, expected = found[SESSION_SECONDS].value, read(desk.metrics, "session_expected_duration")[()]
    assert found[SESSION_RATIO].value == pytest.approx(seconds / expected)


def test_cloudwatch_reads_a_line_for_each_set_of_dimensions() -> None:
    found = [json.loads(line) for line in embedded_lines(READINGS, 1_760_000_000_000, {"Owner": "first"}, "Lithify")]
    assert [each.get("Outcome") for each in found] == ["Accepted", "Rejected", None]
    for each in found:
        (directive,) = each["_aws"]["CloudWatchMetrics"]
        assert (directive["Namespace"], each["_aws"]["Timestamp"]) == ("Lithify", 1_760_000_000_000)
        for metric in directive["Metrics"]:
            assert isinstance(each[metric["Name"]], int | float)
        assert all(dimension in each for dimension in directive["Dimensions"][0])
    assert found[2]["_aws"]["CloudWatchMetrics"][0]["Metrics"] == [{"Name": "Age", "Unit": "Seconds"}]
    assert found[0]["Owner"] == "first"
    assert "Owner" not in found[0]["_aws"]["CloudWatchMetrics"][0]["Dimensions"][0]


def test_a_line_tells_how_much_a_count_has_grown_since_the_line_before() -> None:
    clock, out, value = ManualClock(), io.StringIO(), [0.0]
    metrics = EmbeddedMetrics("Lithify", 60, lambda: [Sample(TAKEN, value[0]), Sample(AGE, 7)], "first", clock, out)
    for now in (3, 3, 10):
        value[0] = now
        metrics.write_when_due()
        clock.sleep(60)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(each["Taken"], each["Age"]) for each in found] == [(3, 7), (0, 7), (7, 7)]


def test_lines_name_the_namespace_that_was_asked_for() -> None:
    out = io.StringIO()
    EmbeddedMetrics("Lithify/dev", 60, lambda: READINGS, "first", ManualClock(), out).write()
    for line in out.getvalue().splitlines():
        (directive,) = json.loads(line)["_aws"]["CloudWatchMetrics"]
        assert directive["Namespace"] == "Lithify/dev"


@pytest.mark.parametrize("text", ["", "AWS/Lithify", "a b", "x" * 256])
def test_a_namespace_that_cloudwatch_does_not_take_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is no namespace of CloudWatch"):
        parse_namespace(text)


def test_lines_are_written_no_more_often_than_said_and_not_at_all_unless_asked() -> None:
    clock, out = ManualClock(), io.StringIO()
    metrics = EmbeddedMetrics("Lithify", 60, lambda: READINGS, "first", clock, out)
    for _ in range(59):
        metrics.write_when_due()
        clock.sleep(1)
    assert len(out.getvalue().splitlines()) == 3
    silent = io.StringIO()
    EmbeddedMetrics(None, 60, lambda: READINGS, "first", clock, silent).write_when_due()
    assert silent.getvalue() == ""


def test_every_metric_has_a_help_and_a_name_that_both_services_take(desk: Desk) -> None:
    desk.accept()
    desk.run()
    for sample in desk.metrics.samples():
        assert sample.metric.help.endswith(".")
        assert sample.metric.name.replace("_", "").isalpha()
    assert ROWS.name in {sample.metric.name for sample in desk.metrics.samples()}
