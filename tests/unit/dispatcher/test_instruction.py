"""What an instruction document may say, and what is answered to one that says something else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.catalog.properties import ROWS_PER_COMPACTED_FILE
from compactor.model.errors import Invalid
from compactor.model.names import SortOrder
from compactor.planning.spec import (
    DEFAULT_SORT_KEYS,
    ROWS_PER_PRIMARY_KEY_INDEX_FILE,
)
from compactor.storage.location import StoreLocation
from dispatcher.cli.expressions import read_document
from dispatcher.intake.instruction import (
    InstructionDocument,
    Violations,
    bounded_reasons,
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
        ("schema_version", "one", "schema_version must be '1', not \"one\""),
        ("schema_version", "2", 'schema_version "2" is of a newer release of Lithify: this one reads'),
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
        ("delta_catalog", "ftp://lake", "delta_catalog: 'ftp://lake' is not a location"),
        ("delta_catalog", "some/where", "delta_catalog: 'some/where' is no URI"),
        ("hash_bucket_count", "4", 'hash_bucket_count must be a valid integer, not "4"'),
        ("rows_per_compacted_file", -1, "rows_per_compacted_file must be greater than or equal to 1, not -1"),
        ("rows_per_compacted_file", 2**63, "rows_per_compacted_file must be less than or equal to"),
        ("sns_event_topic_arn", "topic", "sns_event_topic_arn: 'topic' is no SNS topic"),
        ("compacted_file_content_type", "xls", "compacted_file_content_type must be 'parquet', 'feather'"),
        ("compacted_file_content_type", "json", "json files are read, but not written"),
        ("job_run_id", "", "job_run_id is empty"),
        ("job_run_id", "a\nb", "job_run_id: 'a\\nb' has control characters"),
        ("job_run_id", "\u8a9e" * 34, "job_run_id: it takes 308 bytes in object keys"),
        ("source_table_id", f"A.{'x' * 300}.V1", "source_table_id has 305 characters: at most 255 are allowed"),
        ("source_table_id", "A.B.V" + "1" * 40, "is not a table id"),
        ("delta_catalog", "s3://lake/a\0b", "delta_catalog: 's3://lake/a\\x00b' has control characters"),
        ("delta_catalog", "s3://lake/" + "x" * 900, "delta_catalog: it has 910 bytes: at most 900 are allowed"),
        ("delta_catalog", "file:///lakes/../etc", "'file:///lakes/../etc' has a part that is . or .."),
        ("hash_bucket_count", 1_000_001, "hash_bucket_count must be less than or equal to 1,000,000, not 1000001"),
        ("primary_keys", [f"c{n}" for n in range(1_001)], "primary_keys has 1,001 elements: at most 1,000 are allowed"),
        ("sort_keys", [[f"c{n}", "ascending"] for n in range(33)], "sort_keys has 33 elements: at most 32 are allowed"),
        ("partitions", [{"d": str(n)} for n in range(10_001)], "partitions has 10,001 elements: at most 10,000"),
        ("sns_event_topic_arn", "arn:aws:sns:-:123456789012:a", "is no SNS topic"),
        ("sns_event_topic_arn", "arn:aws:sns:us-east-1:123456789012:" + "a" * 257, "is no SNS topic"),
        ("sns_event_topic_arn", "arn:aws:sns:us-east-1:123456789012:a.fifo", "is a FIFO topic"),
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
    (refusal,) = reasons({**MINIMAL, field: value})
    assert reason in refusal


@pytest.mark.parametrize("field", ["schema_version", "source_table_id"])
def test_a_missing_field_is_named_with_what_it_is_for(field: str) -> None:
    (reason,) = reasons({name: value for name, value in MINIMAL.items() if name != field})
    assert reason.startswith(f"{field} is missing: ")


def test_primary_keys_may_be_missing_since_the_table_may_know_them() -> None:
    document = {name: value for name, value in MINIMAL.items() if name != "primary_keys"}
    assert parse(document).primary_keys is None
    assert any("primary_keys is missing" in reason for reason in reasons({**document, "priority": "high"}))


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
def test_a_body_that_is_not_a_json_object_is_refused_with_the_position(body: str, reason: str) -> None:
    (refusal,) = reasons(body)
    assert reason in refusal


def test_a_field_that_stands_twice_is_refused() -> None:
    body = json.dumps(MINIMAL)[:-1] + ', "priority": 1, "priority": 2}'
    assert reasons(body) == ("field 'priority' stands more than once",)


def test_documents_that_ask_for_the_same_have_the_same_digest() -> None:
    first = content_digest(parse(MINIMAL))
    written_out = {**MINIMAL, "primary_keys": ["a", "b"], "priority": 0, "job_run_id": "x"}
    assert content_digest(parse({**written_out, "destination_compacted_table_id": "ACME.ORDERS.V1"})) == first
    assert content_digest(parse({**MINIMAL, "priority": 1})) != first


def test_the_digest_leaves_out_the_task_token_the_id_and_every_field_at_its_default() -> None:
    first = content_digest(parse(PAPER))
    document = {**PAPER, "task_token": "secret", "job_run_id": "x", "priority": 0, "max_dead_row_share": 0.0}
    assert content_digest(parse(document)) == first
    # What a release without any of the optional fields would have said of the same document.
    text = '{"schema_version":"1","source_table_id":"ACME.ORDERS.V1","primary_keys":["a","b"]}'
    assert content_digest(parse(MINIMAL)) == hashlib.sha256(text.encode()).hexdigest()


def test_the_order_of_partitions_and_of_their_keys_is_no_content() -> None:
    first = content_digest(parse({**MINIMAL, "partitions": [{"a": "1", "b": "2"}, {"a": "0", "b": "3"}]}))
    assert content_digest(parse({**MINIMAL, "partitions": [{"b": "3", "a": "0"}, {"b": "2", "a": "1"}]})) == first
    assert content_digest(parse({**MINIMAL, "partitions": [{"a": "1", "b": "2"}]})) != first


@pytest.mark.parametrize("value", [["sec", "ret"], {"secret": 1}, 5, "secret" * 500])
def test_a_wrong_task_token_is_refused_without_being_shown(value: object) -> None:
    (reason,) = reasons({**MINIMAL, "task_token": value})
    assert reason.startswith("task_token")
    assert "secret" not in reason
    assert "ret" not in reason.replace("greater", "")


def test_a_task_token_is_no_part_of_what_is_recorded_of_a_job_run() -> None:
    spec = job_run_spec(parse({**MINIMAL, "task_token": "secret"}), "run-1", LAKE)
    assert b"secret" not in spec.render()


MEBIBYTE = 1 << 20

HUGE = {
    "unknown fields": json.dumps({**MINIMAL, **{f"field{number}": 1 for number in range(60_000)}}),
    "one field again and again": "{" + ", ".join(['"priority": 1'] * 70_000) + "}",
    "unknown fields that look like known ones": json.dumps(
        {**MINIMAL, **{f"source_table_i{number}" + "d" * 8_000: 1 for number in range(130)}}
    ),
    "partitions": json.dumps({**MINIMAL, "partitions": [{"day": str(number)} for number in range(55_000)]}),
    "partitions that are numbers": json.dumps({**MINIMAL, "partitions": [1] * 340_000}),
    "one partition named again and again": json.dumps({**MINIMAL, "partitions": [{"d": "1"}] * 9_999}),
    "a partition of numbers": json.dumps(
        {**MINIMAL, "partitions": [{f"k{number}": number for number in range(60_000)}]}
    ),
    "key columns": json.dumps({**MINIMAL, "primary_keys": [str(number) for number in range(100_000)]}),
    "sort keys": json.dumps({**MINIMAL, "sort_keys": [[["x"] * 5]] * 40_000}),
    "one long name": json.dumps({**MINIMAL, "source_table_id": "A.B.V1" * 170_000}),
    "one long number": '{"priority": ' + "9" * 1_000_000 + "}",
    "one long field": json.dumps({**MINIMAL, "x" * 1_000_000: 1}),
    "depth": "[" * 1_000_000,
    "depth within a field": '{"partitions": ' + "[" * 500 + "]" * 500 + "}",
}


@pytest.mark.parametrize("body", HUGE.values(), ids=HUGE)
def test_a_huge_document_is_answered_with_few_short_reasons(body: str) -> None:
    """Each of them once took from seconds to hours: work was in proportion to the square of the body."""
    assert len(body) <= 1.3 * MEBIBYTE
    found = reasons(body)
    assert 1 <= len(found) <= 101
    assert all(len(reason) <= 1_000 for reason in found)


def test_beyond_a_hundred_reasons_their_number_is_told() -> None:
    found = reasons({**MINIMAL, **{f"field{number}": 1 for number in range(1_234)}})
    assert len(found) == 101
    assert found[0].startswith("field0: there is no such field")
    assert found[-1] == "and 1,134 more"
    assert bounded_reasons(["a"] * 100) == ("a",) * 100
    assert bounded_reasons(["a"] * 101)[-1] == "and 1 more"


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


def test_a_document_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b"\xe4")
    for name, reason in (
        ("nowhere.json", "there is no file"),
        ("", "cannot be read: Is a directory"),
        ("latin.json", "is not UTF-8: 'utf-8' codec can't decode byte 0xe4 in position 0"),
    ):
        with pytest.raises(Invalid) as refused:
            read_document(str(tmp_path / name))
        assert reason in str(refused.value)
        assert str(tmp_path / name) in str(refused.value)
