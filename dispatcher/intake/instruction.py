"""The instruction document: parses a message, or reports every violation at once.

Only the text is checked here; `pinning.py` checks against the lake. The JSON
Schema that users read is generated from the same model that refuses their documents.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from compactor.catalog.properties import ROWS_PER_COMPACTED_FILE
from compactor.model.counts import SortKey
from compactor.model.document import Document
from compactor.model.errors import Invalid
from compactor.model.names import (
    NOT_WRITTEN,
    PARTITION_STREAM_POSITION,
    ContentType,
    SortOrder,
    TableId,
    render_partition,
)
from compactor.model.wrong_input import meant, without_repeats
from compactor.planning.spec import (
    HASH_BUCKET_COUNT_MAX,
    PAGE_CHECK_SHARE,
    ROWS_PER_PRIMARY_KEY_INDEX_FILE,
    JobRunOperation,
    JobRunSpec,
)
from compactor.storage.keys import encode
from compactor.storage.location import StoreLocation, parse_location

JOB_RUN_ID_CHARACTERS_MAX = 200
JOB_RUN_ID_BYTES_MAX = 300
"""Longest id, as object keys encode it: the longest has it twice, and leaves 300 of S3's 1,024 bytes to the prefix."""
TABLE_ID_CHARACTERS_MAX = 255
LAKE_URI_BYTES_MAX = 900
"""Longest lake URI, in bytes: an S3 key has 1,024 bytes, the lake's prefix included."""
TASK_TOKEN_CHARACTERS_MAX = 2_048
"""Longest task token of Step Functions."""
PARTITIONS_MAX = 10_000
PRIMARY_KEYS_MAX = 1_000
SORT_KEYS_MAX = 32
"""Most sort keys: each takes at least a byte, and all of them together take at most 32."""

REASONS_MAX = 100
REASON_CHARACTERS_MAX = 1_000
GUESSED_NAME_CHARACTERS_MAX = 64
"""Longest unknown field for which the nearest known one is named."""

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1

_TOPIC_ARN = re.compile(
    r"arn:(?P<aws_partition>aws(?:-[a-z]+)*):sns:(?P<region>[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}):[0-9]{12}:"
    r"(?P<name>[A-Za-z0-9_-]{1,256}(?:\.fifo)?)"
)

ValueT = TypeVar("ValueT")


def _taken_by(parse: Callable[[str], object]) -> AfterValidator:
    """Leaves text as it is, for which `parse` does not raise `Invalid`."""

    def check(text: str) -> str:
        try:
            parse(text)
        except Invalid as error:
            raise ValueError(str(error)) from error
        return text

    return AfterValidator(check)


def _known_location(text: str) -> None:
    _no_control_characters(text)
    size_bytes = len(text.encode())
    if size_bytes > LAKE_URI_BYTES_MAX:
        raise ValueError(f"it has {size_bytes:,} bytes: at most {LAKE_URI_BYTES_MAX:,} are allowed")
    parse_location(text)
    if "://" not in text:
        raise ValueError(f"{text!r} is no URI: write s3://bucket/prefix or file:///path/to/lake")
    if any(part in (".", "..") for part in text.split("/")):
        raise ValueError(f"{text!r} has a part that is . or ..: write the lake's own path")


@dataclass(frozen=True)
class TopicName:
    """The parts of a topic's ARN."""

    aws_partition: str
    region: str


def parse_topic(arn: str) -> TopicName:
    """Raises `Invalid` for anything but the ARN of a standard SNS topic."""
    match = _TOPIC_ARN.fullmatch(arn)
    if match is None:
        raise Invalid(f"{_cut(repr(arn))} is no SNS topic: write arn:aws:sns:region:account:name")
    if match["name"].endswith(".fifo"):
        raise Invalid(f"{arn!r} is a FIFO topic: events go to standard topics only")
    return TopicName(match["aws_partition"], match["region"])


def _fits_object_keys(text: str) -> str:
    size_bytes = len(encode(_no_control_characters(text)))
    if size_bytes > JOB_RUN_ID_BYTES_MAX:
        raise ValueError(
            f"it takes {size_bytes:,} bytes in object keys, where only A-Z a-z 0-9 _ - . take one each: "
            f"at most {JOB_RUN_ID_BYTES_MAX} are allowed"
        )
    return text


def _unique_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    _refuse_repeats(columns)
    return columns


def _unique_sort_columns(sort_keys: tuple[tuple[str, SortOrder], ...]) -> tuple[tuple[str, SortOrder], ...]:
    _refuse_repeats([column for column, _ in sort_keys])
    return sort_keys


def _refuse_repeats(columns: Sequence[str]) -> None:
    for column, times in Counter(columns).items():
        if times > 1:
            raise ValueError(f"column {column!r} is named {times} times")


def _unique_partitions(partitions: tuple[dict[str, str], ...]) -> tuple[dict[str, str], ...]:
    times = Counter(frozenset(partition.items()) for partition in partitions)
    for partition in partitions:
        if times[frozenset(partition.items())] > 1:
            raise ValueError(f"{_cut(render_partition(partition))} is named twice")
    return partitions


def _written(content_type: ContentType) -> ContentType:
    if content_type in NOT_WRITTEN:
        written = ", ".join(each for each in ContentType if each not in NOT_WRITTEN)
        raise ValueError(f"{content_type} files are read, but not written: choose one of {written}")
    return content_type


def _no_control_characters(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError(f"{_cut(repr(text))} has control characters")
    return text


PositiveInt = Annotated[int, Field(ge=1, le=INT64_MAX)]
TableIdText = Annotated[str, Field(max_length=TABLE_ID_CHARACTERS_MAX), _taken_by(TableId.parse)]
ColumnName = Annotated[str, Field(min_length=1)]


class InstructionDocument(Document):
    """A requested compaction job run: the fields of `compact()` by the same names, and those that only a service
    needs."""

    schema_version: Literal["1"] = Field(description='the form of this document: `"1"`')
    source_table_id: TableIdText = Field(
        description="`OWNER.NAME.Vn`, for example `ACME.ORDERS.V1`: the table whose deltas are compacted"
    )
    primary_keys: (
        Annotated[
            tuple[ColumnName, ...], Field(min_length=1, max_length=PRIMARY_KEYS_MAX), AfterValidator(_unique_columns)
        ]
        | None
    ) = Field(
        default=None,
        description="columns that together identify a row, in any order; left out: the table's own",
    )
    sort_keys: Annotated[
        tuple[tuple[ColumnName, SortOrder], ...],
        Field(min_length=1, max_length=SORT_KEYS_MAX),
        AfterValidator(_unique_sort_columns),
    ] = Field(
        default=((PARTITION_STREAM_POSITION, SortOrder.ASCENDING),),
        description='`[column, "ascending" or "descending"]` pairs: of the rows of a key, the last one in this order '
        "survives; fixed-width types, together 32 bytes at most; left out: the table's own, else by stream position",
    )
    desired_sla: PositiveInt | None = Field(
        default=None, description="desired seconds; plans and events compare the prediction with it"
    )
    delta_catalog: Annotated[str, _taken_by(_known_location)] | None = Field(
        default=None, description="root URI of the lake; left out: the dispatcher's own lake"
    )
    destination_compacted_table_id: TableIdText | None = Field(
        default=None,
        description="table of the compacted rows, created if it does not exist; left out: the table's own destination, "
        "else the source table",
    )
    rows_per_primary_key_index_file: PositiveInt = Field(
        default=ROWS_PER_PRIMARY_KEY_INDEX_FILE, description="most rows of an index file; left out: 38,000,000"
    )
    rows_per_compacted_file: PositiveInt = Field(
        default=ROWS_PER_COMPACTED_FILE,
        description="most rows of a compacted file, fewer where its bytes would pass the table's "
        "`bytes_per_compacted_file`; left out: the table's own, else 4,000,000",
    )
    hash_bucket_count: Annotated[int, Field(ge=1, le=HASH_BUCKET_COUNT_MAX)] | None = Field(
        default=None,
        description="buckets of the index; left out: chosen so that a bucket takes about half of a task's memory, and "
        "kept until it would take three quarters",
    )
    sns_event_topic_arn: Annotated[str, _taken_by(parse_topic)] | None = Field(
        default=None, description="topic of this job run's events; left out: the dispatcher's own topic"
    )
    compacted_file_content_type: Annotated[ContentType, AfterValidator(_written)] = Field(
        default=ContentType.PARQUET,
        description='`"parquet"`, `"feather"`, `"orc"` or `"csv"`; left out: the table\'s own, else `"parquet"`',
    )
    job_run_id: (
        Annotated[str, Field(min_length=1, max_length=JOB_RUN_ID_CHARACTERS_MAX), AfterValidator(_fits_object_keys)]
        | None
    ) = Field(
        default=None,
        description="idempotency key of at most 200 characters: the same id with the same content starts nothing and "
        "is answered with an event, with other content it is refused; left out: the message's own id",
    )
    partitions: (
        Annotated[
            tuple[dict[str, str], ...],
            Field(min_length=1, max_length=PARTITIONS_MAX),
            AfterValidator(_unique_partitions),
        ]
        | None
    ) = Field(
        default=None,
        description="partitions to compact, each an object with one text per partition key; left out: all of the table",
    )
    max_rows_per_round: PositiveInt | None = Field(
        default=None, description="most delta rows of one round; left out: as many as memory holds"
    )
    tombstone_retention: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = Field(
        default=None,
        description="how long the index remembers deleted keys for late rows, in stream positions (milliseconds, "
        "unless writers choose their own); left out: for ever",
    )
    max_dead_row_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="a compacted file with at most this share of dead rows is kept, with a deletion vector, instead of "
        "rewritten; 0: every file holds live rows only",
    )
    own_parquet_pages: bool = Field(
        default=True,
        description="Lithify reads and writes the Parquet pages that it supports "
        "(`compactor/tabular/parquet_pages/SUBSET.md`); false: Arrow does all",
    )
    page_check_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=PAGE_CHECK_SHARE,
        description="of the row groups whose pages Lithify wrote, Arrow reads this share back before each commit; a "
        "difference fails the round",
    )
    task_token: Annotated[str, Field(min_length=1, max_length=TASK_TOKEN_CHARACTERS_MAX)] | None = Field(
        default=None,
        repr=False,
        description="a Step Functions callback: the workflow that waits for this job run; only dispatchers can read it",
    )
    task_heartbeat_seconds: PositiveInt | None = Field(
        default=None,
        description="`HeartbeatSeconds` of the state that waits: heartbeats are sent at a third of it while sessions "
        "progress; left out: none are sent",
    )
    operation: JobRunOperation = Field(
        default="compact",
        description='`"compact"`, or `"rehash"`: the index moves to `hash_bucket_count` hash buckets, or to as many '
        "as take half of a task's memory; no delta is compacted, and no data file is read",
    )
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] = Field(
        default=0, description="sessions of a higher priority start first"
    )


FIELD_NAMES = tuple(InstructionDocument.model_fields)


ELEMENTS_MAX = {"primary_keys": PRIMARY_KEYS_MAX, "sort_keys": SORT_KEYS_MAX, "partitions": PARTITIONS_MAX}


@dataclass(frozen=True)
class Violations:
    """The reasons why a document can never work, a sentence each; beyond `REASONS_MAX` only their number.

    Attributes:
        job_run_id, table: as far as they can be read, for readers of its event
        task_token: of the waiting workflow, as far as it can be read"""

    reasons: tuple[str, ...]
    job_run_id: str | None = None
    table: str | None = None
    task_token: str | None = field(default=None, repr=False)


def parse_instruction(body: str) -> InstructionDocument | Violations:
    """The document in a message's body, or every violation. Takes time proportional to the body."""
    repeated: dict[str, None] = {}
    try:
        document = json.loads(
            body,
            object_pairs_hook=lambda pairs: without_repeats(pairs, repeated),
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        return Violations((f"line {error.lineno}, column {error.colno}: the document is not JSON: {error.msg}",))
    except ValueError as error:  # for example a number with too many digits
        return Violations((f"the document is not JSON: {error}",))
    except RecursionError:
        return Violations(_NESTED_TOO_DEEPLY)
    if not isinstance(document, dict):
        return Violations((f"the document must be a JSON object, not {_shown(document)}",))
    try:
        return _parse_object(document, repeated)
    except UnicodeEncodeError:
        return Violations(("the document holds half a surrogate pair (\\ud800 to \\udfff), which is no text",))
    except RecursionError:
        return Violations(_NESTED_TOO_DEEPLY)


_NESTED_TOO_DEEPLY = ("the document is nested too deeply",)


def _parse_object(document: dict[str, JsonValue], repeated: Iterable[str]) -> InstructionDocument | Violations:
    reasons = [f"field {_cut(repr(name))} stands more than once" for name in repeated]
    reasons += _too_many_elements(document)
    examined, unexamined = _without_excess(document)
    further = 0
    try:
        parsed = InstructionDocument.model_validate_json(json.dumps(examined, ensure_ascii=False).encode())
    except ValidationError as error:
        details = error.errors(include_url=False)
        if details[0]["type"] == "json_invalid":  # pydantic allows less nesting than Python
            raise RecursionError from error
        sentences, further = _sentences(details, examined)
        reasons += sentences
        parsed = None
    if parsed is not None:
        reasons += _without_effect(parsed)
        if not reasons:
            return parsed
    if document.get("primary_keys") is None:
        reasons.append("primary_keys is missing: name the key columns, unless the table has them as a property")
    return Violations(
        bounded_reasons(reasons, further + unexamined),
        _text_of(document, "job_run_id"),
        _text_of(document, "source_table_id"),
        _task_token_of(document),
    )


ABOUT_ROWS = (
    "rows_per_compacted_file",
    "compacted_file_content_type",
    "max_rows_per_round",
    "tombstone_retention",
    "max_dead_row_share",
    "own_parquet_pages",
    "page_check_share",
)
"""Fields that say how rows are compacted."""


def _without_effect(document: InstructionDocument) -> Iterator[str]:
    if document.operation == "rehash":
        given = fields_given(document).intersection(ABOUT_ROWS)
        yield from (f"{name} is about rows, and a rehash moves none: leave it out" for name in sorted(given))


def bounded_reasons(reasons: Sequence[str], further: int = 0) -> tuple[str, ...]:
    """At most `REASONS_MAX` truncated reasons, and then the number of the rest; `further`: those not in `reasons`."""
    left_out = max(len(reasons) - REASONS_MAX, 0) + further
    kept = tuple(_cut(reason) for reason in reasons[:REASONS_MAX])
    return kept if left_out == 0 else (*kept, f"and {left_out:,} more")


_NOT_PART_OF_THE_REQUEST = {"job_run_id", "task_token", "task_heartbeat_seconds"}


def content_digest(document: InstructionDocument) -> str:
    """Equal for documents with the same request, in any notation.

    The job run id, waiters and fields at their default are not part of it: a release that adds a field computes the
    same digest for older documents.
    """
    destination = document.destination_compacted_table_id
    partitions = document.partitions
    normalized = document.model_copy(
        update={
            "primary_keys": document.primary_keys and tuple(sorted(document.primary_keys)),
            "destination_compacted_table_id": None if destination == document.source_table_id else destination,
            "partitions": partitions and tuple(map(dict, sorted(sorted(each.items()) for each in partitions))),
        }
    )
    text = normalized.model_dump_json(exclude=_NOT_PART_OF_THE_REQUEST, exclude_defaults=True)
    return hashlib.sha256(text.encode()).hexdigest()


def fields_given(document: InstructionDocument) -> frozenset[str]:
    """The names of the fields that the document has itself. Its table may have the others."""
    return frozenset(name for name in document.model_fields_set if getattr(document, name) is not None)


def job_run_spec(document: InstructionDocument, job_run_id: str, lake: StoreLocation) -> JobRunSpec:
    """What is asked for, with every default written in, but for what the table knows (`planning/table_terms.py`)."""
    return JobRunSpec.from_facts(
        document,
        job_run_id=job_run_id,
        primary_keys=tuple(sorted(document.primary_keys or ())),
        sort_keys=tuple(SortKey(column=column, order=order) for column, order in document.sort_keys),
        lake=lake,
        destination_compacted_table_id=document.destination_compacted_table_id or document.source_table_id,
    )


def instruction_json_schema() -> dict[str, JsonValue]:
    """The output of `lithify schema instruction`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **InstructionDocument.model_json_schema()}


# ---------------------------------------------------------------------------------------------- sentences


def _too_many_elements(document: dict[str, JsonValue]) -> Iterator[str]:
    for name, elements_max in ELEMENTS_MAX.items():
        elements = document.get(name)
        if isinstance(elements, list) and len(elements) > elements_max:
            yield f"{name} has {len(elements):,} elements: at most {elements_max:,} are allowed"


def _without_excess(document: dict[str, JsonValue]) -> tuple[dict[str, JsonValue], int]:
    """The document without excess elements, and the number of unknown fields that it omits.

    pydantic describes each wrong element: a megabyte of them would take seconds, for reasons that are never read.
    """
    unknown = [name for name in document if name not in InstructionDocument.model_fields]
    dropped = frozenset(unknown[REASONS_MAX:])
    examined = {name: value for name, value in document.items() if name not in dropped}
    for name, elements_max in ELEMENTS_MAX.items():
        elements = examined.get(name)
        if isinstance(elements, list) and len(elements) > elements_max:
            examined[name] = elements[: min(elements_max, REASONS_MAX)]
    return examined, len(dropped)


def _sentences(details: Sequence[ErrorDetails], document: dict[str, JsonValue]) -> tuple[list[str], int]:
    """A sentence for each of the first `REASONS_MAX`, and the number of the rest.

    pydantic also reports a list of only wrong elements as too short, which is omitted.
    """
    deeper = {detail["loc"][0] for detail in details if len(detail["loc"]) > 1}
    reported = [detail for detail in details if detail["type"] != "too_short" or detail["loc"][0] not in deeper]
    sentences = dict.fromkeys(_sentence(detail, document) for detail in reported[:REASONS_MAX])
    return list(sentences), max(len(reported) - REASONS_MAX, 0)


def _sentence(detail: ErrorDetails, document: dict[str, JsonValue]) -> str:
    """pydantic's finding, in terms of the document."""
    location = detail["loc"]
    if location and location[0] == "sort_keys" and len(location) > 1 and detail["type"] != "value_error":
        return _sort_key_sentence(location, document)
    where = _path(location)
    match detail["type"]:
        case "extra_forbidden":
            return f"{where}: there is no such field{_nearest(str(location[-1]))}"
        case "missing":
            return f"{where} is missing: {_description_of(where)}"
        case "value_error":
            return f"{where}: {detail['msg'].removeprefix('Value error, ')}"
        case "too_short" | "string_too_short":
            return f"{where} is empty"
        case "string_too_long":
            length = len(str(detail["input"]))
            return f"{where} has {length:,} characters: at most {detail['ctx']['max_length']:,} are allowed"
        case _:
            newer = _is_newer_form(location, detail["input"])
            reason = f" of a newer release of Lithify: this one reads {_expected_text(detail)}, upgrade it"
            wrong = f"must be {_expected_text(detail)}{_found_value(location, detail['input'])}"
            return f"{where} {_shown(detail['input'])} is{reason}" if newer else f"{where} {wrong}"


def _is_newer_form(location: tuple[str | int, ...], given: object) -> bool:
    is_number = isinstance(given, str) and given.isascii() and given.isdigit()
    return location == ("schema_version",) and is_number and given not in ("0", "1")


def _expected_text(detail: ErrorDetails) -> str:
    """`less than or equal to 1,000,000`, `a list`: pydantic's words, without its own terms."""
    wanted = detail["msg"].removeprefix("Input should be ").replace("a valid array", "a list")
    for bound in (detail.get("ctx") or {}).values():
        if isinstance(bound, int):
            wanted = wanted.removesuffix(str(bound)) + f"{bound:,}"
    return wanted


def _found_value(location: Sequence[int | str], value: object) -> str:
    """The found value; a task token is always secret."""
    return "" if location and location[0] == "task_token" else f", not {_shown(value)}"


def _sort_key_sentence(location: Sequence[int | str], document: dict[str, JsonValue]) -> str:
    sort_keys, number = document.get("sort_keys"), location[1]
    given = sort_keys[number] if isinstance(sort_keys, list) and isinstance(number, int) else sort_keys
    return f'sort_keys[{number}] must be [column, "ascending"] or [column, "descending"], not {_shown(given)}'


def _description_of(field: str) -> str:
    known = InstructionDocument.model_fields.get(field)
    return known.description if known is not None and known.description else "it is required"


def _nearest(name: str) -> str:
    guessed = FIELD_NAMES if len(name) <= GUESSED_NAME_CHARACTERS_MAX else ()
    return meant(name, guessed, f"; known are {', '.join(FIELD_NAMES)}")


def _path(location: Iterable[int | str]) -> str:
    """`partitions[0].region`; without pydantic's labels of union members."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "[" not in part and part not in ("constrained-str", "constrained-int"):
            text += f".{part}" if text else part
    return text or "the document"


def _shown(value: object) -> str:
    # Encoded in parts, only as far as it is shown.
    pieces = islice(json.JSONEncoder(ensure_ascii=False, default=repr).iterencode(value), 81)
    text = "".join(pieces)
    return text if len(text) <= 80 else text[:77] + "..."


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARACTERS_MAX else text[: REASON_CHARACTERS_MAX - 4] + " ..."


def _text_of(document: dict[str, JsonValue], field: str) -> str | None:
    value = document.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= JOB_RUN_ID_CHARACTERS_MAX or not value.isprintable():
        return None
    return value if len(encode(value)) <= JOB_RUN_ID_BYTES_MAX else None


def _task_token_of(document: dict[str, JsonValue]) -> str | None:
    value = document.get("task_token")
    return value if isinstance(value, str) and 0 < len(value) <= TASK_TOKEN_CHARACTERS_MAX else None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
