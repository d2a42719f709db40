"""What a job run takes from its table's properties, and what they refuse."""

from __future__ import annotations

import pytest

from compactor.catalog.properties import BYTES_PER_COMPACTED_FILE
from compactor.catalog.tables import DeltaCatalog
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid
from compactor.model.files import DataFile
from compactor.model.names import ContentType, Operation, SortOrder
from compactor.planning.round_plan import DeltaFileRef
from compactor.planning.rounds import rows_per_file
from compactor.planning.spec import DEFAULT_SORT_KEYS, JobRunSpec
from compactor.planning.table_terms import complete_by_table
from compactor.storage.location import StoreLocation
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

ORDERS, ELSEWHERE = "ACME.ORDERS.V1", "ACME.COMPACTED.V1"
LOCATION = StoreLocation("file:///nowhere")
BY_TIME = (SortKey(column="at", order=SortOrder.DESCENDING),)
KNOWING = {
    "primary_keys": ["line", "id"],
    "sort_keys": [("at", "descending")],
    "destination_compacted_table_id": ELSEWHERE,
    "compacted_file_content_type": "orc",
    "rows_per_compacted_file": 1_000,
    "bytes_per_compacted_file": 5_000,
}


def run(**fields: object) -> JobRunSpec:
    left_out: dict[str, object] = {"primary_keys": (), "destination_compacted_table_id": ORDERS}
    return JobRunSpec.model_validate(
        {"job_run_id": "run", "source_table_id": ORDERS, "lake": LOCATION, **left_out, **fields}
    )


def complete(properties: dict[str, object], **fields: object) -> JobRunSpec:
    """The job run of a table with these properties. Fields that are not named here are left out."""
    lake = DeltaCatalog(MemoryStore(ManualClock(), LOCATION), ManualClock())
    return complete_by_table(run(**fields), set(fields), lake.create_table(ORDERS, properties=properties))


def test_what_a_job_run_leaves_out_comes_from_its_table() -> None:
    assert complete(KNOWING) == run(
        primary_keys=("id", "line"),
        sort_keys=BY_TIME,
        destination_compacted_table_id=ELSEWHERE,
        compacted_file_content_type=ContentType.ORC,
        rows_per_compacted_file=1_000,
        bytes_per_compacted_file=5_000,
    )


def test_a_table_without_properties_leaves_a_job_run_as_it_was() -> None:
    fields = {"primary_keys": ("id",), "rows_per_compacted_file": 7}
    assert complete({}, **fields) == run(**fields, bytes_per_compacted_file=BYTES_PER_COMPACTED_FILE)


def test_a_job_run_may_repeat_what_its_table_knows_in_any_order() -> None:
    named = {"primary_keys": ("line", "id"), "sort_keys": BY_TIME, "destination_compacted_table_id": ELSEWHERE}
    assert complete(KNOWING, **named).primary_keys == ("line", "id")


def test_content_type_and_sizes_of_a_job_run_come_first() -> None:
    named = {"compacted_file_content_type": ContentType.PARQUET, "rows_per_compacted_file": 50}
    completed = complete(KNOWING, **named)
    assert completed.compacted_file_content_type is ContentType.PARQUET
    assert (completed.rows_per_compacted_file, completed.bytes_per_compacted_file) == (50, 5_000)


def test_other_keys_and_another_destination_are_refused_with_every_reason() -> None:
    with pytest.raises(Invalid) as refused:
        complete(
            KNOWING, primary_keys=("id",), sort_keys=DEFAULT_SORT_KEYS, destination_compacted_table_id="ACME.OTHER.V1"
        )
    keys, sort, destination = refused.value.reasons
    assert "primary_keys are id, but table ACME.ORDERS.V1 has the property primary_keys=id,line" in keys
    assert "partition_stream_position:ascending, but" in sort
    assert "sort_keys=at:descending" in sort
    assert "destination_compacted_table_id=ACME.COMPACTED.V1" in destination


def test_keys_that_nobody_names_are_missing_and_it_says_how_to_name_them() -> None:
    with pytest.raises(Invalid, match=r"primary_keys is missing.*lithify table set ACME.ORDERS.V1 primary_keys="):
        complete({})


def delta(rows: int, size_bytes: int, operation: Operation = Operation.UPSERT) -> DeltaFileRef:
    file = DataFile(file_number=1, path="p", content_type=ContentType.PARQUET, rows=rows, size_bytes=size_bytes)
    return DeltaFileRef(1, operation, file, "file:///p")


@pytest.mark.parametrize(
    ("bytes_each", "deltas", "expected"),
    [
        (None, [delta(10, 10_000)], 1_000),
        (50_000, [delta(10, 10_000)], 50),
        (50_000, [delta(10, 10_000), delta(1_000, 5, Operation.DELETE)], 50),
        (50_000, [delta(10, 100)], 1_000),
        (1, [delta(10, 10_000)], 1),
        (50_000, [delta(0, 500)], 1_000),
        (50_000, [], 1_000),
    ],
)
def test_a_file_takes_as_many_rows_as_fill_its_bytes_or_fewer(
    bytes_each: int | None, deltas: list[DeltaFileRef], expected: int
) -> None:
    spec = run(rows_per_compacted_file=1_000, bytes_per_compacted_file=bytes_each)
    assert rows_per_file(spec, None, deltas) == expected
