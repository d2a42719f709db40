"""The pages of tables: their lag, their streams, their logs, and what a privacy delete waits for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from html import unescape
from math import ceil
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from markupsafe import escape

from compactor.catalog.definition import TablePropertiesSet
from compactor.catalog.dropping import definition_log
from compactor.catalog.properties import TableProperties
from compactor.log.durable_log import DurableLog
from compactor.log.keys import EntryObject
from compactor.model.errors import Denied, Unavailable
from dispatcher.keeper.decision_log import (
    DECISION_LOG,
    DecidedStream,
    DecisionAction,
    DecisionEnded,
    DecisionMade,
    StreamsPostponed,
    TableSetAside,
)
from dispatcher.keeper.keys import DecisionLogFolder, lake_name
from dispatcher.records.lag_samples import LagSample, close_lag_days, write_sample
from dispatcher.web.readings import LAKE_REQUESTS_A_SECOND, STATE_REQUESTS_A_SECOND
from dispatcher.web.shared import AHEAD_SECONDS, Commands, SharedReadings
from dispatcher.web.table_readings import ENTRIES_ON_A_PAGE
from tests.fakes.dispatch_desk import TABLE
from tests.fakes.served_page import Served

HOUR_MS = 3_600_000
OTHER = "ACME.ITEMS.V1"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    page = Served(tmp_path)
    yield page
    page.desk.close()


def sampled(served: Served, at_ms: int, lag_seconds: float, table: str = TABLE) -> None:
    lake = served.desk.lake.location.root_uri
    sample = LagSample(
        at_ms, lake, table, 1, lag_seconds, 600.0, 0, 0, 0, 0, 0, 0, 0, 0, published_lag_seconds=lag_seconds / 2
    )
    other = LagSample(at_ms, lake, OTHER, 1, 9_999.0, None, 0, 0, 0, 0, 0, 0, 0, 0, published_lag_seconds=None)
    assert write_sample(served.state, lake, at_ms, [sample, other])


def test_a_table_with_a_slash_in_its_id_has_all_of_its_pages(served: Served) -> None:
    table = served.desk.lake.create_table("ACME.A/B.V1", ["day"], primary_keys=["id"])
    table.append({"day": "1/2"}, pa.table({"id": [1]}))
    (link,) = re.findall(r'href="(/tables/[^"]+log[^"]*)"', served.page(f"/tables/{quote(table.table_id, safe='')}"))
    assert "delta_added" in served.page(unescape(link))
    for written in (quote(table.table_id, safe=""), table.table_id):
        for path in ("", "/lag", "/log?partition=day%3D1%252F2"):
            answer = served.client.get(f"/api/v1/tables/{written}{path}")
            assert (answer.status_code, answer.json()["table_id"]) == (200, table.table_id)


def test_the_lag_of_thirty_days_is_the_most_of_each_hour(served: Served) -> None:
    served.desk.append([{"id": 1}])
    begin_ms = served.clock.now_ms() // (24 * HOUR_MS) * 24 * HOUR_MS
    for minute, lag in enumerate((10.0, 1_300.0, 20.0)):
        sampled(served, begin_ms + minute * 60_000, lag)
    sampled(served, begin_ms + 5 * HOUR_MS, 30.0)
    served.clock.sleep(86_400.0)
    close_lag_days(served.state, "2025-10-10")
    sampled(served, begin_ms + 24 * HOUR_MS, 500.0)
    sampled(served, begin_ms + 24 * HOUR_MS + 60_000, 40.0)
    hours = served.client.get(f"/api/v1/tables/{TABLE}/lag").json()["hours"]
    assert [(each["at_ms"] - begin_ms, each["lag_seconds"]) for each in hours] == [
        (0, 1_300.0),
        (5 * HOUR_MS, 30.0),
        (24 * HOUR_MS, 40.0),
    ], "of a day that is not over the last sample of an hour"
    html = served.page(f"/tables/{TABLE}")
    worst = '<time datetime="2025-10-09T00:00:00Z">2025-10-09 00:00:00 UTC</time>'
    assert f"At most 22 min, in the hour from {worst} on; late in 1 of 3 hours." in html
    assert html.count('<polyline class="line"') == 3, "no line where no keeper was looking"
    drawn = re.search(r'data-points="([^"]+)"', html)
    assert drawn is not None
    assert json.loads(drawn[1])[1] == [1_300.0, None, 30.0, None, 40.0], "the script draws the same"
    for asset in re.findall(r'(?:src|href)="(/static/[^"]+)"', html):
        assert served.client.get(asset).status_code == 200
    read = len(served.state.requests)
    served.clock.sleep(3_600.0)
    served.page(f"/tables/{TABLE}")
    again = [key for _, key in served.state.requests[read:]]
    assert not any(key.startswith("history/lag/2025") for key in again), "a day that is over is read once"


def test_the_keepers_decisions_stand_beside_what_became_of_them(served: Served) -> None:
    served.desk.append([{"id": 1}])
    folder = DecisionLogFolder(lake_name(served.desk.lake.location), TABLE)
    log = DurableLog(served.state, folder.key, DECISION_LOG, served.clock)
    stream = DecidedStream(partition={}, entry_number=1, rule="rows", why="1,000 rows of 500 <wait>", figures={})
    actions: list[DecisionAction] = [
        DecisionMade(job_run_id="keeper-1", streams=(stream,), expected_seconds=12.0, at_ms=1),
        DecisionEnded(job_run_id="keeper-1", status="succeeded", seconds=15.0, at_ms=2),
        StreamsPostponed(postponed_by="window", streams=3, reasons=("outside of its hours",), at_ms=3),
        TableSetAside(reason="it cannot be read", at_ms=4),
    ]
    for action in actions:
        log.append(lambda _, action=action: [action])  # type: ignore[misc]
    html = served.page(f"/tables/{TABLE}")
    assert '<a href="/job-runs/keeper-1">succeeded</a>' in html
    assert str(escape(stream.why)) in html
    assert "outside of its hours" in html
    decision = served.client.get(f"/api/v1/tables/{TABLE}").json()["decisions"][-1]
    assert (decision["what"], decision["expected_seconds"], decision["seconds"]) == ("succeeded", 12.0, 15.0)


def test_a_log_is_read_page_by_page_and_has_every_entry_once(served: Served) -> None:
    for number in range(25):
        served.desk.append([{"id": number}])
    numbers: list[int] = []
    path: str | None = f"/tables/{TABLE}/log?partition=_"
    pages = 0
    while path is not None:
        html = served.page(path)
        numbers += [int(each) for each in re.findall(r"<h2>([0-9]+) <small>", html)]
        older = re.search(r'<a href="([^"]+)">older</a>', html)
        path = None if older is None else f"/tables/{TABLE}/log{older[1].replace('&amp;', '&')}"
        pages += 1
    newest = served.readings.table_log(TABLE, "_", None).value.newest
    assert numbers == list(range(newest, 0, -1))
    assert pages == -(-newest // ENTRIES_ON_A_PAGE) > 1
    answer = served.client.get(f"/api/v1/tables/{TABLE}/log", params={"before": 3}).json()
    assert [each["number"] for each in answer["entries"]] == [2, 1]
    for partition in ("day=1", "%", "nonsense"):
        assert served.client.get(f"/tables/{TABLE}/log", params={"partition": partition}).status_code == 404
    assert served.client.get("/tables/ACME.NONE.V1/log").status_code == 404
    wrong = served.client.get(f"/tables/{TABLE}/log", params={"before": "<b>"})
    assert (wrong.status_code, "The address is wrong: " in wrong.text) == (400, True)
    assert served.client.get(f"/api/v1/tables/{TABLE}/log", params={"before": "<b>"}).status_code == 422


def test_what_a_privacy_delete_waits_for_ends_with_the_last_time_that_is_said(served: Served) -> None:
    served.compacted()
    served.desk.append([{"id": 1}], operation="delete")
    waits = served.page(f"/tables/{TABLE}")
    assert "1 delta to be compacted: a delete among them has marked no row yet." in waits
    served.desk.accept()
    served.desk.run()
    served.clock.sleep(120.0)
    waits = served.page(f"/tables/{TABLE}")
    assert "to be compacted" not in waits
    assert "Files that the last round replaced stay for readers of older snapshots." in waits
    assert f"lithify gc {TABLE} --lake {served.desk.lake.location.root_uri} --delete" in waits
    served.clock.sleep(1_000 * 86_400.0)
    table = served.readings.table(TABLE).value
    waits = served.page(f"/tables/{TABLE}")
    assert "stay for readers of older snapshots" not in waits
    assert "until the deltas are retired" not in waits
    assert ("--max-dead-row-share 0" in waits) == (table.lag.figures.dead_rows > 0), (
        "the one thing that does not end by itself"
    )


def test_a_command_of_a_table_names_what_it_needs(served: Served) -> None:
    """As the command line takes it: keys of the table, unless it knows them, and a partition."""
    served.desk.append_days("ACME.DAYS.V1", 1)
    lake = served.desk.lake.location.root_uri
    page = served.page("/tables/ACME.DAYS.V1")
    assert f"lithify compact ACME.DAYS.V1 --lake {lake} --primary-key COLUMN<" in page
    assert f"lithify privacy prove ACME.DAYS.V1 --lake {lake} --key COLUMN=VALUE<" in page, "of all partitions"
    served.desk.lake.table("ACME.DAYS.V1").set_properties({"primary_keys": ["id"]})
    served.clock.sleep(60.0)
    page = served.page("/tables/ACME.DAYS.V1")
    assert f"lithify compact ACME.DAYS.V1 --lake {lake}<" in page
    assert f"lithify privacy prove ACME.DAYS.V1 --lake {lake} --key id=VALUE<" in page
    commands = Commands("s3://b/state", "s3://b/lake", None, "http://s3.example:9000")
    told = commands.table_log("ACME.DAYS.V1", {"day": "1 2"})
    words = ["table", "log", "ACME.DAYS.V1", "--lake", "s3://b/lake", "--s3-endpoint-url", "http://s3.example:9000"]
    assert shlex.split(told) == ["lithify", *words, "--partition", "day=1 2"]
    assert commands.history().endswith("--state s3://b/state --s3-endpoint-url http://s3.example:9000")


def test_what_is_kept_for_longer_than_there_are_dates_is_kept_until_the_last_one(served: Served) -> None:
    served.compacted()
    longer = TablePropertiesSet(properties=TableProperties(retention_seconds=300_000_000_000))
    definition_log(served.desk.lake.store, TABLE, served.clock).append(lambda _: [longer])
    last = '<time datetime="9999-12-31T23:59:59+00:00">9999-12-31 23:59:59 UTC</time>'
    assert last in served.page(f"/tables/{TABLE}")


@pytest.mark.parametrize("what", ["no rights", "a newer release"])
def test_a_table_that_cannot_be_read_says_so_and_the_others_are_shown(served: Served, what: str) -> None:
    served.desk.append([{"id": 1}])
    served.desk.append([{"id": 1}], table=OTHER)
    if what == "no rights":
        served.lake_store.fail("read", f"tables/{OTHER}/", times=None, error=Denied)
    else:
        log = served.desk.lake.table(OTHER).stream({}).log
        entry = served.desk.lake.store.read(f"{log.folder}/{1:020d}.json")
        assert entry is not None
        newer = entry.replace(b'"action":"', b'"action":"later_')
        served.desk.lake.store.put_if_absent(f"{log.folder}/{log.load().entry_number + 1:020d}.json", newer)
    html = served.page("/tables")
    assert f"<bdi>{OTHER}</bdi> cannot be read: " in html
    assert f'<a href="/tables/{TABLE}"><bdi>{TABLE}</bdi></a>' in html
    answer = served.client.get("/api/v1/tables").json()
    assert [each["table_id"] for each in answer["unread"]] == [OTHER]
    assert [each["table_id"] for each in answer["tables"]] == [TABLE]
    assert served.client.get(f"/tables/{OTHER}").status_code == 503


def test_a_lake_whose_disk_is_not_mounted_is_away_and_not_empty(served: Served) -> None:
    served.desk.append([{"id": 1}])
    assert TABLE in served.page("/tables")
    folder = served.desk.folder / "lake"
    folder.rename(served.desk.folder / "elsewhere")
    served.clock.sleep(60.0)
    html = served.page("/tables")
    assert "Nothing newer can be read since" in html
    assert TABLE in html
    assert served.client.get("/iceberg/v1/namespaces").status_code == 503
    (served.desk.folder / "elsewhere").rename(folder)
    served.clock.sleep(60.0)
    assert "can be read since" not in served.page("/tables")


def test_what_is_dropped_or_damaged_is_not_shown_as_it_was(served: Served) -> None:
    served.desk.append([{"id": 1}])
    served.desk.append([{"id": 1}], table=OTHER)
    for table_id in (TABLE, OTHER):
        served.page(f"/tables/{table_id}")
    served.desk.lake.drop_table(OTHER, dry_run=False)
    log = served.desk.lake.table(TABLE).stream({}).log
    entry = EntryObject(log.folder, log.load().entry_number + 1).key
    served.desk.lake.store.put_if_absent(entry, b"rubbish")
    served.clock.sleep(300.0)
    for _ in range(3):
        gone = served.client.get(f"/tables/{OTHER}")
        assert (gone.status_code, 'was dropped at <time datetime="' in gone.text) == (404, True)
    served.clock.sleep(300.0)
    for _ in range(3):
        html = served.page(f"/tables/{TABLE}")
        assert "Nothing newer can be read since" in html
        assert "does not hold what Lithify writes there" in html


def test_what_was_never_read_is_read_at_once_for_an_hour_of_requests_and_no_further(served: Served) -> None:
    def eleven_requests() -> None:
        for number in range(11):
            shared.store.read(str(number))

    shared = SharedReadings(served.state, STATE_REQUESTS_A_SECOND, served.clock)
    most = ceil(AHEAD_SECONDS * STATE_REQUESTS_A_SECOND / 11)
    for number in range(most):
        shared.of(f"thing {number}", eleven_requests)
    with pytest.raises(Unavailable, match=r"never read before: try again in \d+ s"):
        shared.of("another thing", eleven_requests)
    assert shared.store.requests == 11 * most
    assert shared.of(f"thing {most - 1}", eleven_requests).failure is None, "what was read is shown"
    served.clock.sleep(60.0)
    assert shared.of("another thing", eleven_requests).failure is None


def test_looking_at_what_is_not_there_costs_no_more_than_the_rate(served: Served) -> None:
    before, begun = len(served.state.requests), served.clock.monotonic_seconds()
    while served.clock.monotonic_seconds() - begun < 100:
        for _ in range(5):
            assert served.client.get("/job-runs/none").status_code == 404
        served.clock.sleep(5.0)
    assert len(served.state.requests) - before <= 100 * STATE_REQUESTS_A_SECOND
    served.desk.append([{"id": 1}])
    served.desk.accept(job_run_id="none")
    served.clock.sleep(60.0)
    assert served.client.get("/job-runs/none").status_code == 200


def test_a_table_is_shown_without_what_the_state_cannot_give(served: Served) -> None:
    served.desk.append([{"id": 1}])
    served.state.fail("read", "keeper/", times=None, error=Denied)
    served.state.fail("list", "keeper/", times=None, error=Denied)
    served.state.fail("list", "history/lag/", times=None)
    html = served.page(f"/tables/{TABLE}")
    assert html.count("A part of this page could not be read since") == 2
    assert "<h2>Streams</h2>" in html
    assert 'class="scroll"' in html


def test_pages_of_tables_cost_no_more_than_their_share_however_many_look(served: Served) -> None:
    served.compacted()
    for days in range(3):
        sampled(served, served.clock.now_ms() - days * 24 * HOUR_MS, 10.0)
    paths = ["/tables", f"/tables/{TABLE}", f"/tables/{TABLE}/log", "/", "/money", "/dead-letters"]
    for path in paths:
        served.page(path)
    begun, of_state, of_lake = (
        served.clock.monotonic_seconds(),
        len(served.state.requests),
        len(served.lake_store.requests),
    )
    while served.clock.monotonic_seconds() - begun < 600:
        for viewer in range(50):
            served.page(paths[viewer % len(paths)])
        served.clock.sleep(60.0)
    seconds = served.clock.monotonic_seconds() - begun
    assert 10 <= len(served.state.requests) - of_state <= seconds * STATE_REQUESTS_A_SECOND
    assert 10 <= len(served.lake_store.requests) - of_lake <= seconds * LAKE_REQUESTS_A_SECOND
