"""Names of objects: they round-trip, and none leaves its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.storage.object_store import check_key
from compactor.storage.paths import (
    PART_BYTES_MAX,
    AnsweredWaiter,
    BundleFolder,
    BundleObject,
    CheckpointObject,
    CleanedDay,
    CompactedFilePath,
    DeletionVectorPath,
    DeltaFilePath,
    DeltaLogObject,
    DeltaVectorPath,
    DropMark,
    DroppedTable,
    HistoryDay,
    HistoryFile,
    IcebergDeletes,
    IcebergManifest,
    IcebergManifestList,
    IcebergMetadata,
    IndexFilePath,
    IndexPointersPath,
    JobRunFolder,
    JobRunObject,
    LiveDispatcher,
    LogObject,
    MarkedJobRun,
    NewsHint,
    ObjectPath,
    OpenFilePath,
    PausedObject,
    RejectedDocument,
    ReleaseOfState,
    StartedDispatcher,
    StreamFolder,
    TableFolder,
    TaskToken,
    UnpublishedJobRun,
    continues,
    decode,
    decode_partition,
    encode,
    encode_partition,
    parse,
    partition_hash,
)

texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=400),
    st.sampled_from(
        [
            "",
            ".",
            "..",
            "../..",
            "/",
            "a/../../b",
            "~",
            "%",
            "%2E",
            "_",
            "a=b,c=d",
            "~/",
            " ",
            "x" * 2_000,
            "." * 500,
            "x" * 199 + ".." * 200,
        ]
    ),
)
attempts = st.text("0123456789abcdef", min_size=1, max_size=32)
partitions = st.dictionaries(texts, texts, max_size=3)
numbers = st.integers(1, 10**12)
streams = st.builds(lambda table, partition: TableFolder(table).stream(partition), texts, partitions)
content_types = st.sampled_from(ContentType)
log_folders = st.one_of(
    streams.map(lambda stream: stream.log),
    texts.map(lambda text: TableFolder(text).definition_log),
    texts.map(lambda text: JobRunFolder(text).log),
    st.builds(lambda job_run, session: JobRunFolder(job_run).session(session).log, texts, texts),
    st.dates().map(lambda day: HistoryDay(day.isoformat()).log),
)
paths: st.SearchStrategy[ObjectPath] = st.one_of(
    st.builds(LogObject, log_folders, st.sampled_from(["entry", "checkpoint"]), numbers),
    st.builds(NewsHint, streams, numbers),
    st.builds(CheckpointObject.head, log_folders, numbers),
    st.builds(CheckpointObject.piece, log_folders, numbers, st.text("0123456789abcdef", min_size=1, max_size=32)),
    st.builds(LogObject, log_folders, st.just("hint")),
    st.builds(DeltaFilePath, streams, texts, numbers, content_types),
    st.builds(CompactedFilePath, streams, numbers, texts, numbers, content_types, attempts),
    st.builds(IndexFilePath, streams, numbers, texts, st.integers(0, 10_000), st.integers(0, 100), attempts),
    st.builds(IndexPointersPath, streams, numbers, texts, numbers, numbers, st.integers(0, 100), attempts),
    st.builds(DeletionVectorPath, streams, texts, numbers, attempts),
    st.builds(
        OpenFilePath,
        texts,
        partitions.map(partition_hash),
        st.text("0123456789abcdef", min_size=1, max_size=32),
        numbers,
        st.text("0123456789abcdef", min_size=1, max_size=32),
    ),
    st.builds(DeltaLogObject, texts, st.sampled_from(["commit", "checkpoint"]), numbers),
    st.builds(DeltaLogObject, texts, st.just("hint")),
    st.builds(DeltaVectorPath, texts, st.uuids().map(str), st.uuids().map(lambda each: each.hex)),
    st.builds(IcebergMetadata, texts, st.one_of(st.none(), numbers)),
    st.builds(IcebergManifestList, texts, st.uuids().map(lambda each: each.hex)),
    st.builds(
        IcebergManifest, texts, st.uuids().map(lambda each: each.hex), numbers, st.sampled_from(["data", "deletes"])
    ),
    st.builds(IcebergDeletes, texts, st.uuids().map(str), st.uuids().map(lambda each: each.hex)),
    st.builds(JobRunObject, st.builds(JobRunFolder, texts), st.just("published.json")),
    st.builds(BundleObject, st.builds(BundleFolder, texts, texts), st.sampled_from(["plan.json", "heartbeat.json"])),
    st.builds(lambda job_run, session, n: JobRunFolder(job_run).session(session).plan(n), texts, texts, numbers),
    st.builds(lambda job_run, session: JobRunFolder(job_run).session(session).heartbeat, texts, texts),
    st.builds(MarkedJobRun, texts, st.integers(-(2**31), 2**31), numbers),
    st.builds(MarkedJobRun, texts, st.integers(-(2**31), 2**31), numbers, texts, st.integers(0, 10**6)),
    st.builds(LiveDispatcher, texts),
    st.builds(DroppedTable, texts),
    st.builds(DropMark, streams, numbers, st.booleans()),
    st.builds(RejectedDocument, texts, texts),
    st.builds(TaskToken, texts, texts),
    st.builds(AnsweredWaiter, texts, texts),
    st.builds(ReleaseOfState, texts),
    st.builds(StartedDispatcher, texts),
    st.builds(UnpublishedJobRun, texts),
    st.builds(PausedObject, st.sampled_from(["tables", "job_runs"]), texts),
    st.just(PausedObject("everything")),
    st.dates().map(lambda day: HistoryFile(day.isoformat())),
    st.dates().map(lambda day: CleanedDay(day.isoformat())),
)


@given(paths)
def test_every_name_parses_to_what_it_names(path: ObjectPath) -> None:
    assert parse(path.key) == path


@given(paths)
def test_no_name_holds_anything_a_file_system_reads_something_into(path: ObjectPath) -> None:
    check_key(path.key)
    for part in path.key.split("/"):
        assert re.fullmatch(r"[A-Za-z0-9_.,=%~-]+", part)
        assert not part.startswith(".")
        assert len(part) <= 255


@given(texts)
def test_a_text_is_encoded_reversibly_within_its_own_parts(text: str) -> None:
    encoded = encode(text)
    assert decode(encoded) == text
    *begun, last = encoded.split("/")
    assert all(continues(part) for part in begun)
    assert not continues(last)
    assert all(len(part) <= PART_BYTES_MAX + 1 for part in encoded.split("/"))


@given(partitions, partitions)
def test_different_partitions_have_different_names(one: dict[str, str], other: dict[str, str]) -> None:
    same_name = encode_partition(one) == encode_partition(other)
    assert same_name == (list(one.items()) == list(other.items()))
    assert list(decode_partition(encode_partition(one)).items()) == list(one.items())


@given(streams, streams)
def test_streams_never_lie_within_one_another(one: StreamFolder, other: StreamFolder) -> None:
    if one != other:
        assert not one.log.startswith(other.log + "/")
        assert not one.data.startswith(other.data + "/")


def test_the_names_look_like_this() -> None:
    stream = TableFolder("ACME.ORDERS.V1").stream({"region": "North America", "order_day": "1995-04-03"})
    assert stream.log == "tables/ACME.ORDERS.V1/streams/region=North%20America,order_day=1995-04-03/log"
    assert TableFolder("A.B.V1").stream({}).log == "tables/A.B.V1/streams/_/log"
    assert encode_partition({"day": ""}) == "day=%"
    assert encode_partition({"day": ".."}) == "day=%2E."
    assert encode("x" * 199 + "..") == "x" * 199 + "%~/2E%2E"
    assert LogObject(stream.log, "entry", 7).key == f"{stream.log}/00000000000000000007.json"
    compacted, index = f"{stream.data}/compacted/1/c0ffee", f"{stream.data}/index/2-c0ffee"
    assert CompactedFilePath(stream, 1, "c0ffee", 4, ContentType.FEATHER, "a1").key == f"{compacted}/4-a1.arrow"
    assert IndexFilePath(stream, 2, "c0ffee", 11, 0, "a1").key == f"{index}/11-0-a1.arrow"
    assert IndexPointersPath(stream, 2, "c0ffee", 11, 1, 0, "a1").key == f"{index}/11-0-a1.of-run-1.arrow"
    assert DeletionVectorPath(stream, "c0ffee", 4, "a1").key == f"{stream.data}/dead/c0ffee/4-a1.arrow"


def test_open_files_have_names_that_need_no_encoding() -> None:
    partition = {"region": "North America / ü", "day": "100%"}
    folder = f"tables/ACME.ORDERS.V1/compacted/{partition_hash(partition)}"
    assert (
        OpenFilePath("ACME.ORDERS.V1", partition_hash(partition), "c0ffee", 4, "a1").key
        == f"{folder}/c0ffee/4-a1.parquet"
    )
    assert re.fullmatch(r"[A-Za-z0-9._/-]+", folder)
    log = "tables/ACME.ORDERS.V1/compacted/_delta_log"
    assert DeltaLogObject("ACME.ORDERS.V1", "commit", 7).key == f"{log}/00000000000000000007.json"
    iceberg = "tables/ACME.ORDERS.V1/iceberg"
    assert IcebergMetadata("ACME.ORDERS.V1", 7).key == f"{iceberg}/metadata/v7.metadata.json"
    assert IcebergMetadata("ACME.ORDERS.V1", None).key == f"{iceberg}/metadata/version-hint.text"
    assert DeltaLogObject("ACME.ORDERS.V1", "checkpoint", 10).key == f"{log}/00000000000000000010.checkpoint.parquet"


def test_a_marker_of_an_open_job_run_looks_like_this() -> None:
    marker = "open_job_runs_by_owner/orders-1995-04-04,-5,1795228500617"
    assert MarkedJobRun("orders-1995-04-04", -5, 1795228500617).key == marker
    held = MarkedJobRun("a,b", 0, 7, "host/17/0c1d", 3)
    assert held.key == "open_job_runs_by_owner/a%2Cb,0,7,3,host%2F17%2F0c1d"
    assert LiveDispatcher("host/17/0c1d").key == "live_dispatchers/host%2F17%2F0c1d"


@pytest.mark.parametrize(
    "name",
    ["compacted/1/c0ffee/4.arrow", "index/2-c0ffee/11-0.arrow", "index/2-c0ffee/11-0.of-run-1.arrow", "dead/c/4.arrow"],
)
def test_the_name_of_a_file_that_a_task_writes_has_the_attempt_at_the_task(name: str) -> None:
    stream = TableFolder("ACME.ORDERS.V1").stream({})
    stem, suffix = name.split(".", 1)
    assert parse(f"{stream.data}/{stem}-a77e.{suffix}").key == f"{stream.data}/{stem}-a77e.{suffix}"
    with pytest.raises(Invalid):
        parse(f"{stream.data}/{name}")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "tables",
        "tables/a%2Eb",
        "tables/.a/log/_last_checkpoint",
        "tables/a%2Eb/log/_last_checkpoint",
        "tables/../log/_last_checkpoint",
        "tables/a/log/1.json",
        "tables/a/streams/_/log/00000000000000000001.txt",
        "tables/a/streams/_/00000000000000000001.json",
        "tables/a%2f/log/00000000000000000001.json",
        "tables/%FF/log/00000000000000000001.json",
        "tables/a/streams/k=1,k=2/log/00000000000000000001.json",
        "tables/a/data/_/delta/x/01.parquet",
        "tables/a/data/_/delta/x/1.exe",
        "tables/a/data/_/delta/x~/1.parquet",
        "tables/a/data/_/delta/x/1-a1.parquet",
        "tables/a/data/_/compacted/1/x/1-.parquet",
        "tables/a/data/_/compacted/1/x/1-A1.parquet",
        "open_job_runs/a~",
        "open_job_runs_by_owner/a",
        "open_job_runs_by_owner/a,1",
        "open_job_runs_by_owner/a,01,2",
        "open_job_runs_by_owner/a,1,2,3",
        "open_job_runs_by_owner/a,1,x,3,b",
    ],
)
def test_only_rendered_names_parse(key: str) -> None:
    with pytest.raises(Invalid):
        parse(key)


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(Invalid, match="not Unicode"):
        encode("\ud800")
