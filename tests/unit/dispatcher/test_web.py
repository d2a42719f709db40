"""The page, its API and its doors: what it shows is what there is, and it only reads."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import threading
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest
from markupsafe import escape

from compactor.lake import DeltaCatalog
from compactor.log.durable_log import Entry
from compactor.log.keys import EntryObject
from compactor.model.errors import Denied, Invalid, Unavailable
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from dispatcher.cli.serve import serve
from dispatcher.cli.table_places import LakePlace
from dispatcher.clients import OPTIONS_FROM_ENVIRONMENT
from dispatcher.operations.retry import begin_retry, plan_retry
from dispatcher.options.documents import secret_in
from dispatcher.records.job_run_log import CancelRequested, JobRunAction
from dispatcher.records.keys import HistoryDayLog, LiveIngest, PausedObject
from dispatcher.records.lag_samples import LagSample, write_sample
from dispatcher.records.liveness import INGEST_SILENT_SECONDS, LivenessSignal
from dispatcher.records.sessions import SessionEnded, SessionLaunched, SessionLaunching
from dispatcher.web.charts import seconds_words
from dispatcher.web.job_run_course import attempts_of
from dispatcher.web.readings import STATE_REQUESTS_A_SECOND, Now
from dispatcher.web.rendering import PAGES, Renderer
from dispatcher.web.shared import NEXT_READING_MS, Reading
from launcher.outcomes import NothingToDo
from launcher.spark_job import ClusterReference
from tests.fakes.dispatch_desk import TABLE
from tests.fakes.served_page import HOST, Served
from tests.fakes.small_cluster import Crashes, Fails, Hangs, Succeeds
from tests.roles.policies import GOLDEN
from tests.unit.dispatcher.test_session_finding import WIDE, append_days

REQUESTS_AT_FIRST = 50
"""What was never read is read at once."""

STRANGE = "<script>alert(1)</script>\u202e" + "x" * 150


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    page = Served(tmp_path)
    yield page
    page.desk.close()


def test_every_page_is_read_without_a_script_and_asks_no_other_host(served: Served) -> None:
    job_run_id = served.compacted()
    for path in (*PAGES, f"/job-runs/{job_run_id}", f"/tables/{TABLE}"):
        html = served.page(path)
        assert "<h1>" in html
        assert re.findall(r"(?:src|href)=\"(?!/|#|data:)[^\"]+", html) == []
        assert re.findall(r" style=|<script(?! src=\"/static/)| on\w+=\"", html) == []
    assert job_run_id in served.page("/")
    assert TABLE in served.page("/tables")


def test_the_chart_of_a_job_run_has_the_seconds_of_its_status(served: Served) -> None:
    job_run_id = served.compacted()
    answer = served.client.get(f"/api/v1/job_runs/{job_run_id}").json()
    status = served.readings.job_run(job_run_id).value.view.model_dump(mode="json")
    assert {name: answer[name] for name in status} == status
    html = served.page(f"/job-runs/{job_run_id}")
    assert html.count('<rect class="ended"') == len(status["sessions"]) == 1
    assert f"{seconds_words(status['sessions'][0]['seconds'])}</text>" in html


def test_a_job_run_shows_each_attempt_the_plans_arithmetic_and_its_events(served: Served) -> None:
    crash = iter([Crashes()])
    served.desk.cluster.behaves = lambda job: next(crash, Succeeds())
    job_run_id = served.compacted()
    run = served.readings.job_run(job_run_id).value
    ((session_id, course),) = run.courses.items()
    assert [attempt.ended_well for attempt in course.attempts] == [False, True]
    assert [each.number for each in course.rounds] == [1]
    html = served.page(f"/job-runs/{job_run_id}")
    assert html.count('<rect class="failed"') == html.count('<rect class="ended"') == 1
    assert "<caption><span>Of sessions that were tried more than once, or failed</span></caption>" in html
    plan = run.state.sessions[session_id].plan
    assert plan is not None
    for line in plan.arithmetic:
        assert str(escape(line)) in html
    answer = served.client.get(f"/api/v1/job_runs/{job_run_id}").json()
    served.desk.publish(job_run_id)
    told = [each.id for each in served.desk.sink.events if each.id in {event["id"] for event in answer["events"]}]
    assert [each["id"] for each in answer["events"]] == list(dict.fromkeys(told))
    assert answer["result"]["rows_out"] == 1


def test_a_job_run_that_was_run_again_and_its_retry_name_each_other(served: Served) -> None:
    served.desk.cluster.behaves = lambda job: Fails(Invalid("the input is bad"))
    job_run_id = served.compacted()
    assert f"lithify retry {job_run_id} --state" in served.page("/")
    rerun = plan_retry(served.desk.records, lambda *_: served.desk.lake, job_run_id, served.clock)
    begin_retry(served.desk.records, rerun)
    served.clock.sleep(60.0)
    assert f'It was run again as <a href="/job-runs/{rerun.job_run_id}">' in served.page(f"/job-runs/{job_run_id}")
    assert f'It runs <a href="/job-runs/{job_run_id}">' in served.page(f"/job-runs/{rerun.job_run_id}")
    served.clock.sleep(60.0)
    assert "lithify retry" not in served.page("/")


def test_an_attempt_that_another_dispatcher_found_gone_ends_where_the_next_one_begins() -> None:
    def launching(attempt: int, at_ms: int) -> SessionLaunching:
        return SessionLaunching(epoch=attempt, session_id="s", attempt=attempt, at_ms=at_ms, name="n", place="p")

    launched = SessionLaunched(
        epoch=1, session_id="s", attempt=1, cluster="c", reference=ClusterReference(kind="k", ids={})
    )
    ended = SessionEnded(epoch=2, session_id="s", end=NothingToDo(), at_ms=9_000)
    actions: list[JobRunAction] = [launching(1, 1_000), launched, launching(2, 6_000), ended]
    entries = [
        Entry(number=number, entry_id=str(number), at_ms=1_000 * number, actions=(action,))
        for number, action in enumerate(actions, 1)
    ]
    first, second = attempts_of(entries)["s"]
    assert (first.launching_at_ms, first.launched_at_ms, first.ended_at_ms, first.ended_well) == (
        1_000,
        2_000,
        6_000,
        None,
    )
    assert (second.launched_at_ms, second.ended_at_ms, second.ended_well) == (None, 9_000, True)


def test_why_a_job_run_waits_stands_on_the_first_page(served: Served) -> None:
    served.desk.append([{"id": 1}])
    served.desk.accept(job_run_id="waits")
    html = served.page("/")
    assert "No dispatcher runs on this state" in html
    assert "waits" in html
    assert '<span class="chip waiting">waiting</span>' in html


def test_a_dispatcher_that_is_silent_comes_before_all_and_one_that_is_alive_is_no_trouble(served: Served) -> None:
    LivenessSignal(served.state, "alive", 300.0, served.clock, lambda: 3).signal_when_due()
    html = served.page("/")
    assert "No trouble." in html
    assert "3 running" in html
    served.clock.sleep(3_600.0)
    LivenessSignal(served.state, "later", 300.0, served.clock, lambda: 0).signal_when_due()
    troubles = [each["what"] for each in served.client.get("/api/v1/now").json()["troubles"]]
    assert troubles == [
        "Dispatcher alive has been silent for 1 h.",
        "No worker of dispatcher later runs: its small sessions have to start a Spark job.",
    ]
    html = served.page("/")
    assert html.index("has been silent for 1 h") < html.index("<h2>Open job runs")


def test_decisions_that_the_queue_does_not_take_are_a_trouble_until_it_does(served: Served) -> None:
    def sample(unsent: int) -> None:
        at_ms = served.clock.now_ms()
        of_table = LagSample(at_ms, "file:///lake", "ACME.A.V1", 1, 9.0, None, 0, 0, 0, 0, 0, 0, 0, 0, None, unsent)
        write_sample(served.state, "file:///lake", at_ms, [of_table])
        served.clock.sleep(60.0)

    sample(unsent=2)
    html = served.page("/")
    assert "takes nothing from the keeper of file:///lake: 2 decisions not sent" in html
    assert "lithify keeper log --lake" in html
    sample(unsent=0)
    assert "takes nothing" not in served.page("/")


def test_a_keeper_that_looks_no_more_is_missed_for_a_day(served: Served) -> None:
    write_sample(served.state, "file:///lake", served.clock.now_ms(), [])
    assert "No keeper has looked" not in served.page("/")
    assert ">file:///lake</bdi>" in served.page("/")
    served.clock.sleep(3_600.0)
    assert "No keeper has looked at the tables of file:///lake for 1 h" in served.page("/")
    served.clock.sleep(86_400.0)
    assert "file:///lake" not in served.page("/")


def test_an_ingest_that_signals_is_shown_and_is_no_dispatcher(served: Served) -> None:
    signal = LivenessSignal(served.state, "takes-files", INGEST_SILENT_SECONDS, served.clock, signer=LiveIngest)
    signal.signal_when_due()
    assert [each.owner for each in served.readings.now().value.ingests] == ["takes-files"]
    assert served.readings.now().value.dispatchers == ()
    served.clock.sleep(3_600.0)
    assert "Ingest takes-files has been silent for 1 h" in served.page("/")
    signal.stop()
    served.clock.sleep(3_600.0)
    assert "takes-files" not in served.page("/")


def test_a_command_to_copy_does_what_it_says_whatever_the_id(served: Served) -> None:
    served.desk.append([{"id": 1}])
    job_run_id = served.desk.accept(job_run_id="a; touch x $(b) 'c'")
    served.desk.records.pauses.pause(PausedObject("job_runs", job_run_id), "by hand")
    (trouble,) = (each for each in served.client.get("/api/v1/now").json()["troubles"] if "Paused" in each["what"])
    words = ["lithify", "resume", job_run_id, "--state", served.state.location.root_uri]
    assert shlex.split(trouble["command"]) == words
    assert "Paused: job run a; touch x" in served.page("/")


def test_a_job_run_that_runs_is_shown_with_what_is_done_of_its_sessions(served: Served) -> None:
    served.desk.cluster.behaves = lambda job: Hangs()
    served.desk.append([{"id": 1}])
    job_run_id = served.desk.accept()
    sessions = served.desk.job_run(job_run_id).sessions
    served.desk.tick_until(lambda: all(each.in_flight for each in served.desk.job_run(job_run_id).sessions.values()))
    (session,) = served.readings.now().value.sessions[job_run_id]
    assert [session.session_id] == list(sessions)
    assert session.status == "running"
    assert re.search(r"<progress max=\"100\" value=\"0\.?0?\" aria-label=\"done of its work\">", served.page("/"))
    chart = served.page(f"/job-runs/{job_run_id}")
    bar = re.search(r'<rect class="running" x="([\d.]+)" ', chart)
    tick = re.search(r'<line class="expected" x1="([\d.]+)"', chart)
    assert bar is not None
    assert tick is not None
    assert float(tick[1]) > float(bar[1]), "a machine that is busy may be at the expected end by now"


def test_a_session_that_was_never_launched_waits_no_longer_than_its_job_run_took(served: Served) -> None:
    desk = served.desk
    desk.cluster.behaves = lambda job: Hangs()
    desk.append_days("ACME.DAYS.V1", 3)
    job_run_id = desk.accept(source_table_id="ACME.DAYS.V1")
    desk.tick_until(lambda: sum(bool(each.in_flight) for each in desk.job_run(job_run_id).sessions.values()) == 2)
    served.clock.sleep(60.0)
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not now")])
    desk.run()
    bars = r'<rect class="(cancelled|failed|waiting)".*?><title>(.*?)</title>'
    at_once = re.findall(bars, served.page(f"/job-runs/{job_run_id}"))
    took = seconds_words(served.readings.job_run(job_run_id).value.view.seconds)
    assert at_once.count(("waiting", f"waiting: {took}")) == 1
    assert [kind for kind, _ in at_once if kind != "waiting"] == ["cancelled", "cancelled"]
    served.clock.sleep(360_000.0)
    assert re.findall(bars, served.page(f"/job-runs/{job_run_id}")) == at_once


def test_a_session_of_a_shard_that_runs_does_not_wait(served: Served) -> None:
    desk = served.desk
    desk.cluster.behaves = lambda job: Hangs()
    append_days(DeltaCatalog(desk.lake.store, served.clock))
    job_run_id = desk.accept(source_table_id=WIDE)
    desk.tick_until(lambda: desk.cluster.running == 2)
    chart = served.page(f"/job-runs/{job_run_id}").partition("<svg")[2].partition("</svg>")[0]
    assert chart.count('<rect class="running"') == 2
    assert "Shards that have ended" not in served.page(f"/job-runs/{job_run_id}")
    desk.records.log(job_run_id).append(lambda _: [CancelRequested(reason="not now")])
    desk.run()
    served.clock.sleep(60.0)
    html, answer = (served.client.get(f"{path}/{job_run_id}") for path in ("/job-runs", "/api/v1/job_runs"))
    assert "Sessions of its shards are shown while they run" in html.text
    view, ended = answer.json()["shards"], answer.json()["ended_shards"]
    assert len(ended) == view["ended"] == view["count"] > 1
    assert {each["outcome"]["status"] for each in ended} == {"cancelled"}
    bars = re.findall(r'<rect class="cancelled" x="([\d.]+)".*?<title>\d+ sessions?, cancelled: ([^<]*)<', html.text)
    assert [took for _, took in bars] == [
        seconds_words((each["ended_at_ms"] - each["opened_at_ms"]) / 1000) for each in ended
    ]
    assert len({x for x, _ in bars}) == 1, "all were opened at once"
    rows = re.findall(rf'<tr><th scope="row">(\d+) of {view["count"]}</th>', html.text)
    assert rows == [str(each["number"] + 1) for each in ended]


def test_a_rejected_document_has_its_reasons_and_the_command_that_sends_it_again(served: Served) -> None:
    served.desk.append([{"id": 1}])
    message_id = served.desk.send('{"job_run_id": "wrong", "source_table_id": "ACME.NONE.V1"}')
    served.desk.take()
    html = served.page("/dead-letters")
    assert "<strong>1</strong> message on the dead-letter queue" in html
    assert ">wrong</bdi></a>" in html
    (view,) = (each for each in served.readings.history().value if each.status == "rejected")
    for reason in view.reasons:
        assert str(escape(reason)) in html.replace("<code>", "`").replace("</code>", "`")
    assert f"lithify redrive --queue-url &#39;memory queue&#39; --id {message_id}" in html
    assert "1 document was rejected within a day" in served.page("/")


def test_an_id_of_any_characters_is_text_and_a_link(served: Served) -> None:
    served.desk.append([{"id": 1}])
    served.desk.accept(job_run_id=STRANGE)
    html = served.page("/")
    assert "<script>alert" not in html
    assert "\u202e" not in html
    (link,) = re.findall(r'<h3>\s*<a href="(/job-runs/[^"]+)"', html)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e" in served.page(link)


def test_what_a_sentence_quotes_is_shown_as_a_command_and_stays_text(served: Served) -> None:
    html = served.client.get("/job-runs/%60%3Cb%3E%60").text
    assert "<code>&lt;b&gt;</code>" in html
    assert "<code>lithify status</code> lists those there are" in html
    assert "<b>" not in html


@pytest.mark.parametrize(
    "path", ["/job-runs/none", "/tables/A.NONE.V1", "/api/v1/job_runs/none", "/api/v1/tables/A.NONE.V1"]
)
def test_what_is_not_there_is_said_with_what_to_do(served: Served, path: str) -> None:
    answer = served.client.get(path)
    assert answer.status_code == 404
    assert "there is no" in answer.text.lower()
    assert any(what in answer.text for what in ("lithify status", "check its id"))


@pytest.mark.parametrize(
    "strange", ["x" * 300, "x" * 3_000, "\u05d0" * 3_000, "a\0b", "a/b", "../../etc", "\u202e" * 200]
)
def test_an_id_of_any_length_is_unknown_and_no_answer_has_a_path_of_the_server(tmp_path: Path, strange: str) -> None:
    (tmp_path / "state").mkdir()
    served = Served(tmp_path, state=open_store(parse_location(str(tmp_path / "state"))))
    served.desk.append([{"id": 1}])
    asked, of_table = quote(strange, safe=""), ("", "/log", "/lag")
    for path in (
        f"/job-runs/{asked}",
        f"/api/v1/job_runs/{asked}",
        *(f"/tables/{asked}{each}" for each in of_table[:2]),
        *(f"/api/v1/tables/{asked}{each}" for each in of_table),
        f"/tables/{TABLE}/log?partition={asked}",
        f"/api/v1/tables/{TABLE}/log?partition=day%3D{asked}",
        f"/iceberg/v1/config?warehouse={asked}",
        f"/iceberg/v1/namespaces/{asked}",
        f"/iceberg/v1/namespaces/ACME/tables/{asked}",
        f"/static/{asked}",
        f"/{asked}",
    ):
        answer = served.client.get(path)
        assert answer.status_code == 404, path
        assert str(tmp_path) not in answer.text, path
    served.desk.close()


@pytest.mark.parametrize("path", ["/nothing", "/api/v1/nothing", "/static/nothing.css"])
def test_a_page_that_there_is_not_is_said_to_people_and_to_programs(served: Served, path: str) -> None:
    answer = served.client.get(path)
    assert answer.status_code == 404
    assert "there is no" in answer.text.lower()
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_a_queue_that_cannot_be_asked_is_a_trouble_and_no_more(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise Denied("no right to ask for its attributes")

    monkeypatch.setattr(served.desk.queue, "messages_left", refused)
    job_run_id = served.compacted()
    for path in ("/", "/dead-letters"):
        assert "The queue cannot be asked: no right to ask for its attributes" in served.page(path)
    assert job_run_id in served.page("/")


def test_a_snapshot_of_a_lake_without_rights_has_the_rest(served: Served) -> None:
    job_run_id = served.compacted()
    for verb in ("read", "list", "list_folders"):
        served.lake_store.fail(verb, times=None, error=Denied)
    html = Renderer(served.readings).snapshot()
    assert job_run_id in html
    assert "Tables: the store failed before" in html


def test_nothing_is_written_and_other_hosts_and_callers_are_refused(tmp_path: Path) -> None:
    served = Served(tmp_path, token="secret")
    served.desk.close()
    bearer = {"Authorization": "Bearer secret"}
    assert served.client.get("/").status_code == 401
    for wrong in ("Bearer other", "secret", "Basic secret", "Bearer"):
        assert served.client.get("/", headers={"Authorization": wrong}).status_code == 401
    assert served.client.get("/", headers={"Authorization": "bearer secret", "Host": HOST.upper()}).status_code == 200
    assert served.client.get("/", headers=bearer).status_code == 200
    assert served.client.get("/", headers={**bearer, "Host": "evil.example"}).status_code == 403
    refused = served.client.post("/", headers=bearer)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    of_the_catalog = served.client.options("/iceberg/v1/config", headers=bearer)
    assert (of_the_catalog.status_code, of_the_catalog.json()["error"]["code"]) == (405, 405)
    denied = served.client.post("/iceberg/v1/namespaces", headers=bearer)
    assert denied.json()["error"]["type"] == "ForbiddenException"
    unknown = served.client.get("/iceberg/v1/config")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (401, "NotAuthorizedException")
    for answer in (refused, denied, served.client.get("/", headers=bearer)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "secret" not in answer.text


def test_a_page_that_has_not_changed_is_not_sent_again(served: Served) -> None:
    first = served.client.get("/history")
    again = served.client.get("/history", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    compressed = served.client.get("/history", headers={"If-None-Match": f"W/{first.headers['etag']}"})
    assert compressed.status_code == 304, "a proxy that compresses says that it has the same"


def test_all_viewers_together_cost_two_requests_a_second(served: Served) -> None:
    job_run_id = served.compacted()
    before = len(served.state.requests)
    paths = ["/", f"/job-runs/{job_run_id}"]
    begun = served.clock.monotonic_seconds()
    while served.clock.monotonic_seconds() - begun < 600:
        for viewer in range(4):
            served.page(paths[viewer % 2])
        served.clock.sleep(5.0)
    requests = len(served.state.requests) - before
    readings = 600 / 60
    assert readings <= requests <= 600 * STATE_REQUESTS_A_SECOND + REQUESTS_AT_FIRST


def test_a_store_that_is_away_leaves_the_page_with_since_when(served: Served) -> None:
    job_run_id = served.compacted()
    LivenessSignal(served.state, "alive", 300.0, served.clock).signal_when_due()
    assert "No trouble" in served.page("/")
    served.clock.sleep(3_600.0)
    for verb in ("read", "list", "list_folders"):
        served.state.fail(verb, times=None)
    first = served.page("/")
    assert "Nothing newer can be read since" in first
    assert "silent" not in first, "it was alive when it could be read"
    assert "No trouble" not in first
    assert job_run_id in first
    served.clock.sleep(3_600.0)
    since = re.search(r"can be read since <time datetime=\"([^\"]+)", first)
    assert since is not None
    assert since[0] in served.page("/")
    assert served.client.get("/api/v1/now").json()["failure"] is not None
    assert served.client.get("/history").status_code == 503, "it was never read"
    served.state.heal()
    served.clock.sleep(3_600.0)
    assert "can be read since" not in served.page("/")


def test_silence_is_judged_now_unless_what_was_read_is_too_old_to_say() -> None:
    reading = Reading(None, 1_000)
    assert reading.silence_at_ms(5_000) == 5_000
    assert reading.silence_at_ms(600_000) == 1_000 + NEXT_READING_MS
    assert replace(reading, failure="the store is away").silence_at_ms(5_000) == 1_000


def test_a_day_that_cannot_be_read_is_a_trouble_and_no_open_job_run(served: Served) -> None:
    served.compacted()
    (day,) = served.desk.records.history.days()
    served.state.overwrite(EntryObject(HistoryDayLog(day).key, 1).key, b"rubbish")
    html = served.page("/")
    assert f"history of {day} cannot be read" in html
    assert "<strong>0</strong> open job runs" in html
    assert f"history of {day} cannot be read" in served.page("/history")


def test_a_job_run_that_is_named_like_a_day_of_the_history_is_an_open_one(served: Served) -> None:
    served.desk.append([{"id": 1}])
    served.desk.accept(job_run_id="history of sales")
    assert "<strong>1</strong> open job run" in served.page("/")


def test_a_job_run_that_ends_while_it_is_read_is_listed_once(served: Served) -> None:
    served.desk.append([{"id": 1}])
    job_run_id = served.desk.accept()
    before = served.readings.now()
    served.desk.run()
    served.readings.now = lambda: before  # type: ignore[method-assign]  # as after events, which say so of the history
    listed = served.client.get("/api/v1/job_runs").json()["job_runs"]
    assert [(each["job_run_id"], each["status"]) for each in listed] == [(job_run_id, "succeeded")]


def test_the_server_is_live_while_all_of_its_threads_wait_for_the_store(served: Served) -> None:
    asked, may_go_on = threading.Event(), threading.Event()
    answers: list[object] = []

    async def ask(path: str) -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request"}

        async def send(message: MutableMapping[str, object]) -> None:
            answers.append(message.get("status"))

        headers = [(b"host", HOST.encode())]
        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
        await served.app(scope, receive, send)

    async def ask_both() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        async with anyio.create_task_group() as others:
            others.start_soon(ask, "/")
            while not asked.is_set():
                await anyio.sleep(0)
            with anyio.move_on_after(10):
                await ask("/live")
            may_go_on.set()

    def waits() -> Reading[Now]:
        asked.set()
        may_go_on.wait(60)
        raise Unavailable("no answer")

    served.readings.now = waits  # type: ignore[method-assign]  # a store that hangs
    anyio.run(ask_both)
    assert answers[0] == 200


def test_a_snapshot_needs_nothing_beside_it(served: Served) -> None:
    job_run_id = served.compacted()
    html = Renderer(served.readings).snapshot()
    assert job_run_id in html
    assert TABLE in html
    assert "/static/" not in html
    assert "href" not in html
    assert "<script" not in html


def test_the_api_lists_open_job_runs_before_those_that_have_ended(served: Served) -> None:
    ended, opened = served.compacted(job_run_id="first"), served.desk.accept(job_run_id="second")
    listed = served.client.get("/api/v1/job_runs").json()["job_runs"]
    assert [each["job_run_id"] for each in listed] == [opened, ended]


def test_the_api_has_what_the_pages_show_beside_the_status(served: Served) -> None:
    job_run_id = served.compacted()
    run = served.client.get(f"/api/v1/job_runs/{job_run_id}").json()
    (session,) = run["sessions"]
    (attempt,) = run["courses"][session["session_id"]]["attempts"]
    assert (attempt["number"], attempt["ended_well"]) == (1, True)
    assert [each["session_id"] for each in run["plans"]] == [session["session_id"]]
    assert run["plans"][0]["arithmetic"]
    (taken,) = served.client.get("/api/v1/prediction").json()["job_runs"]
    assert taken["job_run_id"] == job_run_id
    assert taken["times"] == pytest.approx(taken["seconds"] / taken["expected_sla"], rel=0.01)
    served.desk.lake.table(TABLE).set_properties({"primary_keys": ["id"], "compact_when": "nightly"})
    table = served.client.get(f"/api/v1/tables/{TABLE}").json()
    assert table["properties"]["compact_when"]
    assert table["privacy_waits"][0]["what"].startswith("Files that the last round replaced")


def test_the_api_is_described_and_answers_as_it_is_described(served: Served) -> None:
    job_run_id = served.compacted()
    described = served.client.get("/api/openapi.json").json()
    assert set(described["paths"]) == {
        "/api/v1/now",
        "/api/v1/job_runs/{job_run_id}",
        "/api/v1/job_runs",
        "/api/v1/dead_letters",
        "/api/v1/money",
        "/api/v1/prediction",
        "/api/v1/tables",
        "/api/v1/tables/{table_id}",
        "/api/v1/tables/{table_id}/lag",
        "/api/v1/tables/{table_id}/log",
    }
    for path, operations in described["paths"].items():
        assert set(operations) == {"get"}
        asked = path.format(job_run_id=job_run_id, table_id=TABLE)
        answer = served.client.get(asked)
        assert str(answer.status_code) in operations["get"]["responses"]
        assert {"read_at_ms", "failure", "since_ms"} <= answer.json().keys()


def test_every_variable_of_a_stages_page_is_an_option_of_serve_that_is_read() -> None:
    """All but that of all commands. `tests/infra` holds the golden template against the stack."""
    resources = json.loads((GOLDEN / "prod.template.json").read_text())["Resources"]
    (task,) = (each["Properties"] for name, each in resources.items() if name == "ServeTask")
    (container,) = task["ContainerDefinitions"]
    given = {each["Name"].removeprefix("LITHIFY_").lower() for each in container["Environment"]}
    options = inspect.signature(serve).parameters.keys() | inspect.signature(LakePlace).parameters.keys()
    assert {"lake", "state", "queue_url", "dead_letter_queue_url", "events_queue_url", "region"} < given
    assert given - {"log_format"} <= options & set(OPTIONS_FROM_ENVIRONMENT)


def test_a_token_file_without_a_token_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content, reason in ((b"\xff\xfe", "it is no text"), (b"\n\n", "is empty")):
        file.write_bytes(content)
        with pytest.raises(Invalid, match=f"--token-file .* {reason}"):
            secret_in(file, "--token-file")
    file.write_bytes(b"t0ken\n")
    assert secret_in(file, "--token-file") == "t0ken"
