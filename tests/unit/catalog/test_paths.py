"""Names of objects: they round-trip, and none leaves its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.paths import (
    PART_BYTES_MAX,
    CompactedFilePath,
    DeletionVectorPath,
    DeltaFilePath,
    IndexFilePath,
    IndexPointersPath,
    JobRunFolder,
    JobRunObject,
    LogObject,
    ObjectPath,
    OpenJobRun,
    StreamFolder,
    TableFolder,
    continues,
    decode,
    decode_partition,
    encode,
    encode_partition,
    parse,
)
from compactor.errors import Invalid
from compactor.names import ContentType
from compactor.object_store import check_key

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
partitions = st.dictionaries(texts, texts, max_size=3)
numbers = st.integers(1, 10**12)
streams = st.builds(lambda table, partition: TableFolder(table).stream(partition), texts, partitions)
content_types = st.sampled_from(ContentType)
log_folders = st.one_of(
    streams.map(lambda stream: stream.log),
    texts.map(lambda text: TableFolder(text).definition_log),
    texts.map(lambda text: JobRunFolder(text).log),
    st.builds(lambda job_run, session: JobRunFolder(job_run).session(session).log, texts, texts),
)
paths: st.SearchStrategy[ObjectPath] = st.one_of(
    st.builds(LogObject, log_folders, st.sampled_from(["entry", "checkpoint"]), numbers),
    st.builds(LogObject, log_folders, st.just("hint")),
    st.builds(DeltaFilePath, streams, texts, numbers, content_types),
    st.builds(CompactedFilePath, streams, numbers, texts, numbers, content_types),
    st.builds(IndexFilePath, streams, numbers, texts, st.integers(0, 10_000), st.integers(0, 100)),
    st.builds(IndexPointersPath, streams, numbers, texts, st.integers(0, 10_000), numbers, st.integers(0, 100)),
    st.builds(DeletionVectorPath, streams, texts, numbers),
    st.builds(JobRunObject, st.builds(JobRunFolder, texts), st.just("published.json")),
    st.builds(lambda job_run, session: JobRunFolder(job_run).session(session).plan, texts, texts),
    st.builds(lambda job_run, session: JobRunFolder(job_run).session(session).heartbeat, texts, texts),
    st.builds(OpenJobRun, texts),
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
    assert (
        CompactedFilePath(stream, 1, "c0ffee", 4, ContentType.FEATHER).key
        == f"{stream.data}/compacted/1/c0ffee/4.arrow"
    )
    assert IndexFilePath(stream, 2, "c0ffee", 11, 0).key == f"{stream.data}/index/2-c0ffee/11-0.arrow"
    assert IndexPointersPath(stream, 2, "c0ffee", 11, 1, 0).key == f"{stream.data}/index/2-c0ffee/11-0.of-run-1.arrow"


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
        "open_job_runs/a~",
    ],
)
def test_what_was_not_rendered_here_does_not_parse(key: str) -> None:
    with pytest.raises(Invalid):
        parse(key)


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(Invalid, match="not Unicode"):
        encode("\ud800")
