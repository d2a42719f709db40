"""The instruction document: what a message says, or every violation at once (contract 5).

What can be judged from the text alone is judged here, without a look at the lake (that is `lake_checks.py`). The JSON
Schema that users read is generated from the same model that refuses their documents.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from compactor.catalog.actions import SortKey
from compactor.document import Document
from compactor.errors import Invalid
from compactor.names import PARTITION_STREAM_POSITION, ContentType, SortOrder, TableId, render_partition
from compactor.object_store import StoreLocation, parse_location
from compactor.spec import NOT_WRITTEN, ROWS_PER_COMPACTED_FILE, ROWS_PER_PRIMARY_KEY_INDEX_FILE, JobRunSpec

JOB_RUN_ID_CHARACTERS_MAX = 200
TASK_TOKEN_CHARACTERS_MAX = 2_048
"""Step Functions' own limit."""

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1

_TOPIC_ARN = re.compile(r"arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_.-]+")

ValueT = TypeVar("ValueT")


def _known_table(text: str) -> str:
    try:
        return str(TableId.parse(text))
    except Invalid as error:
        raise ValueError(str(error)) from error


def _known_location(text: str) -> str:
    try:
        parse_location(text)
    except Invalid as error:
        raise ValueError(str(error)) from error
    if "://" not in text:
        raise ValueError(f"{text!r} is no URI: write s3://bucket/prefix or file:///path/to/lake")
    return text


def _known_topic(text: str) -> str:
    if _TOPIC_ARN.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no SNS topic: write arn:aws:sns:region:account:name")
    return text


def _unique_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    _refuse_repeats(columns)
    return columns


def _unique_sort_columns(sort_keys: tuple[tuple[str, SortOrder], ...]) -> tuple[tuple[str, SortOrder], ...]:
    _refuse_repeats([column for column, _ in sort_keys])
    return sort_keys


def _refuse_repeats(columns: Sequence[str]) -> None:
    repeated = [column for column in dict.fromkeys(columns) if columns.count(column) > 1]
    if repeated:
        raise ValueError(f"column {repeated[0]!r} is named {columns.count(repeated[0])} times")


def _unique_partitions(partitions: tuple[dict[str, str], ...]) -> tuple[dict[str, str], ...]:
    for number, partition in enumerate(partitions):
        if partition in partitions[:number]:
            raise ValueError(f"{render_partition(partition)} is named twice")
    return partitions


def _written(content_type: ContentType) -> ContentType:
    if content_type in NOT_WRITTEN:
        written = ", ".join(each for each in ContentType if each not in NOT_WRITTEN)
        raise ValueError(f"{content_type} files are read, but not written: choose one of {written}")
    return content_type


def _no_control_characters(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError(f"{text!r} has control characters")
    return text


PositiveInt = Annotated[int, Field(ge=1, le=INT64_MAX)]
TableIdText = Annotated[str, AfterValidator(_known_table)]
ColumnName = Annotated[str, Field(min_length=1)]


class InstructionDocument(Document):
    """A compaction job run as asked for: the fields of `compact()` by the same names, and what only a service needs."""

    schema_version: Literal["1"] = Field(description='the form of this document: "1"')
    source_table_id: TableIdText = Field(description="OWNER.NAME.Vn, for example ACME.ORDERS.V1")
    primary_keys: Annotated[tuple[ColumnName, ...], Field(min_length=1), AfterValidator(_unique_columns)] = Field(
        description="columns that together identify a row; their order does not matter"
    )
    sort_keys: Annotated[
        tuple[tuple[ColumnName, SortOrder], ...], Field(min_length=1), AfterValidator(_unique_sort_columns)
    ] = Field(
        default=((PARTITION_STREAM_POSITION, SortOrder.ASCENDING),),
        description="[column, order] pairs: of the rows of a key, the last one in this order survives",
    )
    desired_sla: PositiveInt | None = Field(default=None, description="seconds")
    delta_catalog: Annotated[str, AfterValidator(_known_location)] | None = Field(
        default=None, description="the lake's root URI; left out: the dispatcher's own lake"
    )
    destination_compacted_table_id: TableIdText | None = Field(
        default=None, description="where compacted rows go; left out: the source table"
    )
    rows_per_primary_key_index_file: PositiveInt = ROWS_PER_PRIMARY_KEY_INDEX_FILE
    rows_per_compacted_file: PositiveInt = ROWS_PER_COMPACTED_FILE
    hash_bucket_count: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        default=None, description="left out: chosen so that a bucket takes about half of a task's memory"
    )
    sns_event_topic_arn: Annotated[str, AfterValidator(_known_topic)] | None = Field(
        default=None, description="where this job run's events go; left out: the dispatcher's own topic"
    )
    compacted_file_content_type: Annotated[ContentType, AfterValidator(_written)] = ContentType.PARQUET
    job_run_id: (
        Annotated[
            str, Field(min_length=1, max_length=JOB_RUN_ID_CHARACTERS_MAX), AfterValidator(_no_control_characters)
        ]
        | None
    ) = Field(default=None, description="idempotency key; left out: the message's own id")
    partitions: (
        Annotated[tuple[dict[str, str], ...], Field(min_length=1), AfterValidator(_unique_partitions)] | None
    ) = Field(default=None, description="the partition streams to compact; left out: all of the table")
    max_rows_per_round: PositiveInt | None = Field(default=None, description="left out: as memory allows")
    tombstone_retention: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = Field(
        default=None, description="how long the index remembers deleted keys; left out: for ever"
    )
    max_dead_row_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="a compacted file with at most this share of dead rows is not rewritten; 0: live rows only",
    )
    task_token: Annotated[str, Field(min_length=1, max_length=TASK_TOKEN_CHARACTERS_MAX)] | None = Field(
        default=None, description="a Step Functions callback"
    )
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = Field(
        default=0, description="of the sessions that wait, those of the highest priority run first"
    )


FIELD_NAMES = tuple(InstructionDocument.model_fields)


@dataclass(frozen=True)
class Violations:
    """Why a document can never work: every reason, a sentence each.

    job_run_id, table  what the document says of itself as far as that can be read, for whoever looks for its event
    """

    reasons: tuple[str, ...]
    job_run_id: str | None = None
    table: str | None = None


def parse_instruction(body: str) -> InstructionDocument | Violations:
    """The document in a message's body, or every way in which it is none."""
    repeated: list[str] = []
    try:
        document = json.loads(
            body,
            object_pairs_hook=lambda pairs: _without_repeats(pairs, repeated),
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        return Violations((f"line {error.lineno}, column {error.colno}: the document is not JSON: {error.msg}",))
    except ValueError as error:  # such as a number with too many digits
        return Violations((f"the document is not JSON: {error}",))
    except RecursionError:
        return Violations(("the document is nested too deeply",))
    if not isinstance(document, dict):
        return Violations((f"the document must be a JSON object, not {_shown(document)}",))
    reasons = [f"field {name!r} stands more than once" for name in dict.fromkeys(repeated)]
    try:
        parsed = InstructionDocument.model_validate_json(json.dumps(document, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return Violations(("the document holds half a surrogate pair (\\ud800 to \\udfff), which is no text",))
    except ValidationError as error:
        reasons += _sentences(error.errors(include_url=False), document)
    if reasons:
        return Violations(tuple(reasons), _text_of(document, "job_run_id"), _text_of(document, "source_table_id"))
    return parsed


def content_digest(document: InstructionDocument) -> str:
    """Equal for documents that ask for the same, however they are written; the job run id is not part of it."""
    normalized = document.model_copy(
        update={
            "job_run_id": None,
            "primary_keys": tuple(sorted(document.primary_keys)),
            "destination_compacted_table_id": document.destination_compacted_table_id or document.source_table_id,
        }
    )
    return hashlib.sha256(normalized.render()).hexdigest()


def job_run_spec(document: InstructionDocument, job_run_id: str, lake: StoreLocation) -> JobRunSpec:
    """What is asked for, with every default written in."""
    return JobRunSpec(
        job_run_id=job_run_id,
        source_table_id=document.source_table_id,
        primary_keys=tuple(sorted(document.primary_keys)),
        sort_keys=tuple(SortKey(column=column, order=order) for column, order in document.sort_keys),
        desired_sla=document.desired_sla,
        lake=lake,
        destination_compacted_table_id=document.destination_compacted_table_id or document.source_table_id,
        rows_per_primary_key_index_file=document.rows_per_primary_key_index_file,
        rows_per_compacted_file=document.rows_per_compacted_file,
        hash_bucket_count=document.hash_bucket_count,
        sns_event_topic_arn=document.sns_event_topic_arn,
        compacted_file_content_type=document.compacted_file_content_type,
        partitions=document.partitions,
        max_rows_per_round=document.max_rows_per_round,
        tombstone_retention=document.tombstone_retention,
        max_dead_row_share=document.max_dead_row_share,
        task_token=document.task_token,
        priority=document.priority,
    )


def instruction_json_schema() -> dict[str, JsonValue]:
    """What `lithify schema instruction` prints."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **InstructionDocument.model_json_schema()}


# ---------------------------------------------------------------------------------------------- sentences


def _sentences(details: Sequence[ErrorDetails], document: dict[str, JsonValue]) -> Iterable[str]:
    """A list whose only elements are wrong counts as too short for pydantic, which is no news to its author."""
    deeper = {detail["loc"][0] for detail in details if len(detail["loc"]) > 1}
    told = [detail for detail in details if detail["type"] != "too_short" or detail["loc"][0] not in deeper]
    return dict.fromkeys(_sentence(detail, document) for detail in told)


def _sentence(detail: ErrorDetails, document: dict[str, JsonValue]) -> str:
    """What pydantic found, in the words of the document's author."""
    location = detail["loc"]
    if location and location[0] == "sort_keys" and len(location) > 1 and detail["type"] != "value_error":
        return _sort_key_sentence(location, document)
    where = _path(location)
    match detail["type"]:
        case "extra_forbidden":
            return f"{where}: there is no such field{_nearest(str(location[-1]))}"
        case "missing":
            return f"{where} is missing: {_asked_for(where)}"
        case "value_error":
            return f"{where}: {detail['msg'].removeprefix('Value error, ')}"
        case "too_short" | "string_too_short":
            return f"{where} is empty"
        case "string_too_long":
            length = len(str(detail["input"]))
            return f"{where} has {length:,} characters: at most {detail['ctx']['max_length']:,} are allowed"
        case _:
            wanted = detail["msg"].removeprefix("Input should be ").replace("a valid array", "a list")
            return f"{where} must be {wanted}, not {_shown(detail['input'])}"


def _sort_key_sentence(location: Sequence[int | str], document: dict[str, JsonValue]) -> str:
    sort_keys, number = document.get("sort_keys"), location[1]
    given = sort_keys[number] if isinstance(sort_keys, list) and isinstance(number, int) else sort_keys
    return f'sort_keys[{number}] must be [column, "ascending"] or [column, "descending"], not {_shown(given)}'


def _asked_for(field: str) -> str:
    known = InstructionDocument.model_fields.get(field)
    return known.description if known is not None and known.description else "it is required"


def _nearest(name: str) -> str:
    nearest = difflib.get_close_matches(name, FIELD_NAMES, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else f"; known are {', '.join(FIELD_NAMES)}"


def _path(location: Iterable[int | str]) -> str:
    """`partitions[0].region`; pydantic's own labels of union members are no part of the document."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "[" not in part and part not in ("constrained-str", "constrained-int"):
            text += f".{part}" if text else part
    return text or "the document"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."


def _text_of(document: dict[str, JsonValue], field: str) -> str | None:
    value = document.get(field)
    fits = isinstance(value, str) and 0 < len(value) <= JOB_RUN_ID_CHARACTERS_MAX and value.isprintable()
    return str(value) if fits else None


def _without_repeats(pairs: list[tuple[str, JsonValue]], repeated: list[str]) -> dict[str, JsonValue]:
    names = [name for name, _ in pairs]
    repeated.extend(name for name in names if names.count(name) > 1)
    return dict(pairs)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
