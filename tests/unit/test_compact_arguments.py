"""Arguments of `compact()` and `append()` of a wrong type are refused in a sentence that names the argument."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.model.errors import Invalid
from tests.builders import TABLE_ID


@pytest.fixture(autouse=True)
def _orders(lake: DeltaCatalog) -> None:
    lake.create_table(TABLE_ID, ["day"]).append({"day": "1"}, pa.table({"id": [1]}))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"desired_sla": 60.5}, "desired_sla is 60.5: it must be a valid integer"),
        ({"hash_bucket_count": "7"}, "hash_bucket_count is '7': it must be a valid integer"),
        ({"rows_per_compacted_file": True}, "rows_per_compacted_file is True: it must be a valid integer"),
        ({"max_dead_row_share": "half"}, "max_dead_row_share is 'half': it must be a valid number"),
        ({"primary_keys": {1}}, "primary_keys[0] is 1: it must be a valid string"),
        ({"sort_keys": [7]}, "sort key 7 is no (column, order) pair"),
        ({"partitions": {"day": "1"}}, "partitions is {'day': '1'}: pass a list of dicts"),
        ({"partitions": ["day=1"]}, "partitions is ['day=1']: pass a list of dicts"),
        ({"partitions": [{"day": 1}]}, "partitions[0].day is 1: it must be a valid string"),
        ({"compacted_file_content_type": "avro"}, "'avro' is none of parquet, feather, orc, csv, tsv"),
        ({"delta_catalog_client": "s3://bucket/lake"}, "pass DeltaCatalog.open('s3://bucket/lake')"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_an_argument_of_a_wrong_type_is_named(lake: DeltaCatalog, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid) as refusal:
        compact(TABLE_ID, **{"primary_keys": {"id"}, "delta_catalog_client": lake, **arguments})
    assert reason in str(refusal.value)
    assert "pydantic" not in str(refusal.value)


def test_arguments_of_wrong_types_are_all_named_at_once(lake: DeltaCatalog) -> None:
    wrong: dict[str, Any] = {"desired_sla": 0.5, "hash_bucket_count": "7"}
    with pytest.raises(Invalid) as refusal:
        compact(TABLE_ID, {"id"}, delta_catalog_client=lake, **wrong)
    assert len(refusal.value.reasons) == 2


def test_a_position_is_a_whole_number(lake: DeltaCatalog) -> None:
    position: Any = "5"
    with pytest.raises(Invalid, match="position is '5': give a whole number"):
        lake.table(TABLE_ID).append({"day": "1"}, pa.table({"id": [1]}), position=position)


def test_a_partition_key_is_a_name(lake: DeltaCatalog) -> None:
    keys: Any = [1, ""]
    with pytest.raises(Invalid) as refusal:
        lake.create_table("ACME.OTHER.V1", keys)
    assert refusal.value.reasons == (
        "partition key 1 is no Unicode text: give a list of names",
        "partition key '' has no name",
    )
