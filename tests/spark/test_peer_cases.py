"""The cases that a public relative of the paper's compactor is tested with, run through append and compact().

Every case of `tests/golden/deltacat_cases.json` (its origin is noted in the file) is here. One that Lithify
decides in another way is named in OUTSIDE with the reason, and what it does instead is asserted: nothing is skipped.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from compactor import DeltaCatalog, compact
from compactor.catalog.properties import ROWS_PER_COMPACTED_FILE
from compactor.model.errors import Invalid
from compactor.model.names import Operation
from compactor.planning.spec import JobRunResult
from tests.builders import TABLE_ID, CompactedSide, audit, multiset
from tests.oracle import OracleDelta, surviving_rows

pytestmark = pytest.mark.spark

NO_PRIMARY_KEY = "Lithify compacts by primary key: a table without one is refused"
VARIABLE_WIDTH_SORT_KEY = "a sort key of text has no fixed width, which the paper asks for"
DELETE_BY_OTHER_COLUMNS = "a delete names keys; one by other columns cannot be found by the primary key index"
DUPLICATES_KEPT = "the case asks to keep duplicates of a key, which Lithify does not offer: it drops them"

OUTSIDE: Mapping[str, Sequence[str]] = {
    NO_PRIMARY_KEY: (
        "7-rebase-then-incremental-no-pk-compactor-v2-only",
        "29-rebase-then-incremental-delete-type-delta-no-pk-compactor",
    ),
    VARIABLE_WIDTH_SORT_KEY: (
        "3-incremental-pkstr-multiskstr-norci",
        "4-incremental-duplicate-pk",
        "5-incremental-decimal-pk-simple",
        "6-incremental-integer-pk-simple",
        "7-incremental-timestamp-pk-simple",
        "15-incremental-empty-input-with-single-hash-bucket",
        "1-rebase-sanity",
        "2-rebase-with-null-pk",
        "3-rebase-with-null-two-pk",
        "1-rebase-then-incremental-sanity",
        "2-rebase-then-incremental-pk-multi",
        "6-rebase-then-incremental-hash-bucket-GT-records-per-compacted-file-v2-only",
        "9-rebase-then-incremental-single-hash-bucket",
        "11-rebase-then-empty-incremental-delta",
        "12-rebase-then-incremental-hash-bucket-single",
        "13-rebase-then-empty-incremental-delta-hash-bucket-single",
        "14-rebase-then-incremental-with-null-pk",
        "28-rebase-then-incremental-delete-type-delta-hash-bucket-single",
        "1-multiple-rounds-sanity",
        "2-multiple-rounds-unique-values",
        "4-multiple-rounds-hb-count-equals-1",
        "6-multiple-rounds-test-pgm",
    ),
    DELETE_BY_OTHER_COLUMNS: (
        "14-rebase-then-incremental-delete-type-delta-on-incremental",
        "15-rebase-then-incremental-delete-type-delta-on-incremental-multi-pk",
        "16-rebase-then-incremental-delete-type-delta-on-incremental-multi-pk-delete-all",
        "17-rebase-then-incremental-delete-type-delta-delete-entire-base-table",
        "18-rebase-then-incremental-delete-type-delta-keep-base-table-drop-all-incremental",
        "19-rebase-then-incremental-delete-type-delta-drop-only-from-base-table-keep-all-incremental",
        "20-rebase-then-incremental-delete-type-delta-drop-all-base-table-drop-all-incremental",
        "21-rebase-then-incremental-delete-type-delta-UDDUUDD",
        "22-rebase-then-incremental-delete-type-delta-UD-affects-compacted-and-incremental",
        "23-rebase-then-incremental-delete-type-delta-UDU-upsert-again",
        "26-rebase-then-incremental-delete-type-delta-UDU-duplicate-delete-records",
        "27-rebase-then-incremental-delete-type-delta-DDU-deletes-then-upserts",
        "28-rebase-then-incremental-delete-type-delta-hash-bucket-single",
        "31-rebase-then-incremental-delete-delta-on-incremental-null-pk-delete-null",
        "delete-strategy/1-test-delete-successful",
        "delete-strategy/6-test-delete-multi-column",
    ),
    DUPLICATES_KEPT: (
        "6-rebase-with-null-multiple-pk-drop-duplicates-false",
        "7-rebase-drop-duplicates-false",
        "8-rebase-with-with-null-pk-duplicates-false-hash-bucket-1",
        "10-rebase-then-incremental-drop-duplicates-false-on-incremental-v2-only",
        "1-multiple-rounds-sanity",
        "6-multiple-rounds-test-pgm",
    ),
}


@dataclass(frozen=True)
class PeerDelta:
    position: int
    operation: Operation
    rows: pa.Table


@dataclass(frozen=True)
class PeerRound:
    """What arrives between two compactions, and what is in the table after the second."""

    deltas: tuple[PeerDelta, ...]
    expected: pa.Table


@dataclass(frozen=True)
class PeerCase:
    name: str
    primary_keys: tuple[str, ...]
    sort_keys: tuple[tuple[str, str], ...]
    partition: Mapping[str, str]
    hash_bucket_count: int
    rows_per_file: int
    rounds_in_one: int
    rounds: tuple[PeerRound, ...]

    def reasons(self) -> tuple[str, ...]:
        return tuple(reason for reason, names in OUTSIDE.items() if self.name in names)

    def with_fixed_width(self) -> PeerCase:
        """The case with its text sort keys as bytes of one width, which sort as the text does."""
        columns = [name for name, _ in self.sort_keys]
        return replace(self, rounds=tuple(_fixed_width_round(each, columns) for each in self.rounds))


def _table(columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[object]]) -> pa.Table:
    arrow_types = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}
    schema = pa.schema([pa.field(name, arrow_types[kind]) for name, kind in zip(columns, types, strict=True)])
    return pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema=schema)


def _fixed_width_round(peer_round: PeerRound, columns: Sequence[str]) -> PeerRound:
    deltas = tuple(replace(each, rows=_fixed_width(each.rows, columns)) for each in peer_round.deltas)
    return PeerRound(deltas, _fixed_width(peer_round.expected, columns))


def _fixed_width(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    for place, field in enumerate(table.schema):
        if field.name in columns and pa.types.is_string(field.type):
            width = 20 if len(columns) == 1 else 16
            padded = [None if value is None else value.encode().ljust(width) for value in table[field.name].to_pylist()]
            table = table.set_column(place, field.name, pa.array(padded, pa.binary(width)))
    return table


def _load() -> dict[str, PeerCase]:
    document = json.loads((Path(__file__).parents[1] / "golden" / "deltacat_cases.json").read_text())
    return {case["name"]: _parse(case) for case in document["cases"]}


def _parse(case: dict[str, object]) -> PeerCase:
    document: dict[str, list[dict[str, list[dict[str, object]]]]] = case  # type: ignore[assignment]
    rounds = tuple(
        PeerRound(
            deltas=tuple(
                PeerDelta(
                    position=int(str(delta["position"])),
                    operation=Operation(str(delta["op"])),
                    rows=_table(delta["columns"], delta["types"], delta["rows"]),  # type: ignore[arg-type]
                )
                for delta in each["deltas"]
            ),
            expected=_table(each["expected_columns"], each["expected_types"], each["expected_rows"]),  # type: ignore[arg-type]
        )
        for each in document["rounds"]
    )
    names = [name for name, _ in case["partition_keys"]]  # type: ignore[attr-defined]
    return PeerCase(
        name=str(case["name"]),
        primary_keys=tuple(case["primary_keys"]),  # type: ignore[arg-type]
        sort_keys=tuple((name, order) for name, order in case["sort_keys"]),  # type: ignore[attr-defined]
        partition=dict(zip(names, case["partition_values"], strict=True)),  # type: ignore[call-overload]
        hash_bucket_count=int(str(case["hash_bucket_count"])),
        rows_per_file=int(str(case["records_per_file"] or ROWS_PER_COMPACTED_FILE)),
        rounds_in_one=int(str(case.get("num_rounds", 1))),
        rounds=rounds,
    )


CASES = _load()


def _cases(*reasons: str) -> pytest.MarkDecorator:
    chosen = [case for case in CASES.values() if case.reasons() == reasons]
    return pytest.mark.parametrize("case", chosen, ids=[case.name for case in chosen])


def _all_cases_with(reason: str) -> pytest.MarkDecorator:
    chosen = [CASES[name] for name in OUTSIDE[reason]]
    return pytest.mark.parametrize("case", chosen, ids=[case.name for case in chosen])


class Runner:
    """A table that takes a case's rounds one after the other."""

    def __init__(self, folder: Path, case: PeerCase, spark: SparkSession) -> None:
        self.lake = DeltaCatalog.open(folder)
        self._case = case
        self._spark = spark
        self._table = self.lake.create_table(TABLE_ID, list(case.partition))

    def append(self, peer_round: PeerRound) -> None:
        for delta in peer_round.deltas:
            self._table.append(self._case.partition, delta.rows, operation=delta.operation, position=delta.position)

    def compact(self, peer_round: PeerRound) -> JobRunResult:
        case = self._case
        rows = sum(delta.rows.num_rows for delta in peer_round.deltas)
        return compact(
            TABLE_ID,
            set(case.primary_keys),
            case.sort_keys or [("partition_stream_position", "ascending")],
            delta_catalog_client=self.lake,
            rows_per_compacted_file=case.rows_per_file,
            hash_bucket_count=case.hash_bucket_count,
            max_rows_per_round=max(1, -(-rows // case.rounds_in_one)),
            spark=self._spark,
        )

    def rows(self) -> Counter[tuple[str, ...]]:
        return multiset(self.side.rows(), self.columns)

    @property
    def columns(self) -> list[str]:
        return list(self._case.rounds[0].expected.schema.names)

    @property
    def side(self) -> CompactedSide:
        return CompactedSide.of(self.lake, TABLE_ID, self._case.partition)

    @property
    def log_length(self) -> int:
        return self._table.stream(self._case.partition).load().entry_number


def run_every_round(runner: Runner, case: PeerCase) -> None:
    for peer_round in case.rounds:
        runner.append(peer_round)
        (session,) = runner.compact(peer_round).sessions
        assert session.rows_in == session.rows_out + session.rows_deduplicated + session.rows_deleted
        assert runner.rows() == multiset(peer_round.expected, runner.columns)
        if session.rows_out:
            assert runner.side.rows().select(runner.columns).schema.types == peer_round.expected.schema.types
        audit(runner.side)


def run_until_refused(runner: Runner, case: PeerCase) -> str:
    """What Lithify says of the first round that it refuses, after which nothing has changed."""
    for peer_round in case.rounds:
        runner.append(peer_round)
        before = runner.log_length
        try:
            runner.compact(peer_round)
        except Invalid as refusal:
            assert runner.log_length == before
            return str(refusal)
    raise AssertionError(f"{case.name} was not refused")


# --------------------------------------------------------------------------------------------------------------- inside


@_cases()
def test_a_case_inside_the_contract_ends_with_the_peer_s_rows(
    case: PeerCase, tmp_path: Path, spark: SparkSession
) -> None:
    run_every_round(Runner(tmp_path, case, spark), case)


# -------------------------------------------------------------------------------------------------------------- outside


@_all_cases_with(NO_PRIMARY_KEY)
def test_a_table_without_primary_key_is_refused(case: PeerCase, tmp_path: Path, spark: SparkSession) -> None:
    assert run_until_refused(Runner(tmp_path, case, spark), case) == "primary_keys is empty: name at least one column"


@_all_cases_with(VARIABLE_WIDTH_SORT_KEY)
def test_a_sort_key_of_variable_width_is_refused_by_name(case: PeerCase, tmp_path: Path, spark: SparkSession) -> None:
    refusal = run_until_refused(Runner(tmp_path, case, spark), case)
    assert re.search(r"sort key column 'sk_col_\d' has type string, which has no fixed width", refusal)


@_cases(VARIABLE_WIDTH_SORT_KEY)
def test_such_a_case_ends_with_the_peer_s_rows_once_its_sort_values_have_a_fixed_width(
    case: PeerCase, tmp_path: Path, spark: SparkSession
) -> None:
    fixed = case.with_fixed_width()
    run_every_round(Runner(tmp_path, fixed, spark), fixed)


@_all_cases_with(DELETE_BY_OTHER_COLUMNS)
def test_a_delete_by_other_columns_is_refused_naming_the_missing_key_column(
    case: PeerCase, tmp_path: Path, spark: SparkSession
) -> None:
    fixed = case.with_fixed_width()
    refusal = run_until_refused(Runner(tmp_path, fixed, spark), fixed)
    assert re.search(r"\.parquet lacks primary key column 'pk_col_1': it has (col_1|sk_col_1)", refusal)


@_all_cases_with(DUPLICATES_KEPT)
def test_where_the_peer_keeps_duplicates_lithify_drops_them_by_its_contract(
    case: PeerCase, tmp_path: Path, spark: SparkSession
) -> None:
    fixed = case.with_fixed_width()
    runner = Runner(tmp_path, fixed, spark)
    deltas: list[OracleDelta] = []
    for peer_round in fixed.rounds:
        runner.append(peer_round)
        runner.compact(peer_round)
        deltas += [(each.position, each.operation, [each.rows.to_pylist()]) for each in peer_round.deltas]
        survivors = surviving_rows(deltas, fixed.primary_keys, fixed.sort_keys)
        assert runner.rows() == multiset(survivors, runner.columns)
    assert runner.rows() != multiset(fixed.rounds[-1].expected, runner.columns)
    audit(runner.side)


def test_every_case_is_run_and_every_name_in_the_table_is_a_case() -> None:
    named = {name for names in OUTSIDE.values() for name in names}
    assert named <= set(CASES)
    assert len(CASES) == 64
    assert len(CASES) - len(named) == sum(case.reasons() == () for case in CASES.values())
