"""Keys of all owners: they round-trip, none leaves its place, and none is of two kinds."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.keys import (
    CompactedFilePath,
    OpenFilePath,
    StreamFolder,
    StreamLogFolder,
    Suffix,
    TableFolder,
    TableLogFolder,
    partition_hash,
)
from compactor.index.keys import DeletionVectorPath, IndexFilePath, IndexPointersPath
from compactor.log.keys import EntryObject, LogFolder
from compactor.model.errors import Invalid
from compactor.model.names import ContentType
from compactor.publishing.keys import CommitId, DeltaLogCheckpoint, DeltaLogCommit, IcebergMetadata, VectorId
from compactor.sessions.keys import BundleFolder, SessionFolder, SessionLogFolder
from compactor.storage.keys import (
    PART_BYTES_MAX,
    Hex,
    Key,
    PartitionItems,
    continues,
    decode,
    decode_partition,
    encode,
    encode_partition,
)
from compactor.storage.object_store import check_key
from dispatcher.keeper.keys import DecisionLogFolder
from dispatcher.records.keys import (
    Day,
    HistoryDayLog,
    JobRunLogFolder,
    LiveDispatcher,
    MarkedJobRun,
    PausedObject,
    RejectedDocument,
    TurnsLog,
)

ROOT = Path(__file__).parents[3]
TABLES_OF_KEYS = [
    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for package in ("compactor", "launcher", "dispatcher")
    for path in sorted((ROOT / package).rglob("keys.py"))
]
KINDS: list[Any] = [
    each
    for module in TABLES_OF_KEYS
    for each in vars(module).values()
    if isinstance(each, type)
    and each.__module__ == module.__name__
    and ((issubclass(each, Key) and each is not Key) or each is MarkedJobRun)
]
LOG_FOLDERS = (
    StreamLogFolder,
    TableLogFolder,
    SessionLogFolder,
    JobRunLogFolder,
    HistoryDayLog,
    TurnsLog,
    DecisionLogFolder,
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
partitions = st.dictionaries(texts, texts, max_size=3)
numbers = st.integers(0, 10**12)
hexadecimal = st.text("0123456789abcdef", min_size=1, max_size=32)
streams = st.builds(lambda table, partition: TableFolder(table).stream(partition), texts, partitions)
log_folders = st.one_of(
    streams.map(lambda stream: stream.log),
    texts.map(lambda text: TableFolder(text).definition_log),
    texts.map(lambda text: JobRunLogFolder(text).key),
    st.builds(lambda job_run, session: SessionFolder(job_run, session).log, texts, texts),
    st.dates().map(lambda day: HistoryDayLog(day.isoformat()).key),
    st.just(TurnsLog().key),
    texts.map(lambda text: DecisionLogFolder("0123456789abcdef", text).key),
)
BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    str: texts,
    int: numbers,
    bool: st.booleans(),
    Hex: hexadecimal,
    Suffix: st.sampled_from(ContentType),
    Day: st.dates().map(lambda day: day.isoformat()),
    CommitId: st.uuids().map(lambda each: each.hex),
    VectorId: st.uuids().map(str),
    LogFolder: log_folders,
    PartitionItems: partitions.map(lambda partition: tuple(partition.items())),
    StreamFolder: streams,
    SessionFolder: st.builds(SessionFolder, texts, texts),
    BundleFolder: st.builds(BundleFolder, texts, texts),
}
OF_ITS_OWN: dict[object, st.SearchStrategy[Any]] = {
    IcebergMetadata: st.builds(IcebergMetadata, texts, st.none() | numbers),
    MarkedJobRun: st.one_of(
        st.builds(MarkedJobRun, texts, st.integers(-(2**31), 2**31), numbers),
        st.builds(MarkedJobRun, texts, st.integers(-(2**31), 2**31), numbers, texts, st.integers(0, 10**6)),
        st.builds(
            MarkedJobRun,
            texts,
            st.integers(-(2**31), 2**31),
            numbers,
            texts,
            st.integers(0, 10**6),
            hexadecimal,
            st.none() | st.lists(hexadecimal, max_size=8).map(tuple),
        ),
    ),
    PausedObject: st.one_of(
        st.builds(PausedObject, st.sampled_from(["tables", "job_runs"]), texts), st.just(PausedObject("everything"))
    ),
}


def values_of(hint: object) -> st.SearchStrategy[Any]:
    """The values of a field, by its type."""
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if hasattr(hint, "__metadata__"):
        plain, spelling = get_args(hint)
        return BY_TYPE[plain] if plain is bool else st.from_regex(spelling.pattern, fullmatch=True).map(spelling.parse)
    (given_type,) = (each for each in get_args(hint) if each is not type(None))
    return st.none() | values_of(given_type)


def keys_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    if kind in OF_ITS_OWN:
        return OF_ITS_OWN[kind]
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{each.name: values_of(hints[each.name]) for each in fields(kind)})


def parsed_by(key: str) -> Iterator[Key | MarkedJobRun]:
    """What it is, by each kind that parses it; a log's object only in the folder of a log."""
    for kind in KINDS:
        try:
            found = kind.parse(key)
        except Invalid:
            continue
        folder = getattr(found, "folder", None)
        if folder is None or any(each.parse_or_none(folder) is not None for each in LOG_FOLDERS):
            yield found


keys = st.sampled_from(KINDS).flatmap(keys_of)


@given(keys)
def test_every_key_parses_to_what_it_names_and_to_nothing_else(key: Key | MarkedJobRun) -> None:
    assert list(parsed_by(key.key)) == [key]


@given(keys)
def test_no_key_holds_anything_a_file_system_reads_something_into(key: Key | MarkedJobRun) -> None:
    check_key(key.key)
    for part in key.key.split("/"):
        assert re.fullmatch(r"[A-Za-z0-9_.,=%~-]+", part)
        assert not part.startswith(".")
        assert len(part) <= 255


def recorded_keys() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "tests/golden/keys.jsonl").read_text().splitlines()]


def field(name: str, value: object) -> object:
    match name, value:
        case "stream", {"table_id": table_id, "partition": partition}:
            return TableFolder(table_id).stream(dict(partition))
        case "session", dict():
            return SessionFolder(**value)
        case "bundle", dict():
            return BundleFolder(**value)
        case "content_type", str():
            return ContentType(value)
        case _:
            return tuple(value) if isinstance(value, list) else value


def test_keys_are_those_that_were_recorded() -> None:
    by_name = {kind.__name__: kind for kind in KINDS}
    recorded = recorded_keys()
    for each in recorded:
        key = by_name[each["of"]](**{name: field(name, value) for name, value in each["fields"].items()})
        assert key.key == each["key"]
        assert list(parsed_by(each["key"])) == [key]
    assert {each["of"] for each in recorded} >= by_name.keys() - {"StreamFolder", "JobRunFolder"}


def test_keys_of_a_kind_are_listed_by_their_first_fields() -> None:
    assert RejectedDocument.prefix() == "rejected_documents/"
    assert RejectedDocument.prefix("a/b") == "rejected_documents/a%2Fb/"
    assert RejectedDocument("a/b", "m").key.startswith(RejectedDocument.prefix("a/b"))


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
    assert EntryObject(stream.log, 7).key == f"{stream.log}/00000000000000000007.json"
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
    assert DeltaLogCommit("ACME.ORDERS.V1", 7).key == f"{log}/00000000000000000007.json"
    iceberg = "tables/ACME.ORDERS.V1/iceberg"
    assert IcebergMetadata("ACME.ORDERS.V1", 7).key == f"{iceberg}/metadata/v7.metadata.json"
    assert IcebergMetadata("ACME.ORDERS.V1", None).key == f"{iceberg}/metadata/version-hint.text"
    assert DeltaLogCheckpoint("ACME.ORDERS.V1", 10).key == f"{log}/00000000000000000010.checkpoint.parquet"


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
    folder = TableFolder("ACME.ORDERS.V1").stream({}).data
    stem, suffix = name.split(".", 1)
    assert [found.key for found in parsed_by(f"{folder}/{stem}-a77e.{suffix}")] == [f"{folder}/{stem}-a77e.{suffix}"]
    assert list(parsed_by(f"{folder}/{name}")) == []


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
        "tables/a/iceberg/metadata/v007.metadata.json",
        "job_runs/a/sessions/b/plan-1.json",
        "open_job_runs_by_owner/a,1,2~",
        "open_job_runs_by_owner/a",
        "open_job_runs_by_owner/a,1",
        "open_job_runs_by_owner/a,01,2",
        "open_job_runs_by_owner/a,1,2,3",
        "open_job_runs_by_owner/a,1,x,3,b",
        "paused/tables",
        "paused/everything/a",
        "history/cleaned/2026-02-30",
    ],
)
def test_only_rendered_names_parse(key: str) -> None:
    assert list(parsed_by(key)) == []


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(Invalid, match="not Unicode"):
        encode("\ud800")
