"""What a lake on S3 is asked for: requests and bytes, which follow from the input alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import boto3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import compactor
from compactor.catalog.delta_files import read_rows
from compactor.changes import landing
from compactor.engine.in_process import InProcessEngine
from compactor.lake import DeltaCatalog, Table
from compactor.model.clock import SystemClock
from compactor.model.errors import Corrupt, Fenced, Invalid
from compactor.model.names import ContentType, Operation
from compactor.planning.bundle_plan import SmallSession, plan_bundle, share_tasks
from compactor.planning.round_plan import DeltaSource
from compactor.planning.rounds import group_for_tasks
from compactor.planning.session_planner import pin_sessions
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunResult, JobRunSpec
from compactor.sessions.bundle import MemberTask, UnloggedEnd, run_bundle
from compactor.sessions.keys import JobRunFolder
from compactor.sessions.session_journal import SessionJournal
from compactor.steps.hash_bucket import HashStep, hash_rows
from compactor.storage import opening
from compactor.storage.hedged_ranges import HedgedRanges
from compactor.storage.location import parse_location
from compactor.storage.opening import open_store
from compactor.storage.ranges import TAIL_BYTES, Tail
from compactor.tabular import TabularFile
from dispatcher.ingest.ingest import Ingest, IngestSettings
from launcher.plan import plan_in_one_task
from tests.fakes.attempts import plan_session, run_attempt
from tests.fakes.in_process_runner import InProcessTaskRunner
from tests.fakes.memory_queue import MemoryQueue
from tests.proxy import Proxy, Seen, Weather, proxy_before_bucket
from tests.servers import REGION

pytestmark = pytest.mark.servers

ROWS = 200_000
COMPACTED_FILES = 4
TABLE = "ACME.FAR.V1"


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with proxy_before_bucket("far") as made:
        yield made


def catalog(proxy: Proxy, prefix: str) -> DeltaCatalog:
    """One that has read nothing yet."""
    location = parse_location(f"s3://far/{prefix}", endpoint_url=proxy.url, region=REGION)
    return DeltaCatalog(open_store(location), SystemClock())


def rows_of(ids: npt.NDArray[np.int64], status: str) -> pa.Table:
    noise = np.random.default_rng(len(ids)).integers(0, 2**40, len(ids))
    return pa.table({"id": ids, "noise": noise, "status": pa.array([status] * len(ids))})


def compact(lake: DeltaCatalog) -> None:
    """Without the sample of row groups that are read back, which differs from session to session."""
    compactor.compact(
        TABLE,
        {"id"},
        delta_catalog_client=lake,
        rows_per_compacted_file=ROWS // COMPACTED_FILES,
        page_check_share=0.0,
    )


def requests_by_operation(proxy: Proxy, of: str = "") -> dict[str, int]:
    counted: dict[str, int] = {}
    for seen in proxy.seen():
        if of in seen.request.target:
            counted[seen.request.operation] = counted.get(seen.request.operation, 0) + 1
    return counted


def bytes_down(proxy: Proxy, of: str = "") -> int:
    return sum(seen.bytes_down for seen in proxy.seen() if of in seen.request.target)


@pytest.fixture(scope="module")
def compacted(proxy: Proxy) -> str:
    """A compacted table of several files, in a lake of its own."""
    lake = catalog(proxy, "compacted")
    table = lake.create_table(TABLE, [])
    for ids in np.array_split(np.arange(ROWS), 4):
        table.append({}, rows_of(ids, "old"))
    proxy.count_anew()
    compact(lake)
    assert "HEAD" not in requests_by_operation(proxy)
    return "compacted"


def test_an_incremental_run_reads_its_delta_the_rewritten_file_and_each_byte_of_the_index_at_most_once(
    proxy: Proxy, compacted: str
) -> None:
    lake = catalog(proxy, compacted)
    table = lake.table(TABLE)
    before = table.stream({}).load().state.compacted
    assert before is not None
    delta = table.append({}, rows_of(np.arange(10_000, 20_000), "new"))
    proxy.count_anew()

    compact(catalog(proxy, compacted))

    counted = requests_by_operation(proxy)
    assert "HEAD" not in counted
    after = catalog(proxy, compacted).table(TABLE).stream({}).load().state.compacted
    assert after is not None
    rewritten = [file for number, file in before.files.items() if number not in after.files]
    assert len(rewritten) == 1
    index = sum(file.bytes_at_rest for file in before.index_files)
    assert bytes_down(proxy, "/index/") <= 1.05 * index
    needed = delta.size_bytes + rewritten[0].size_bytes
    data = bytes_down(proxy, "/data/") - bytes_down(proxy, "/index/")
    assert data <= 1.1 * needed
    found = catalog(proxy, compacted).table(TABLE).scan(filter=pc.field("status") == "new").to_table()
    assert sorted(found.column("id").to_pylist()) == list(range(10_000, 20_000))


def test_a_scan_reads_each_file_s_end_and_its_columns_and_nothing_of_row_groups_that_the_filter_excludes(
    proxy: Proxy, compacted: str
) -> None:
    table = catalog(proxy, compacted).table(TABLE)
    proxy.count_anew()
    assert table.scan().to_table().num_rows == ROWS
    every = requests_by_operation(proxy, ".parquet")
    assert set(every) == {"GET range"}
    assert every["GET range"] <= 2 * COMPACTED_FILES
    whole = bytes_down(proxy, ".parquet")

    proxy.count_anew()
    narrow = table.scan(columns=["id"], filter=pc.field("noise") < 0).to_table()
    assert narrow.num_rows == 0
    assert bytes_down(proxy, ".parquet") <= COMPACTED_FILES * 64 * 1024 < whole / 4


def test_a_lookup_is_at_most_four_requests_deep_also_in_a_table_of_which_nothing_was_read(
    proxy: Proxy, compacted: str
) -> None:
    table = catalog(proxy, compacted).table(TABLE)
    proxy.count_anew()
    proxy.set_weather(Weather(delay_seconds=0.2))
    try:
        found = table.lookup({}, {"id": 123_456})
    finally:
        proxy.set_weather(Weather())
    assert found is not None
    assert found["id"] == 123_456
    assert depth(proxy) <= 4
    assert bytes_down(proxy, "/index/") <= 20 * 65_536  # of each run whole pages, which have checksums


def test_a_session_reads_what_a_table_is_once_and_each_log_s_entries_once(proxy: Proxy) -> None:
    lake = catalog(proxy, "once")
    table = lake.create_table(TABLE, [])
    for number in range(5):
        table.append({}, rows_of(np.arange(number, number + 10), "old"))
    proxy.count_anew()

    compact(catalog(proxy, "once"))

    read = [
        seen.request.target
        for seen in proxy.seen()
        if seen.request.operation == "GET" and "/log/" in seen.request.target
    ]
    existing = [target for target in read if int(target[-9:].removesuffix(".json")) <= 5]
    of_stream = [target for target in existing if "/streams/" in target]
    assert sorted(of_stream) == sorted(set(of_stream))
    assert len(of_stream) == 5
    of_definition = [target for target in read if "/streams/" not in target and "/tables/" in target]
    assert len(of_definition) == 2  # its one entry, and that there is no second one
    assert len([target for target in read if target not in existing]) <= 3


def test_index_files_of_several_buckets_are_on_their_way_at_the_same_time(proxy: Proxy) -> None:
    lake = catalog(proxy, "beside")
    lake.create_table(TABLE, []).append({}, rows_of(np.arange(1_000), "old"))
    proxy.count_anew()
    proxy.set_weather(Weather(delay_seconds=0.3))
    try:
        compactor.compact(TABLE, {"id"}, delta_catalog_client=catalog(proxy, "beside"), hash_bucket_count=4)
    finally:
        proxy.set_weather(Weather())
    sent = [seen for seen in proxy.seen() if seen.request.verb == "PUT" and "/index/" in seen.request.target]
    assert len(sent) == 4
    assert max(seen.began_seconds for seen in sent) < min(seen.ended_seconds for seen in sent)
    assert catalog(proxy, "beside").table(TABLE).scan().to_table().num_rows == 1_000


def test_tasks_of_a_session_in_this_process_wait_for_the_store_side_by_side(proxy: Proxy) -> None:
    lake = catalog(proxy, "side")
    table = lake.create_table(TABLE, [])
    for start in (0, 1_000_000):
        table.append({}, rows_of(np.arange(start, start + 600_000), "old"))
    compact(catalog(proxy, "side"))
    catalog(proxy, "side").table(TABLE).append({}, rows_of(np.arange(0, 1_600_000, 100), "new"))
    opening._range_reader.cache_clear()  # as in another process, which has not written the files
    proxy.count_anew()
    proxy.set_weather(Weather(delay_seconds=0.3))
    try:
        compact(catalog(proxy, "side"))
    finally:
        proxy.set_weather(Weather())

    first_of_index: dict[str, Seen] = {}
    for seen in proxy.seen():
        if "/index/" in seen.request.target and seen.requested_range:
            first_of_index.setdefault(seen.request.target, seen)
    assert len(first_of_index) >= 2
    assert max(each.began_seconds for each in first_of_index.values()) < min(
        each.ended_seconds for each in first_of_index.values()
    )
    definition = [seen for seen in proxy.seen() if f"tables/{TABLE}/log/" in seen.request.target]
    assert len(definition) == 2
    assert max(each.began_seconds for each in definition) < min(each.ended_seconds for each in definition)
    bodies = [
        seen
        for seen in proxy.seen()
        if seen.requested_range.startswith("bytes=0-") and "/compacted/" in seen.request.target
    ]
    written = {seen.request.target.partition("?")[0] for seen in proxy.seen() if seen.request.verb in ("PUT", "POST")}
    ends = [
        seen
        for seen in proxy.seen()
        if seen.requested_range == "bytes=-65536"
        and "/compacted/" in seen.request.target
        and seen.request.target not in written
    ]
    assert {seen.request.target for seen in bodies} == {seen.request.target for seen in ends} != set()
    ended = {seen.request.target: seen.ended_seconds for seen in ends}
    assert all(seen.began_seconds < ended[seen.request.target] for seen in bodies)
    log = [seen for seen in proxy.seen() if "/sessions/" in seen.request.target][-2:]
    assert {seen.request.verb for seen in log} == {"PUT"}
    assert log[1].began_seconds < log[0].ended_seconds
    found = catalog(proxy, "side").table(TABLE).scan().to_table()
    assert pc.sum(pc.equal(found.column("status"), "new")).as_py() == 16_000


def test_the_start_of_a_session_and_each_round_s_end_are_logged_before_the_next_commit(proxy: Proxy) -> None:
    table = catalog(proxy, "started").create_table(TABLE, [])
    for start in (0, 1_000):
        table.append({}, rows_of(np.arange(start, start + 1_000), "old"))
    proxy.count_anew()
    proxy.set_weather(Weather(delay_seconds=0.05))
    try:
        compactor.compact(TABLE, {"id"}, delta_catalog_client=catalog(proxy, "started"), max_rows_per_round=1_000)
    finally:
        proxy.set_weather(Weather())
    logged = [seen for seen in created(proxy, "/sessions/") if seen.request.target.endswith(("1.json", "2.json"))]
    commits = created(proxy, "/streams/_/log/")
    assert (len(logged), len(commits)) == (2, 2)
    for entry, commit in zip(logged, commits, strict=True):
        assert entry.ended_seconds <= commit.began_seconds


def created(proxy: Proxy, of: str) -> list[Seen]:
    return [seen for seen in proxy.seen() if seen.request.operation == "PUT if absent" and of in seen.request.target]


def test_a_superseded_attempt_commits_nothing(proxy: Proxy) -> None:
    lake = catalog(proxy, "superseded")
    table = lake.create_table(TABLE, [])
    table.append({}, rows_of(np.arange(1_000), "old"))
    run = JobRunSpec(
        job_run_id="run",
        lake=lake.location,
        source_table_id=TABLE,
        destination_compacted_table_id=TABLE,
        primary_keys=("id",),
        rows_per_compacted_file=1_000,
    )
    (pinned,) = pin_sessions(run, lake)
    plan = plan_session(pinned.spec, lake, InProcessEngine().resources())
    folder = JobRunFolder("run").session(pinned.spec.session_id)
    with SessionJournal(lake.store, folder, 2, SystemClock()) as successor:
        successor.started(0, 1, 1_000, 5.0)
    with pytest.raises(Fenced, match="superseded by attempt 2"):
        run_attempt(plan, catalog(proxy, "superseded"), lake.store, InProcessEngine(), 1, SystemClock())
    assert table.stream({}).load().state.compacted is None


def depth(proxy: Proxy) -> int:
    """The most requests of which each began after the answer to the one before."""
    count, ended = 0, 0.0
    for seen in sorted(proxy.seen(), key=lambda seen: seen.ended_seconds):
        if seen.began_seconds >= ended:
            count, ended = count + 1, seen.ended_seconds
    return count


@pytest.mark.parametrize("in_another_process", [True, False])
def test_a_registered_file_that_has_changed_since_its_append_is_corrupt_and_named(
    proxy: Proxy, in_another_process: bool
) -> None:

    s3 = boto3.client("s3", endpoint_url=proxy.url, region_name=REGION)
    prefix = f"registered-{in_another_process}"
    for rows in (20_000, 30_000):
        sink = pa.BufferOutputStream()
        pq.write_table(rows_of(np.arange(rows), "given"), sink)
        s3.put_object(Bucket="far", Key=f"{prefix}/x.parquet", Body=sink.getvalue().to_pybytes())
        if rows == 20_000:
            catalog(proxy, prefix).create_table(TABLE, []).append({}, [f"s3://far/{prefix}/x.parquet"])
    if in_another_process:
        opening._range_reader.cache_clear()
    what = r"bytes, but the log says" if in_another_process else "changed while it was read"
    with pytest.raises(Corrupt, match=rf"s3://far/{prefix}/x\.parquet (was|has) .*{what}.*retract delta '"):
        compact(catalog(proxy, prefix))


@pytest.mark.parametrize("in_another_process", [True, False])
@pytest.mark.parametrize("rows", [1_000, 200_000], ids=["read by one request", "read in parts"])
def test_a_registered_file_that_was_replaced_by_one_of_the_same_size_is_corrupt_and_named(
    proxy: Proxy, in_another_process: bool, rows: int
) -> None:

    s3 = boto3.client("s3", endpoint_url=proxy.url, region_name=REGION)
    prefix = f"same-size-{rows}-{in_another_process}"
    bodies = []
    for status in ("given", "other"):
        sink = pa.BufferOutputStream()
        pq.write_table(rows_of(np.arange(rows), status), sink)
        bodies.append(sink.getvalue().to_pybytes())
    assert len(bodies[0]) == len(bodies[1])
    s3.put_object(Bucket="far", Key=f"{prefix}/x.parquet", Body=bodies[0])
    proxy.count_anew()
    delta = catalog(proxy, prefix).create_table(TABLE, []).append({}, [f"s3://far/{prefix}/x.parquet"])
    assert "HEAD" not in requests_by_operation(proxy)
    assert delta.files[0].etag == s3.head_object(Bucket="far", Key=f"{prefix}/x.parquet")["ETag"]
    s3.put_object(Bucket="far", Key=f"{prefix}/x.parquet", Body=bodies[1])
    if in_another_process:
        opening._range_reader.cache_clear()
    what = "changed or replaced after it was appended|changed while it was read"
    if not in_another_process and rows == 1_000:
        compact(catalog(proxy, prefix))  # of a small file this process has all bytes, as they were appended
        assert set(catalog(proxy, prefix).table(TABLE).scan().to_table().column("status").to_pylist()) == {"given"}
        return
    with pytest.raises(Corrupt, match=rf"s3://far/{prefix}/x\.parquet (was|has) ({what}).*retract delta '"):
        compact(catalog(proxy, prefix))
    s3.put_object(Bucket="far", Key=f"{prefix}/x.parquet", Body=bodies[0])
    compact(catalog(proxy, prefix))
    assert catalog(proxy, prefix).table(TABLE).scan().to_table().num_rows == rows


def test_a_file_that_is_registered_again_after_it_was_written_anew_is_measured_anew(proxy: Proxy) -> None:

    s3 = boto3.client("s3", endpoint_url=proxy.url, region_name=REGION)
    lake = catalog(proxy, "again")
    table = lake.create_table(TABLE, [], properties={"allow_files": "s3://far/given"})
    for rows in (10, 20):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": list(range(rows))}), sink)
        s3.put_object(Bucket="far", Key=f"given/{rows}.parquet", Body=sink.getvalue().to_pybytes())
        s3.copy_object(Bucket="far", Key="given/same.parquet", CopySource=f"far/given/{rows}.parquet")
        delta = table.append({}, ["s3://far/given/same.parquet"])
        assert delta.rows == rows


def streams_table(lake: DeltaCatalog, count: int) -> Table:
    table = lake.create_table(TABLE, ["stream"])
    for number in range(count):
        table.append({"stream": f"{number}"}, rows_of(np.arange(number + 10), "old"))
    return table


def test_small_sessions_wait_for_the_store_side_by_side_and_each_is_told_of_in_its_order(proxy: Proxy) -> None:
    streams_table(catalog(proxy, "streams"), 8)
    proxy.count_anew()
    proxy.set_weather(Weather(delay_seconds=0.1))
    heard: list[int] = []
    try:
        lake = catalog(proxy, "streams")
        result = compactor.compact(
            TABLE, {"id"}, delta_catalog_client=lake, progress=lambda progress: heard.append(progress.number)
        )
    finally:
        proxy.set_weather(Weather())
    assert [(each.partition, each.rows_out) for each in result.sessions] == [
        ({"stream": f"{number}"}, number + 10) for number in range(8)
    ]
    assert set(heard) == set(range(1, 9))
    assert depth(proxy) <= 4 * 8  # one after the other they are more than twice as deep
    assert catalog(proxy, "streams").table(TABLE).scan().to_table().num_rows == sum(range(10, 18))


def test_members_of_a_bundle_wait_for_the_store_side_by_side_in_one_task(proxy: Proxy) -> None:
    lake = catalog(proxy, "bundle")
    streams_table(lake, 6)
    run = JobRunSpec(
        job_run_id="run",
        lake=lake.location,
        source_table_id=TABLE,
        destination_compacted_table_id=TABLE,
        primary_keys=("id",),
    )
    resources = Resources(task_memory_bytes=1 << 30, tasks=1)
    proxy.count_anew()
    of_one_run = lake.for_one_run()
    small = [plan_in_one_task(pinned.spec, of_one_run, resources) for pinned in pin_sessions(run, of_one_run)]
    assert requests_by_operation(proxy, "/data/") == {"GET range": 1}  # a footer of all files of one schema
    plan = plan_bundle("bundle", [each for each in small if isinstance(each, SmallSession)], cores=1)
    groups = share_tasks(plan, 1, resources.task_memory_bytes)
    assert groups == (tuple(range(6)),)
    proxy.count_anew()
    proxy.set_weather(Weather(delay_seconds=0.1))
    try:
        runner = InProcessTaskRunner[MemberTask, UnloggedEnd | None]()
        run_bundle(plan, "run", lake.store, runner, None, SystemClock(), groups=groups)
    finally:
        proxy.set_weather(Weather())
    assert runner.ended() == dict.fromkeys(range(6))
    assert depth(proxy) <= 4 * 6  # one after the other they are more than twice as deep
    assert catalog(proxy, "bundle").table(TABLE).scan().to_table().num_rows == sum(range(10, 16))


def test_a_bad_stream_among_small_ones_of_a_remote_lake_fails_alone_and_is_named(proxy: Proxy) -> None:
    table = streams_table(catalog(proxy, "one-bad"), 4)
    for bad in ("x", "y"):
        table.append({"stream": bad}, pa.table({"other": [1]}))
    with pytest.raises(Invalid, match=r"stream=x: .*id.*\n?.*stream=y: .*id") as raised:
        compactor.compact(TABLE, {"id"}, delta_catalog_client=catalog(proxy, "one-bad"))
    result = raised.value.result
    assert isinstance(result, JobRunResult)
    assert [session.rows_out for session in result.sessions] == [10, 11, 12, 13]
    assert [failure.partition for failure in result.failures] == [{"stream": "x"}, {"stream": "y"}]


@pytest.mark.parametrize("place", ["footer", "page"])
def test_a_small_file_that_is_damaged_fails_its_own_session_whether_its_plan_has_read_it_or_not(
    proxy: Proxy, place: str
) -> None:
    lake = catalog(proxy, f"damaged-{place}")
    table = streams_table(lake, 4)
    source = table.stream({"stream": "2"}).load().state.active
    assert source is not None
    (key,) = [file.path for delta in source.deltas for file in delta.files]
    body = bytearray(lake.store.read(key) or b"")
    body[-40 if place == "footer" else 20] ^= 1
    lake.store.overwrite(key, bytes(body))
    with pytest.raises((Corrupt, Invalid), match="stream=2"):
        compactor.compact(TABLE, {"id"}, delta_catalog_client=catalog(proxy, f"damaged-{place}"))
    assert [table.scan({"stream": f"{number}"}).count_rows() for number in range(4)] == [10, 11, 0, 13]


def test_a_first_session_asks_once_for_its_log_s_end_and_lists_no_streams_of_a_table_without_partitions(
    proxy: Proxy,
) -> None:
    catalog(proxy, "ends").create_table(TABLE, []).append({}, rows_of(np.arange(10), "old"))
    proxy.count_anew()

    compact(catalog(proxy, "ends"))

    assert requests_by_operation(proxy)["LIST"] == 1
    read = [seen for seen in proxy.seen() if seen.request.verb == "GET" and "streams/_/log/" in seen.request.target]
    ends = [seen for seen in read if seen.request.target.endswith("0002.json")]
    assert len(ends) == 1


def test_a_compaction_of_a_remote_table_without_rows_has_no_sessions(proxy: Proxy) -> None:
    lake = catalog(proxy, "empty")
    lake.create_table(TABLE, [])
    assert compactor.compact(TABLE, {"id"}, delta_catalog_client=lake).sessions == ()
    lake.create_table("ACME.FAR.V2", ["day"])
    assert compactor.compact("ACME.FAR.V2", {"id"}, delta_catalog_client=lake).sessions == ()


def test_tasks_that_share_a_large_file_fetch_the_columns_that_they_hash_once_in_all(proxy: Proxy) -> None:
    sink, rows, small = pa.BufferOutputStream(), rows_of(np.arange(1_000_000), "new"), rows_of(np.arange(9), "new")
    pq.write_table(rows, sink, row_group_size=125_000, use_dictionary=False)
    body = sink.getvalue().to_pybytes()
    lake = catalog(proxy, "shared")
    for key, each in (("large", body), ("small", file_of(small))):
        open_store(lake.location).overwrite(f"{key}.parquet", each)
    large, other = (
        DeltaSource(
            ordinal=ordinal,
            file=TabularFile(f"s3://far/shared/{name}.parquet", ContentType.PARQUET, size_bytes),
            rows=count,
            size_bytes=size_bytes,
            position=1,
            operation=Operation.UPSERT,
            sorts=True,
            row_groups=groups,
        )
        for ordinal, name, count, size_bytes, groups in (
            (0, "large", 1_000_000, len(body), (125_000,) * 8),
            (1, "small", 9, len(file_of(small)), ()),
        )
    )
    step = HashStep(lake.location, ("id",), (), 8, rows.schema, True, 2**30, None)
    tasks = group_for_tasks([other, replace(large, ordinal=2)], 4)
    assert [piece.first_row for task in tasks for piece in task if piece.rows > 9] == [
        0,
        250_000,
        500_000,
        750_000,
    ]
    opening._range_reader.cache_clear()
    proxy.count_anew()
    for task in tasks:
        assert sum(len(block.digests) for _, block in hash_rows(step, task)) == sum(piece.rows for piece in task)
    chunks = [pq.ParquetFile(pa.BufferReader(body)).metadata.row_group(group).column(0) for group in range(8)]
    ids = sum(chunk.total_compressed_size for chunk in chunks)
    assert ids < bytes_down(proxy, "large.parquet") <= 1.05 * ids + 4 * TAIL_BYTES < len(body) / 2


def file_of(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def landed_on_s3(proxy: Proxy, prefix: str) -> tuple[DeltaCatalog, MemoryQueue, Ingest]:
    """A table that files land for, below `landing/` of its lake."""
    lake, clock = catalog(proxy, prefix), SystemClock()
    properties = {"landing": [f"s3://far/{prefix}/landing/"], "primary_keys": ["id"]}
    lake.create_table(TABLE, [], properties=properties)
    queue = MemoryQueue(clock, MemoryQueue(clock))
    return lake, queue, Ingest(queue, lake, IngestSettings(collect_seconds=0.0), clock)


def land(proxy: Proxy, prefix: str, name: str, rows: pa.Table) -> dict[str, object]:
    """Writes a file; returns its notification."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="none", use_dictionary=False)
    store = open_store(parse_location(f"s3://far/{prefix}", endpoint_url=proxy.url, region=REGION))
    store.overwrite(f"landing/{name}", sink.getvalue().to_pybytes())
    (found,) = store.list(f"landing/{name}")
    described = {"key": f"{prefix}/landing/{name}", "etag": found.etag, "size": found.size_bytes}
    detail = {"bucket": {"name": "far"}, "object": described}
    return {"source": "aws.s3", "detail-type": "Object Created", "detail": detail}


def test_a_small_file_that_lands_is_one_request_and_all_of_a_stream_are_one_data_file(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, queue, ingest = landed_on_s3(proxy, "landed")
    for number in range(6):
        queue.send(
            json.dumps(land(proxy, "landed", f"{number}.parquet", rows_of(np.arange(number, number + 1), "new")))
        )
    asked: list[str] = []  # second requests, which are sent when an answer is late, are not counted

    def ask(ranges: HedgedRanges, uri: str, length: int) -> Tail:
        asked.append(uri)
        return read_tail(ranges, uri, length)

    opening.range_reader(lake.location)  # threads that begin together would make one each
    read_tail = HedgedRanges.read_tail
    monkeypatch.setattr(HedgedRanges, "read_tail", ask)
    proxy.count_anew()
    assert ingest.collect_once().files == 6
    asked_to_land = [uri for uri in asked if "/landing/" in uri]
    assert lake.table(TABLE).scan(view="merged").to_table().num_rows == 6
    assert set(requests_by_operation(proxy, "/landing/")) == {"GET range"}
    assert Counter(asked_to_land) == {f"s3://far/landed/landing/{number}.parquet": 1 for number in range(6)}
    assert requests_by_operation(proxy, "/data/")["PUT"] == 1


def test_a_file_that_is_replaced_while_it_is_read_is_taken_in_as_its_newer_version_alone(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, queue, ingest = landed_on_s3(proxy, "replaced")
    old, new = (rows_of(np.arange(TAIL_BYTES), status) for status in ("old", "new"))
    queue.send(json.dumps(land(proxy, "replaced", "1.parquet", old)))
    announced: list[dict[str, object]] = []

    def read_later(*arguments: object) -> pa.Table:
        if not announced:
            announced.append(land(proxy, "replaced", "1.parquet", new))
        return read_rows(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(landing, "read_rows", read_later)
    done = ingest.collect_once()
    assert (done.superseded, done.files, done.refused) == (1, 0, 0)
    queue.send(json.dumps(announced[0]))
    assert ingest.collect_once().files == 1
    assert lake.table(TABLE).scan(view="merged").to_table().column("status").unique().to_pylist() == ["new"]


@pytest.mark.parametrize("key", ["folder//1.parquet", "a\tb.parquet"])
def test_a_file_whose_key_is_no_path_lands_as_any_other_and_may_be_registered(proxy: Proxy, key: str) -> None:
    prefix = f"odd-{len(key)}"
    lake, queue, ingest = landed_on_s3(proxy, prefix)
    rows, sink = rows_of(np.arange(TAIL_BYTES // 8), "new"), pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="none", use_dictionary=False)
    s3 = boto3.client("s3", endpoint_url=proxy.url, region_name=REGION)
    uri = f"s3://far/{prefix}/landing/{key}"
    s3.put_object(Bucket="far", Key=f"{prefix}/landing/{key}", Body=sink.getvalue().to_pybytes())
    s3.put_object(Bucket="far", Key=f"{prefix}/landing/empty//{key}", Body=b"")
    gone, empty = (f"s3://far/{prefix}/landing/{each}//{key}" for each in ("gone", "empty"))
    queue.send(json.dumps({"register": {"files": [uri]}}))
    queue.send(json.dumps({"register": {"files": [gone, empty]}}))
    done = ingest.collect_once()
    assert (done.files, done.rows, done.refused) == (1, rows.num_rows, 1)
    (dead,) = queue.dead_letters().receive(10, 0, 10)
    for reason in ("gone//", "does not exist", "0 bytes"):
        assert reason in (dead.reasons or "")
    lake.table(TABLE).append({}, [uri])
    compact(lake)
    assert lake.table(TABLE).scan().to_table().sort_by("id").select(rows.column_names).equals(rows)
