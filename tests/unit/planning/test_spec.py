"""What can be wrong with a job run whatever the lake holds."""

from __future__ import annotations

import pytest

from compactor.model.counts import SortKey
from compactor.model.names import PARTITION_STREAM_POSITION, ContentType
from compactor.planning.spec import JobRunSpec, violations
from compactor.storage.location import StoreLocation

GOOD = JobRunSpec(
    job_run_id="j",
    source_table_id="ACME.ORDERS.V1",
    primary_keys=("id",),
    lake=StoreLocation("file:///lake"),
    destination_compacted_table_id="ACME.ORDERS.V1",
)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"hash_bucket_count": 1, "max_rows_per_round": 1, "desired_sla": 1, "rows_per_compacted_file": 1},
        {"max_dead_row_share": 0.0, "page_check_share": 1.0, "tombstone_retention": 0},
        {"max_dead_row_share": 0.999, "page_check_share": 0.0},
        {"sort_keys": (SortKey(column=PARTITION_STREAM_POSITION), SortKey(column="id"))},
    ],
)
def test_a_job_run_within_its_bounds_has_no_violations(change: dict[str, object]) -> None:
    assert violations(GOOD.model_copy(update=change)) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows_per_compacted_file": 0}, "rows_per_compacted_file is 0: it must be 1 or more"),
        ({"rows_per_primary_key_index_file": -1}, "rows_per_primary_key_index_file is -1: it must be 1 or more"),
        ({"hash_bucket_count": 0}, "hash_bucket_count is 0: it must be 1 or more"),
        ({"max_rows_per_round": 0}, "max_rows_per_round is 0: it must be 1 or more"),
        ({"desired_sla": 0}, "desired_sla is 0: it must be 1 or more"),
        ({"hash_bucket_count": 10**9}, "hash_bucket_count is 1,000,000,000: at most"),
        ({"max_dead_row_share": 1.0}, "max_dead_row_share is 1.0: it must be at least 0 and below 1"),
        ({"max_dead_row_share": -0.1}, "max_dead_row_share is -0.1: it must be at least 0 and below 1"),
        ({"page_check_share": 1.1}, "page_check_share is 1.1: it must be from 0 to 1"),
        ({"tombstone_retention": -1}, "tombstone_retention is -1: it must be 0 or more stream positions"),
        (
            {"compacted_file_content_type": ContentType.JSON},
            "compacted_file_content_type json can be read only: use parquet",
        ),
        ({"source_table_id": "orders"}, "orders"),
        ({"destination_compacted_table_id": "orders"}, "orders"),
        ({"primary_keys": ()}, "primary_keys is empty: name at least one column"),
        ({"primary_keys": ("id", "id")}, "primary key column 'id' is named 2 times"),
        ({"primary_keys": (PARTITION_STREAM_POSITION,)}, "is a virtual column: it can be a sort key"),
        ({"sort_keys": (SortKey(column="a"), SortKey(column="a"))}, "sort key column 'a' is named 2 times"),
    ],
)
def test_violations_of_a_job_run_have_the_found_value(change: dict[str, object], message: str) -> None:
    (reason,) = violations(GOOD.model_copy(update=change))
    assert message in reason


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert len(violations(GOOD.model_copy(update={"primary_keys": (), "desired_sla": 0, "page_check_share": 2}))) == 3
