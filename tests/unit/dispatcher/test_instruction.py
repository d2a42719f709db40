"""What an instruction document may say, and what is answered to one that says something else."""

from __future__ import annotations

import json

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.names import SortOrder
from compactor.object_store import StoreLocation
from compactor.spec import DEFAULT_SORT_KEYS, ROWS_PER_COMPACTED_FILE, ROWS_PER_PRIMARY_KEY_INDEX_FILE
from dispatcher.instruction import (
    InstructionDocument,
    Violations,
    content_digest,
    instruction_json_schema,
    job_run_spec,
    parse_instruction,
)

LAKE = StoreLocation("s3://lake/root")
MINIMAL: dict[str, object] = {"schema_version": "1", "source_table_id": "ACME.ORDERS.V1", "primary_keys": ["b", "a"]}
PAPER: dict[str, object] = {
    "schema_version": "1",
    "source_table_id": "AMZN.CUSTOMER_ORDER_STATUS.V1",
    "primary_keys": ["Order ID"],
    "sort_keys": [["Last Updated", "ascending"]],
    "desired_sla": None,
    "delta_catalog": "s3://lake/root",
    "destination_compacted_table_id": "AMZN.CUSTOMER_ORDER_STATUS_COMPACTED.V1",
    "rows_per_primary_key_index_file": 2,
    "rows_per_compacted_file": 2,
    "hash_bucket_count": 4,
    "sns_event_topic_arn": "arn:aws:sns:us-east-1:123456789012:CompactionJobRunEvents",
    "compacted_file_content_type": "parquet",
}


def parse(document: object) -> InstructionDocument:
    parsed = parse_instruction(json.dumps(document))
    assert isinstance(parsed, InstructionDocument), parsed
    return parsed


def reasons(document: object) -> tuple[str, ...]:
    parsed = parse_instruction(document if isinstance(document, str) else json.dumps(document))
    assert isinstance(parsed, Violations), parsed
    return parsed.reasons


def test_the_minimal_document_gets_every_default_of_the_papers_signature() -> None:
    spec = job_run_spec(parse(MINIMAL), "run-1", LAKE)
    assert spec.primary_keys == ("a", "b")
    assert spec.sort_keys == DEFAULT_SORT_KEYS
    assert spec.destination_compacted_table_id == "ACME.ORDERS.V1"
    assert spec.rows_per_compacted_file == ROWS_PER_COMPACTED_FILE
    assert spec.rows_per_primary_key_index_file == ROWS_PER_PRIMARY_KEY_INDEX_FILE
    assert spec.lake == LAKE
    assert spec.job_run_id == "run-1"


def test_the_papers_own_instruction_is_a_document() -> None:
    spec = job_run_spec(parse(PAPER), "run-1", LAKE)
    assert [(key.column, key.order) for key in spec.sort_keys] == [("Last Updated", SortOrder.ASCENDING)]
    assert (spec.hash_bucket_count, spec.rows_per_compacted_file) == (4, 2)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("schema_version", 1, "schema_version must be '1', not 1"),
        ("schema_version", "2", "schema_version must be '1', not \"2\""),
        ("source_table_id", "ORDERS", "'ORDERS' is not a table id"),
        ("source_table_id", "ACME.ORDERS.V0", "'ACME.ORDERS.V0' is not a table id"),
        ("primary_keys", "id", 'primary_keys must be a list, not "id"'),
        ("primary_keys", [], "primary_keys is empty"),
        ("primary_keys", ["a", ""], "primary_keys[1] is empty"),
        ("primary_keys", ["a", "a"], "primary_keys: column 'a' is named 2 times"),
        ("primary_keys", ["a", 1], "primary_keys[1] must be a valid string, not 1"),
        ("sort_keys", [], "sort_keys is empty"),
        ("sort_keys", [["a"]], 'sort_keys[0] must be [column, "ascending"] or [column, "descending"], not ["a"]'),
        ("sort_keys", [["a", "up"]], 'sort_keys[0] must be [column, "ascending"] or [column, "descending"]'),
        ("sort_keys", [{"column": "a", "order": "ascending"}], "sort_keys[0] must be [column,"),
        ("sort_keys", [["a", "ascending"], ["a", "descending"]], "sort_keys: column 'a' is named 2 times"),
        ("desired_sla", 0, "desired_sla must be greater than or equal to 1, not 0"),
        ("desired_sla", 1.5, "desired_sla must be a valid integer, not 1.5"),
        ("desired_sla", True, "desired_sla must be a valid integer, not true"),
        ("delta_catalog", "ftp://lake", "delta_catalog: 'ftp://lake' is no place for a lake"),
        ("delta_catalog", "some/where", "delta_catalog: 'some/where' is no URI"),
        ("hash_bucket_count", "4", 'hash_bucket_count must be a valid integer, not "4"'),
        ("rows_per_compacted_file", -1, "rows_per_compacted_file must be greater than or equal to 1, not -1"),
        ("rows_per_compacted_file", 2**63, "rows_per_compacted_file must be less than or equal to"),
        ("sns_event_topic_arn", "topic", "sns_event_topic_arn: 'topic' is no SNS topic"),
        ("compacted_file_content_type", "xls", "compacted_file_content_type must be 'parquet', 'feather'"),
        ("compacted_file_content_type", "json", "json files are read, but not written"),
        ("job_run_id", "", "job_run_id is empty"),
        ("job_run_id", "a\nb", "job_run_id: 'a\\nb' has control characters"),
        ("job_run_id", "x" * 201, "job_run_id has 201 characters: at most 200 are allowed"),
        ("partitions", [], "partitions is empty"),
        ("partitions", [{"day": 1}], "partitions[0].day must be a valid string, not 1"),
        ("partitions", ["day"], 'partitions[0] must be an object, not "day"'),
        ("partitions", [{"day": "1"}, {"day": "1"}], "partitions: day=1 is named twice"),
        ("task_token", "x" * 2049, "task_token has 2,049 characters: at most 2,048 are allowed"),
        ("priority", "high", 'priority must be a valid integer, not "high"'),
        ("tombstone_retention", -1, "tombstone_retention must be greater than or equal to 0, not -1"),
        ("max_dead_row_share", 1, "max_dead_row_share must be less than 1, not 1"),
        ("primary_kyes", ["id"], "primary_kyes: there is no such field; did you mean 'primary_keys'?"),
        ("xyzzy", 1, "xyzzy: there is no such field; known are schema_version, source_table_id"),
    ],
)
def test_one_wrong_field_is_one_sentence(field: str, value: object, reason: str) -> None:
    (told,) = reasons({**MINIMAL, field: value})
    assert reason in told


@pytest.mark.parametrize("field", list(MINIMAL))
def test_a_missing_field_is_named_with_what_it_is_for(field: str) -> None:
    (told,) = reasons({name: value for name, value in MINIMAL.items() if name != field})
    assert told.startswith(f"{field} is missing: ")


def test_all_violations_come_at_once_and_the_document_is_still_recognised() -> None:
    body = json.dumps({"source_table_id": "A.B.V1", "job_run_id": "mine", "primary_keys": [], "desired_sla": "soon"})
    parsed = parse_instruction(body)
    assert isinstance(parsed, Violations)
    assert len(parsed.reasons) == 3
    assert (parsed.job_run_id, parsed.table) == ("mine", "A.B.V1")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "line 1, column 1: the document is not JSON"),
        ('{\n  "schema_version": "1",\n  "primary_keys": [\n}', "line 4, column 1: the document is not JSON"),
        ("[]", "the document must be a JSON object, not []"),
        ("null", "the document must be a JSON object, not null"),
        ('{"desired_sla": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "the document is nested too deeply"),
        ('{"job_run_id": "\\ud800"}', "half a surrogate pair"),
    ],
)
def test_what_is_no_json_object_is_told_where_it_breaks(body: str, reason: str) -> None:
    (told,) = reasons(body)
    assert reason in told


def test_a_field_that_stands_twice_is_refused() -> None:
    body = json.dumps(MINIMAL)[:-1] + ', "priority": 1, "priority": 2}'
    assert reasons(body) == ("field 'priority' stands more than once",)


def test_documents_that_ask_for_the_same_have_the_same_digest() -> None:
    first = content_digest(parse(MINIMAL))
    written_out = {**MINIMAL, "primary_keys": ["a", "b"], "priority": 0, "job_run_id": "x"}
    assert content_digest(parse({**written_out, "destination_compacted_table_id": "ACME.ORDERS.V1"})) == first
    assert content_digest(parse({**MINIMAL, "priority": 1})) != first


def test_the_published_schema_accepts_the_documents_and_refuses_what_the_parser_refuses() -> None:
    validator = jsonschema.Draft202012Validator(instruction_json_schema())
    assert validator.is_valid(MINIMAL)
    assert validator.is_valid(PAPER)
    for wrong in ({}, {**MINIMAL, "extra": 1}, {**MINIMAL, "sort_keys": [["a"]]}, {**MINIMAL, "desired_sla": 0}):
        assert not validator.is_valid(wrong)


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_no_body_breaks_the_parser(body: str) -> None:
    parse_instruction(body)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*InstructionDocument.model_fields, "other"]), _VALUES))
def test_no_document_breaks_the_parser_and_each_reason_is_a_sentence(document: dict[str, object]) -> None:
    parsed = parse_instruction(json.dumps({**MINIMAL, **document}))
    if isinstance(parsed, Violations):
        assert parsed.reasons
        assert all(reason.strip() for reason in parsed.reasons)
