"""What a compaction does, seen from outside: rows, files, versions, figures."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.model.names import ContentType
from compactor.planning.spec import JobRunResult, SessionResult
from tests.builders import TABLE_ID, CompactedSide, audit, key_digests

Compact = partial[JobRunResult]
BY_TIME = [("time", "ascending")]


def only_session(result: JobRunResult) -> SessionResult:
    (session,) = result.sessions
    assert session.rows_in == session.rows_out + session.rows_deduplicated + session.rows_deleted
    return session


def values_of(lake: DeltaCatalog, table_id: str = TABLE_ID) -> dict[object, object]:
    """The compacted table as {id: value}, after an audit of its index."""
    side = CompactedSide.of(lake, table_id)
    audit(side)
    return {row["id"]: row.get("value") for row in side.rows().to_pylist()}


def table(ids: Sequence[object], values: Sequence[object]) -> pa.Table:
    return pa.table({"id": list(ids), "value": list(values)})


# --------------------------------------------------------------------------------------------------------- what is run


def test_a_later_run_takes_only_what_was_appended_since(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table([1, 2, 3], "abc"), position=10)
    orders.append({}, table([2, 4], "BD"), position=20)
    first = only_session(compact_orders())
    assert (first.rounds, first.rows_in, first.rows_out, first.rows_deduplicated) == (1, 5, 4, 1)
    orders.append({}, table([1], "x"), position=30)
    orders.append({}, pa.table({"id": [3, 99]}), operation="delete", position=40)
    second = only_session(compact_orders())
    assert (second.rounds, second.rows_in, second.rows_out) == (1, 4 + 3, 3)
    assert (second.rows_deduplicated, second.rows_deleted) == (2, 2)
    assert values_of(lake) == {1: "x", 2: "B", 4: "D"}
    assert CompactedSide.of(lake).stream.processed.position == 40


def test_a_run_with_nothing_to_do_succeeds_and_says_so(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact, tmp_path: Path
) -> None:
    orders.append({}, table([1, 2], "ab"))
    compact_orders()
    before = everything_under(tmp_path)
    session = only_session(compact_orders())
    assert (session.rounds, session.rows_in, session.rows_out) == (0, 2, 2)
    assert session.completions == ()
    assert everything_under(tmp_path) == before


def test_a_table_without_deltas_has_nothing_to_do(orders: Table, compact_orders: Compact) -> None:
    assert compact_orders().sessions == ()
    orders.create_stream_version({}, state="active")
    assert only_session(compact_orders()).rounds == 0


def test_an_empty_delta_moves_the_watermark_and_nothing_else(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    empty = table([1], "a").slice(1)
    orders.append({}, empty, position=1)
    session = only_session(compact_orders())
    assert (session.rounds, session.rows_in, session.rows_out) == (1, 0, 0)
    orders.append({}, table([1], "a"), position=2)
    orders.append({}, empty, position=3)
    compact_orders()
    orders.append({}, pa.table({"other": pa.array([], pa.int8())}), operation="delete", position=4)
    session = only_session(compact_orders())
    assert (session.rounds, session.rows_out) == (1, 1)
    assert CompactedSide.of(lake).stream.processed.position == 4
    assert values_of(lake) == {1: "a"}


def test_a_key_whose_every_row_is_deleted_can_come_back(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table([1, 2], "ab"))
    orders.append({}, pa.table({"id": [1, 2]}), operation="delete")
    assert only_session(compact_orders()).rows_out == 0
    assert CompactedSide.of(lake).files == []
    assert values_of(lake) == {}
    orders.append({}, table([2], "B"))
    compact_orders()
    assert values_of(lake) == {2: "B"}


def test_deletes_before_any_upsert_leave_a_table_that_takes_rows_later(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, pa.table({"id": [1, 2]}), operation="delete")
    session = only_session(compact_orders(sort_keys=BY_TIME))
    assert (session.rows_in, session.rows_out, session.rows_deleted) == (2, 0, 2)
    orders.append({}, pa.table({"id": [1], "time": [Decimal("1.5")], "value": ["a"]}))
    compact_orders(sort_keys=BY_TIME)
    assert values_of(lake) == {1: "a"}


def test_only_the_partitions_asked_for_are_compacted(lake: DeltaCatalog) -> None:
    orders = lake.create_table(TABLE_ID, ["day"])
    days = [{"day": day} for day in ("1995-04-03", "../1995", "a/b=c")]
    for day in days:
        orders.append(day, table([1], [day["day"]]))
    run = partial(compact, TABLE_ID, {"id"}, delta_catalog_client=lake, hash_bucket_count=1)
    result = run(partitions=days[1:2])
    assert [session.partition for session in result.sessions] == days[1:2]
    assert all((orders.stream(day).load().state.compacted is None) == (day != days[1]) for day in days)
    result = run()
    assert sorted((session.partition["day"], session.rounds) for session in result.sessions) == [
        ("../1995", 0),
        ("1995-04-03", 1),
        ("a/b=c", 1),
    ]
    for day in days:
        assert CompactedSide.of(lake, TABLE_ID, day).rows().to_pylist() == [{"id": 1, "value": day["day"], **day}]


def test_the_destination_is_another_table_and_the_source_stays_a_source(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table([1, 1], "ab"))
    compact_orders(destination_compacted_table_id="ACME.CLEAN ORDERS.V2")
    assert values_of(lake, "ACME.CLEAN ORDERS.V2") == {1: "b"}
    assert orders.stream({}).load().state.compacted is None
    orders.append({}, table([2], "c"))
    session = only_session(compact_orders(destination_compacted_table_id="ACME.CLEAN ORDERS.V2"))
    assert (session.rows_in, session.rows_out) == (2, 2)


def test_a_new_source_stream_version_starts_a_new_compacted_stream_version(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table([1, 2], "ab"))
    compact_orders()
    version = orders.create_stream_version({})
    orders.append({}, table([2], "B"), stream_version=version)
    assert only_session(compact_orders()).rounds == 0  # unreleased: nobody has asked for it yet
    orders.release_stream_version({}, version)
    session = only_session(compact_orders())
    assert (session.rounds, session.rows_in, session.rows_out) == (1, 1, 1)
    stream = CompactedSide.of(lake).stream
    assert (stream.stream_version, stream.source_stream_version, stream.index_version) == (2, 2, 2)
    assert values_of(lake) == {2: "B"}


# ----------------------------------------------------------------------------------------------------------- survivors


def test_a_late_older_row_never_beats_a_newer_compacted_one(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    for time, value in ((5, "five"), (3, "three"), (7, "seven"), (7, "seven again"), (6, "six")):
        orders.append({}, pa.table({"id": [1], "time": [time], "value": [value]}))
        compact_orders(sort_keys=BY_TIME)
    assert values_of(lake) == {1: "seven again"}


def test_a_deleted_key_stays_deleted_for_late_older_rows_until_its_tombstone_is_forgotten(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    run = partial(compact_orders, sort_keys=BY_TIME, tombstone_retention=10)
    orders.append({}, pa.table({"id": [1], "time": [5], "value": ["a"]}), position=100)
    run()
    orders.append({}, pa.table({"id": [1], "time": [9]}), operation="delete", position=101)
    session = only_session(run())
    assert (session.rows_out, session.rows_deleted, session.completions[-1].counts.tombstones) == (0, 1, 1)
    orders.append({}, pa.table({"id": [1], "time": [8], "value": ["late"]}), position=111)
    assert only_session(run()).rows_deduplicated == 1
    assert values_of(lake) == {}
    orders.append({}, pa.table({"id": [1], "time": [8], "value": ["later"]}), position=112)
    session = only_session(run())
    assert session.completions[-1].counts.tombstones == 0
    assert values_of(lake) == {1: "later"}


def test_the_stream_position_is_a_sort_key_like_others(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    first_wins = [("time", "ascending"), ("partition_stream_position", "descending")]
    for position, value in enumerate("abc"):
        orders.append({}, pa.table({"id": [1, 2], "time": [7, position], "value": [value, value]}))
        compact_orders(sort_keys=first_wins)
    assert values_of(lake) == {1: "a", 2: "c"}


def test_a_sort_key_may_be_part_of_the_primary_key(lake: DeltaCatalog, orders: Table, compact_orders: Compact) -> None:
    orders.append({}, table([1, 1, 2], "abc"))
    compact_orders(sort_keys=[("id", "descending")])
    assert values_of(lake) == {1: "b", 2: "c"}


def test_sort_values_that_are_all_null_at_first_may_have_any_type_later(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, pa.table({"id": [1, 2], "time": pa.nulls(2), "value": ["a", "b"]}))
    compact_orders(sort_keys=BY_TIME)
    times = pa.array([1_000, None], pa.timestamp("ms", "UTC"))
    orders.append({}, pa.table({"id": [1, 2], "time": times, "value": ["A", "B"]}))
    compact_orders(sort_keys=BY_TIME)
    orders.append({}, pa.table({"id": [1, 2], "time": times.take(pa.array([1, 0])), "value": ["x", "y"]}))
    compact_orders(sort_keys=BY_TIME)
    assert values_of(lake) == {1: "A", 2: "y"}


def test_sort_values_and_keys_widen_from_run_to_run(lake: DeltaCatalog, orders: Table, compact_orders: Compact) -> None:
    for kind, value in ((pa.int8(), "a"), (pa.int64(), "b"), (pa.int16(), "c"), (pa.uint32(), "d")):
        times = pa.array([5, 4 if value == "d" else 6], kind)
        orders.append({}, pa.table({"id": pa.array([1, 2], kind), "time": times, "value": [value, value]}))
        compact_orders(sort_keys=BY_TIME)
    assert values_of(lake) == {1: "d", 2: "c"}
    assert CompactedSide.of(lake).rows().schema.field("id").type == pa.int64()


def test_a_uuid_is_a_key_and_a_sort_key(lake: DeltaCatalog, orders: Table, compact_orders: Compact) -> None:
    low, high = UUID(int=1), UUID(int=2**127)
    for sort, value in ((high, "first"), (low, "second")):
        columns = {"id": pa.array([low.bytes], pa.uuid()), "time": pa.array([sort.bytes], pa.uuid()), "value": [value]}
        orders.append({}, pa.table(columns))
        compact_orders(sort_keys=BY_TIME)
    assert [row["value"] for row in CompactedSide.of(lake).rows().to_pylist()] == ["first"]


# --------------------------------------------------------------------------------------------------------------- files


def test_a_compacted_file_whose_rows_all_survive_is_carried_over_by_reference(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table(range(6), "abcdef"))
    compact_orders(rows_per_compacted_file=2)
    side = CompactedSide.of(lake)
    before = {
        file.file_number: (file, side.path_of(file).read_bytes(), side.path_of(file).stat()) for file in side.files
    }
    touched = side.read(side.files[1]).column("id")[0].as_py()
    orders.append({}, table([touched], "X"))
    session = only_session(compact_orders(rows_per_compacted_file=2))
    after = {file.file_number: file for file in side.files}
    carried = set(before) & set(after)
    assert carried == {1, 3}
    for number in carried:
        file, content, stat = before[number]
        assert after[number] == file
        assert side.path_of(file).read_bytes() == content
        assert side.path_of(file).stat().st_mtime_ns == stat.st_mtime_ns
    assert session.completions[-1].files_removed == (2,)
    assert session.completions[-1].counts.rows_carried == 4
    assert min(set(after) - carried) == 4
    assert values_of(lake) == {**dict(enumerate("abcdef")), touched: "X"}


def test_no_compacted_file_has_more_rows_than_asked_for_and_no_index_file_either(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table(range(10), "abcdefghij"))
    compact_orders(rows_per_compacted_file=3, rows_per_primary_key_index_file=2, hash_bucket_count=1)
    side = CompactedSide.of(lake)
    assert [file.rows for file in side.files] == [3, 3, 3, 1]
    assert [file.rows for file in side.stream.index_files] == [2] * 5
    assert values_of(lake) == dict(enumerate("abcdefghij"))


def test_rows_are_in_the_order_of_source_file_and_hash_bucket(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table(range(40), range(40)), rows_per_file=10)
    compact_orders(hash_bucket_count=3, rows_per_compacted_file=7)
    rows = pa.concat_tables([CompactedSide.of(lake).read(file) for file in CompactedSide.of(lake).files])
    buckets = [int.from_bytes(digest, "big") % 3 for digest in key_digests(rows, ["id"])]
    places = [(row // 10, bucket, row) for row, bucket in zip(rows["value"].to_pylist(), buckets, strict=True)]
    assert places == sorted(places)


@pytest.mark.parametrize("content_type", [each for each in ContentType if each is not ContentType.JSON])
def test_files_are_written_in_the_content_type_asked_for(
    content_type: ContentType, lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table([1, 2, 2], ["a", "b", 'c,"\n']))
    compact_orders(compacted_file_content_type=content_type)
    (file,) = CompactedSide.of(lake).files
    path = CompactedSide.of(lake).path_of(file)
    match content_type:
        case ContentType.PARQUET:
            read = pq.read_table(path)
        case ContentType.FEATHER:
            read = pa.feather.read_table(path)
        case ContentType.ORC:
            read = pa.orc.read_table(path)
        case _:
            delimiter = "\t" if content_type is ContentType.TSV else ","
            options = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
            read = pa.csv.read_csv(path, parse_options=options)
    assert sorted(read.to_pylist(), key=lambda row: row["id"]) == [{"id": 1, "value": "a"}, {"id": 2, "value": 'c,"\n'}]
    orders.append({}, table([3], ["d"]))
    compact_orders(compacted_file_content_type=content_type)
    assert values_of(lake) == {1: "a", 2: 'c,"\n', 3: "d"}


def test_files_of_every_format_mix_in_one_stream(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact, tmp_path: Path
) -> None:
    rows = {
        suffix: table([1, 10 + place], [suffix, suffix])
        for place, suffix in enumerate(("orc", "arrow", "csv", "parquet"))
    }
    pa.orc.write_table(rows["orc"], tmp_path / "a.orc")
    pa.feather.write_feather(rows["arrow"], tmp_path / "a.arrow")
    with pa.CompressedOutputStream(tmp_path / "a.csv.gz", "gzip") as out:
        pa.csv.write_csv(rows["csv"], out)
    pq.write_table(rows["parquet"], tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text('{"id": 1, "value": "json"}\n{"id": 14, "value": "json"}\n')
    names = ("a.orc", "a.arrow", "a.csv.gz", "a.parquet", "a.jsonl")
    delta = orders.append({}, [tmp_path / name for name in names])
    assert [file.content_type for file in delta.files] == ["orc", "feather", "csv", "parquet", "json"]
    orders.append({}, table([10], ["tsv"]), content_type="tsv")
    session = only_session(compact_orders())
    assert (session.rows_in, session.rows_out) == (11, 6)
    assert values_of(lake) == {1: "json", 10: "tsv", 11: "arrow", 12: "csv", 13: "parquet", 14: "json"}


@pytest.mark.parametrize("content_type", ["orc", "csv"])
def test_values_come_back_in_their_types_from_formats_that_hold_others_in_their_place(
    content_type: str, lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    source = pa.table(
        {
            "id": pa.array([1, 2], pa.uint64()),
            "small": pa.array([255, None], pa.uint8()),
            "at": pa.array([1_000, None], pa.timestamp("ms", "Europe/Berlin")),
            "naive": pa.array([1_000_001, None], pa.timestamp("us")),
            "half": pa.array([1.5, None], pa.float16()),
            "large": pa.array(["x", None], pa.large_string()),
            "decimal": pa.array([Decimal("1.10"), None], pa.decimal128(20, 2)),
        }
    )
    orders.append({}, source)
    compact_orders(compacted_file_content_type=content_type, rows_per_compacted_file=1)
    orders.append({}, source.slice(1))
    compact_orders(compacted_file_content_type=content_type)
    assert CompactedSide.of(lake).rows().sort_by("id").equals(source)
    audit(CompactedSide.of(lake))


def test_every_value_is_as_it_was_in_the_source_whatever_its_type(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    source = pa.table(
        {
            "id": [1, 2, 2],
            "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
            "struct": pa.array([{"a": 1.5, "b": None}, None, {"a": None, "b": "x"}]),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "decimal": pa.array([Decimal("1.10"), None, Decimal("-0.01")], pa.decimal128(20, 2)),
            "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
            "zone": pa.array([0, None, 1], pa.timestamp("us", "Europe/Berlin")),
            "large": pa.array(["x", None, "y" * 100], pa.large_string()),
            "bytes": pa.array([b"\x00", None, b""], pa.binary()),
        }
    )
    noted = source.schema.field("large").with_metadata({"owner": "billing"})
    source = source.cast(source.schema.set(source.schema.get_field_index("large"), noted))
    orders.append({}, source)
    compact_orders()
    rows = CompactedSide.of(lake).rows().sort_by("id")
    assert rows.drop_columns("dictionary").equals(source.take(pa.array([0, 2])).drop_columns("dictionary"))
    assert rows["dictionary"].to_pylist() == ["a", "a"]
    assert rows.schema.field("large").metadata == {b"owner": b"billing"}


# ------------------------------------------------------------------------------------------------------------- schemas


def test_a_new_column_is_added_and_a_missing_one_is_null(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, pa.table({"id": [1, 2], "value": ["a", "b"]}))
    compact_orders(rows_per_compacted_file=1)
    orders.append({}, pa.table({"id": [2, 3], "new": [1.5, 2.5]}))
    compact_orders()
    assert CompactedSide.of(lake).rows().sort_by("id").to_pylist() == [
        {"id": 1, "value": "a", "new": None},
        {"id": 2, "value": None, "new": 1.5},
        {"id": 3, "value": None, "new": 2.5},
    ]
    assert CompactedSide.of(lake).stream.last_round.counts.rows_carried == 1


def test_integers_and_floats_widen_also_where_a_file_is_carried_over(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    narrow = pa.schema([("id", pa.int16()), ("value", pa.float32())])
    orders.append({}, pa.table({"id": [1, 2], "value": [0.5, 1.5]}, schema=narrow))
    compact_orders(rows_per_compacted_file=1)
    orders.append({}, pa.table({"id": [2, 2**40], "value": [0.1, 0.2]}))
    compact_orders()
    rows = CompactedSide.of(lake).rows()
    assert rows.schema.types == [pa.int64(), pa.float64()]
    assert values_of(lake) == {1: 0.5, 2: 0.1, 2**40: 0.2}


# ------------------------------------------------------------------------------------------------------------- figures


def test_a_completion_has_figures_for_every_step(orders: Table, compact_orders: Compact) -> None:
    orders.append({}, table([1, 2], "ab"))
    session = only_session(compact_orders())
    (completion,) = session.completions
    assert set(completion.steps) == {"hash_bucket", "dedupe", "materialize"}
    for figures in completion.steps.values():
        assert figures.seconds > 0
        assert figures.tasks >= 1
        assert figures.peak_memory_bytes > 10_000_000
    assert session.seconds >= sum(figures.seconds for figures in completion.steps.values())
    assert session.expected_sla > 0


def test_a_session_in_several_rounds_counts_every_row_once(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table([1, 2, 3, 1], "abcd"), position=1, rows_per_file=1)
    orders.append({}, pa.table({"id": [2]}), operation="delete", position=2)
    session = only_session(compact_orders(max_rows_per_round=2))
    assert session.rounds == 3
    assert [each.round_number for each in session.completions] == [1, 2, 3]
    assert [each.processed.file_number for each in session.completions] == [2, None, None]
    assert (session.rows_in, session.rows_out, session.rows_deduplicated, session.rows_deleted) == (5, 2, 2, 1)
    assert values_of(lake) == {1: "d", 3: "c"}


def test_a_run_with_another_hash_bucket_count_rehashes_the_index_first(
    lake: DeltaCatalog, orders: Table, compact_orders: Compact
) -> None:
    orders.append({}, table(range(8), "abcdefgh"))
    compact_orders(hash_bucket_count=2)
    orders.append({}, table([3], "X"))
    compact_orders(hash_bucket_count=5)
    stream = CompactedSide.of(lake).stream
    assert stream.hash_bucket_count == 5
    assert stream.index_version == 3
    assert values_of(lake) == {**dict(enumerate("abcdefgh")), 3: "X"}


def test_importing_the_api_brings_neither_spark_nor_boto3() -> None:
    import subprocess
    import sys

    code = "import sys; from compactor import DeltaCatalog, compact; print({'pyspark', 'boto3'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "set()"


def everything_under(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}
