"""The properties of a table: its keys, the destination of its compacted rows, retention times.

Each property is one field of `TableProperties`. To add one: add a field whose default keeps the earlier behaviour, a
line in FORMAT.md, and, if it may contradict another property, a sentence in `contradictions`. `create_table`,
`set_properties`, `lithify table set` and `get` then take it without a change. Code reads values from the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING, Annotated, get_args

from pydantic import Field, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from compactor.catalog.compact_when import CompactWhen, Preset, contradictions_of, in_log_form
from compactor.catalog.feed import OF_ROWS, Feed, feed_in_log_form
from compactor.model.counts import SortKey
from compactor.model.document import SparseDocument
from compactor.model.errors import Invalid, reasons_of, refuse_if
from compactor.model.names import NOT_WRITTEN, PARTITION_STREAM_POSITION, ContentType, OpenFormat, TableId
from compactor.model.wrong_input import SHOWN_CHARACTERS_MAX, json_of, meant, sentences, shown
from compactor.storage.location import is_remote, lies_below

if TYPE_CHECKING:  # what checks properties is loaded when some are set
    import pyarrow as pa

    from compactor.catalog.partition_split import Partitioning

ROWS_PER_COMPACTED_FILE = 4_000_000

BYTES_PER_COMPACTED_FILE = 512 * 1024 * 1024
"""The default of the property: 4,000,000 rows of 134 bytes. Readers open few files, and a rewrite stays small."""

GRACE_SECONDS = 7 * 24 * 3600
"""The default: longer than any attempt, and enough to notice a wrong compaction and read the table as it was before."""

GRACE_SECONDS_MIN = 3_600
"""A shorter grace may delete files that a compaction or a writer is about to commit."""

KEPT_SECONDS_MAX = 1_000 * 365 * 24 * 3_600
"""The longest retention or grace that can be set: 1,000 years, so that its end has a date. Entries of the log may have
longer ones."""


class TableState(StrEnum):
    """An offline table takes no deltas, and no compaction begins; it can be read."""

    ONLINE = "online"
    OFFLINE = "offline"


class SchemaGrowth(StrEnum):
    """Whether deltas may bring columns that the declared schema does not have."""

    ALLOW = "allow"
    REFUSE = "refuse"


class MissingColumns(StrEnum):
    """What becomes of a delta that lacks columns of its stream: its rows have nulls there, or it is refused."""

    NULL = "null"
    REFUSE = "refuse"


def _listed(value: object) -> object:
    """Splits names in one text, as in a command line (`a,b`), and sorts a set of names."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    return sorted(value) if isinstance(value, set | frozenset) else value


def _sort_keys(value: object) -> object:
    """Sort keys as users write them: `updated:descending,id`, or [column, order] pairs."""
    listed = _listed(value)
    return [_sort_key(each) for each in listed] if isinstance(listed, Sequence) else listed


def _sort_key(given: object) -> object:
    if isinstance(given, str):
        column, colon, order = given.rpartition(":")
        return {"column": column, "order": order} if colon else {"column": given}
    if isinstance(given, Sequence) and len(given) == 2:
        return {"column": given[0], "order": given[1]}
    return given


ColumnNames = tuple[Annotated[str, Field(min_length=1)], ...]
PositiveInt = Annotated[int, Field(ge=1, le=2**63 - 1)]


class TableProperties(SparseDocument):
    """All properties of a table; None: not set. Frozen: each change makes another value."""

    primary_keys: ColumnNames | None = Field(
        default=None,
        description="key columns; instructions may omit them. `[]`: the table has no key, takes no deletes, and "
        "keeps every row",
    )
    sort_keys: Annotated[tuple[SortKey, ...], Field(min_length=1)] | None = Field(
        default=None, description="`COLUMN[:ORDER],...`: of the rows of a key, the last one in this order survives"
    )
    destination_compacted_table_id: str | None = Field(
        default=None, description="table of the compacted rows; not set: the table itself"
    )
    compacted_file_content_type: ContentType | None = Field(
        default=None, description="format of compacted files, unless an instruction names one; not set: `parquet`"
    )
    rows_per_compacted_file: PositiveInt | None = Field(
        default=None, description="most rows of a compacted file, unless an instruction names them; not set: 4,000,000"
    )
    bytes_per_compacted_file: PositiveInt | None = Field(
        default=None, description="about the most bytes of a compacted file; not set: 512 MiB"
    )
    merge_small_files: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(
        default=8,
        description="a compaction merges the small compacted files of a partition (below a quarter of a full one, "
        "without keys half) once there are so many, without keys also the last ones before a larger file; 0: never",
    )
    merge_small_files_share: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.01, description="and once they are at least this share (0 to 1) of all compacted files"
    )
    private_columns: ColumnNames = Field(
        default=(), description="columns whose values never stand in logs, not even as bounds"
    )
    state: TableState = Field(
        default=TableState.ONLINE,
        description="`online`, or `offline`: it takes no deltas and is not compacted, but can be read; a writer "
        "notices within a minute",
    )
    retention_seconds: PositiveInt | None = Field(
        default=None,
        description="how long compacted deltas and replaced files stay readable; not set: a week, or the grace if "
        "that is longer",
    )
    gc_grace_seconds: Annotated[int, Field(ge=GRACE_SECONDS_MIN)] | None = Field(
        default=None,
        description="must exceed the longest write or compaction (at least one hour): gc never deletes younger files; "
        "not set: a week, or `--grace-hours` of gc",
    )

    publish: tuple[OpenFormat, ...] = Field(
        default=(),
        description="`delta`, `iceberg` or both (`delta,iceberg`): every committed round is published as a Delta Lake "
        "or Apache Iceberg table (the latter needs the extra `iceberg`)",
    )

    glue_database: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="AWS Glue database in which dispatchers register the published table; on S3 only"
    )

    news_hints: bool | None = Field(
        default=None,
        description="writers list the streams that have something to compact: `true` in a table that is created with "
        "partition keys and `compact_when`; a keeper sets it in others with such keys that it keeps; `false`: never",
    )

    partition_by: dict[str, str] = Field(
        default={},
        description="partition keys that are derived from a column, as Apache Iceberg derives them: JSON such as "
        '`{"order_day":"day(ordered_at)"}`, with `year`, `month`, `day`, `hour`, `bucket[n]`, `truncate[w]` or '
        "`identity`; set by `create_table` only",
    )

    default_partition: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="the partition value of rows whose partition column is null; not set: such rows are refused",
    )

    session_plans: bool = Field(
        default=False,
        description="each session writes its plan into the log before it begins; another compactor is then refused, or "
        "waits (`--wait-seconds`)",
    )

    schema_growth: SchemaGrowth = Field(
        default=SchemaGrowth.ALLOW,
        description="`allow`, or `refuse`: a delta with a column that the declared schema lacks is refused; "
        "`create_table` with a schema sets `refuse`",
    )

    missing_columns: MissingColumns = Field(
        default=MissingColumns.NULL,
        description="`null`: rows of a delta that lacks columns have null there; `refuse`: such upserts are refused",
    )

    compact_when: CompactWhen | None = Field(
        default=None,
        description="when the keeper has its streams compacted: JSON (`lithify schema compact_when`), or a preset: "
        "`upsolver`, `size_ratio`, `streaming`, `nightly`, `manual`; not set: `lithify keeper --default-policy`",
    )

    changes: Feed | None = Field(
        default=None,
        description="how the table's change feed is written: `dms`, `debezium`, or JSON such as "
        '`{"format":"ops","column":"op"}`',
    )

    quarantine: str | None = Field(
        default=None,
        description="folder, as a URI that ends with `/`, for changes that cannot be applied: a file has them and "
        "their reasons, and the others are appended; not set: all changes of their file are refused",
    )

    landing: tuple[str, ...] = Field(
        default=(),
        description="folders, as URIs that end with `/`: `lithify ingest` appends the files that are announced below "
        "them",
    )

    landing_suffixes: tuple[str, ...] = Field(
        default=(),
        description="ends of file names, such as `.parquet,.json.gz`: other files of the folders are left out; "
        "not set: every file lands",
    )

    landing_format: ContentType | None = Field(
        default=None,
        description="format of the files that land, where their names do not say it; not set: such a file is refused",
    )

    allow_files: tuple[str, ...] = Field(
        default=(),
        description="folders outside a lake on S3 whose files may be registered; dispatchers need `--allow-files` too",
    )

    @property
    def grace_seconds(self) -> int:
        return GRACE_SECONDS if self.gc_grace_seconds is None else self.gc_grace_seconds

    def kept_by(self, default_policy: CompactWhen | None) -> CompactWhen | None:
        """The policy of the table for a keeper with this default; None: it leaves the table alone, as one that is
        offline. One that declares no keys can be watched, by `manual`, and no more."""
        policy = None if self.state is TableState.OFFLINE else self.compact_when or default_policy
        sends = policy is not None and policy.preset is not Preset.MANUAL
        return None if sends and self.primary_keys is None else policy

    def of_a_copy(self) -> dict[str, object]:
        """The properties that a destination table inherits when the first compaction creates it."""
        rendered = self.model_dump(mode="json")
        return {name: rendered[name] for name in _OF_A_COPY if name in rendered}

    def changed(self, changes: Mapping[str, object]) -> TableProperties:
        """The properties with some changed; None removes a property. Raises `Invalid`, with every reason."""
        known_are = f"; known are {', '.join(NAMES)}"
        unknown = [
            f"there is no property {name!r}{meant(name, NAMES, known_are)}" for name in changes if name not in NAMES
        ]
        known = {name: value for name, value in changes.items() if name in NAMES}
        kept = {name: value for name, value in self.model_dump(mode="json").items() if name not in known}
        given = {name: _in_log_form(name, value) for name, value in known.items() if value is not None}
        try:
            parsed = TableProperties.model_validate_json(to_json({**kept, **given}, fallback=str))
        except PydanticSerializationError as error:
            raise Invalid(*unknown, "a property holds text that is not Unicode") from error
        except ValidationError as error:
            raise Invalid(*unknown, *sentences(error, TableProperties, "properties")) from error
        too_long = [
            f"{name} is {shown(seconds)}: at most {KEPT_SECONDS_MAX:,} are allowed, 1,000 years"
            for name in ("retention_seconds", "gc_grace_seconds")
            if name in known and (seconds := getattr(parsed, name) or 0) > KEPT_SECONDS_MAX
        ]
        refuse_if([*unknown, *too_long])
        return parsed

    def difference_from(self, given: TableProperties) -> str | None:
        """Describes in a sentence the properties that were given and differ here; None: no differences."""
        rendered, wanted = (to_jsonable_python(dict(each)) for each in (self, given))
        differing = [name for name in NAMES if name in given.model_fields_set and rendered[name] != wanted[name]]
        each = [f"{name} {_shown(rendered[name])}, not {_shown(wanted[name])}" for name in differing]
        return f"the properties {', '.join(each)} (lithify table set changes them)" if each else None


NAMES = tuple(TableProperties.model_fields)
NO_PROPERTIES = TableProperties()

_OF_A_COPY = (
    "merge_small_files",
    "merge_small_files_share",
    "partition_by",
    "default_partition",
    "private_columns",
    "retention_seconds",
    "gc_grace_seconds",
    "session_plans",
)

_GLUE_DATABASE = re.compile(r"[a-z0-9_]{1,255}")

_WRITTEN_FORMS = {
    "allow_files": _listed,
    "changes": feed_in_log_form,
    "landing": _listed,
    "landing_suffixes": _listed,
    "compact_when": in_log_form,
    "primary_keys": _listed,
    "private_columns": _listed,
    "publish": _listed,
    "sort_keys": _sort_keys,
}
"""How the log writes the values of properties that users may write in other ways."""


def _wrong_landing(properties: TableProperties) -> Iterator[str]:
    quarantine = properties.quarantine
    for name, folder in (
        *(("landing has", each) for each in properties.landing),
        *((("quarantine is", quarantine),) if quarantine is not None else ()),
    ):
        if not folder.startswith(("s3://", "file://")) or not folder.endswith("/"):
            yield f"{name} {folder!r}: write the URI of a folder, such as s3://bucket/orders/, with its last `/`"
    if quarantine is not None and lies_below(quarantine, properties.landing):
        yield f"quarantine is {quarantine}, where files land: name another folder, or each file of it would land, too"
    yield from _wrong_landing_files(properties)
    if properties.changes is not None and properties.changes.keys_are_global and properties.landing:
        yield (
            "changes has keys_are_global, and files that land are taken in side by side: what one has moved, another "
            "would not see. Leave out landing, and append changes one after the other"
        )
    reason = properties.changes and properties.changes.reason_against_default_partition(properties.default_partition)
    if reason:
        yield reason
    if properties.changes is not None and not properties.primary_keys:
        yield "changes says how a change feed is written, and each change is of a key: set primary_keys, too"


def _wrong_landing_files(properties: TableProperties) -> Iterator[str]:
    suffixes, landing_format, changes = properties.landing_suffixes, properties.landing_format, properties.changes
    given = {"landing_suffixes": bool(suffixes), "landing_format": landing_format is not None}
    if not properties.landing:
        yield from (f"{name} is of files that land: set landing, too" for name, is_set in given.items() if is_set)
    lines_feed = None if changes is None or changes.format in OF_ROWS else changes.format.value
    if lines_feed is not None and landing_format not in (None, ContentType.JSON):
        yield f"landing_format is {landing_format}, and a feed of format {lines_feed} is JSON lines: leave it out"
    for suffix in suffixes:
        if not suffix or "/" in suffix or "*" in suffix:
            yield f"landing_suffixes has {suffix!r}: write the end of a file's name, such as .parquet"
            continue
        said = _format_of(suffix)
        if landing_format is not None and said not in (None, landing_format):
            yield f"landing_format is {landing_format}, and files that end in {suffix} are {said}: leave one out"
        elif landing_format is None and said is None and lines_feed is None:
            yield f"landing_suffixes has {suffix!r}, which names no format: set landing_format, such as csv"
        elif landing_format is not None and suffix.endswith(".gz") and not landing_format.is_text:
            yield f"landing_suffixes has {suffix!r}, and a file of {landing_format} is not gzipped: only text is"


def _format_of(suffix: str) -> ContentType | None:
    from compactor.tabular import infer_content_type

    try:
        return infer_content_type(f"file{suffix}")
    except Invalid:
        return None


def partitioning_of(partition_keys: Sequence[str], properties: TableProperties) -> Partitioning:
    """How the rows of a table find their partitions."""
    from compactor.catalog.partition_split import Partitioning
    from compactor.catalog.partition_transforms import parse_transform

    transforms = {key: parse_transform(key, text) for key, text in properties.partition_by.items()}
    return Partitioning(tuple(partition_keys), transforms, properties.default_partition)


def _wrong_partitioning(
    properties: TableProperties, partition_keys: Sequence[str], schema: pa.Schema | None
) -> Iterator[str]:
    from compactor.catalog.partition_transforms import BUCKET, IDENTITY, parse_transform

    for key, text in properties.partition_by.items():
        try:
            transform = parse_transform(key, text)
        except Invalid as error:
            yield from error.reasons
            continue
        if key not in partition_keys:
            yield f"partition_by derives {key}, which is no partition key of the table"
        if key == transform.column and transform.name != IDENTITY:
            yield f"partition_by: {key} is {text}: a derived key has another name than its column"
        if transform.name != BUCKET and transform.column in properties.private_columns:
            yield f"partition_by: {key} is {text} of a private column: its values would be in the names of objects"
        if schema is None:
            continue
        place = schema.get_field_index(transform.column)
        if place < 0:
            yield f"partition_by: {key} is {text}, and the schema has no column {transform.column!r}"
        elif (reason := transform.reason_against(schema.field(place).type)) is not None:
            yield f"partition_by: {key}: {reason}"


def contradictions(
    properties: TableProperties, partition_keys: Sequence[str], schema: pa.Schema | None
) -> Iterator[str]:
    """All contradictions between properties, or with the table's definition, one sentence each."""
    from compactor.catalog.key_columns import check_declared_keys, check_given_key_names

    primary_keys, sort_keys = properties.primary_keys or (), properties.sort_keys or ()
    yield from check_given_key_names(primary_keys, sort_keys)
    if properties.primary_keys == () and sort_keys:
        yield "sort_keys says which row of a key survives, and primary_keys is empty: leave it out, or name a key"
    if schema is not None:
        yield from check_declared_keys(schema, primary_keys, sort_keys)
    yield from _wrong_privacy(properties, partition_keys)
    yield from _wrong_destination(properties)
    yield from _wrong_publication(properties, partition_keys, schema)
    yield from _wrong_glue_database(properties)
    yield from _wrong_landing(properties)
    yield from _wrong_partitioning(properties, partition_keys, schema)
    yield from _wrong_arrivals(properties, schema)
    if properties.compact_when is not None:
        yield from contradictions_of(properties.compact_when, properties.primary_keys)
        yield from _wrong_small_files(properties.compact_when, properties)
    content_type = properties.compacted_file_content_type
    if content_type in NOT_WRITTEN:
        written = ", ".join(each for each in ContentType if each not in NOT_WRITTEN)
        yield f"compacted_file_content_type {content_type} can be read only: use {written}"
    if properties.retention_seconds is not None and properties.retention_seconds < properties.grace_seconds:
        how = "is not set, so" if properties.gc_grace_seconds is None else "says that"
        yield (
            f"retention_seconds is {properties.retention_seconds:,}: gc_grace_seconds {how} an attempt may take "
            f"{properties.grace_seconds:,} seconds, and what it read must be there until it ends"
        )


def value_of_text(name: str, text: str) -> object:
    """A property's value from a command line: JSON, a number, or plain text. Raises `Invalid` for broken JSON."""
    if text[:1] in ("[", "{", '"'):
        try:
            return json_of(text, name)
        except ValueError as error:
            raise Invalid(f"{name}: {text[:SHOWN_CHARACTERS_MAX]!r} begins as JSON and is none: {error}") from error
    field = TableProperties.model_fields.get(name)
    if field is not None and bool in (field.annotation, *get_args(field.annotation)) and text in ("true", "false"):
        return text == "true"
    is_number = field is not None and _takes_numbers(field.annotation)
    try:
        return int(text.replace("_", "").replace(",", "")) if is_number else text
    except ValueError:
        return text


def _takes_numbers(annotation: object) -> bool:
    return annotation is int or any(_takes_numbers(each) for each in get_args(annotation))


def _wrong_small_files(policy: CompactWhen, properties: TableProperties) -> Iterator[str]:
    merged, share = properties.merge_small_files, properties.merge_small_files_share
    by_files = [name for name in ("small_files", "small_file_share") if getattr(policy, name)]
    if by_files and not merged:
        yield f"compact_when.{by_files[0]} waits for small files, and merge_small_files is 0: none is ever merged"
    elif (few := policy.small_files or inf) < merged:
        yield (
            f"compact_when.small_files is {few}, and a compaction merges none before there are {merged}: set "
            "merge_small_files to the same"
        )
    elif (few_of_all := policy.small_file_share or inf) < share:
        yield (
            f"compact_when.small_file_share is {few_of_all:g}, and a compaction merges none before they are {share:g} "
            "of all files: set merge_small_files_share to the same"
        )


def _wrong_privacy(properties: TableProperties, partition_keys: Sequence[str]) -> Iterator[str]:
    private = properties.private_columns
    for column in dict.fromkeys(private):
        if private.count(column) > 1:
            yield f"private column {column!r} is named {private.count(column)} times"
        if column in partition_keys:
            yield f"private column {column!r} is a partition key: its values are in the names of objects"
        if column == PARTITION_STREAM_POSITION:
            yield f"{column!r} is a virtual column, and every log has it: it cannot be private"


def _wrong_destination(properties: TableProperties) -> Iterator[str]:
    if properties.destination_compacted_table_id is not None:
        for reason in reasons_of(TableId.parse, properties.destination_compacted_table_id):
            yield f"destination_compacted_table_id: {reason}"


def _wrong_publication(
    properties: TableProperties, partition_keys: Sequence[str], schema: pa.Schema | None
) -> Iterator[str]:
    publish = properties.publish
    if not publish:
        return
    import pyarrow as pa

    from compactor.schemas.open_types import OpenTable, reasons_against

    if len(set(publish)) < len(publish):
        yield f"publish names a format twice: {', '.join(publish)}"
    content_type = properties.compacted_file_content_type
    if content_type not in (None, ContentType.PARQUET):
        yield (
            f"publish is {', '.join(publish)}, and compacted_file_content_type {content_type}: "
            "published files are parquet"
        )
    sort_keys = [key.column for key in properties.sort_keys or ()]
    table = OpenTable(partition_keys, properties.primary_keys or (), sort_keys, OpenFormat.DELTA in publish)
    found = reasons_against(pa.schema([]) if schema is None else schema, table)
    yield from (f"publish is {', '.join(publish)}: {reason}" for reason in found)


def packages_missing(properties: TableProperties) -> tuple[str, ...]:
    """Why the table cannot be published with the packages that are installed here. The log may say more than this
    process can do, so it is asked before `publish` is set, and not whenever a table is opened."""
    if OpenFormat.ICEBERG not in properties.publish or find_spec("pyiceberg") is not None:
        return ()
    return ("publish names iceberg, whose package is not installed here: pip install 'lithify[iceberg]'",)


def _wrong_glue_database(properties: TableProperties) -> Iterator[str]:
    database = properties.glue_database
    if database is None:
        return
    if not _GLUE_DATABASE.fullmatch(database):
        yield f"glue_database is {database!r}: write 1 to 255 small letters, digits and _, as Athena wants it"
    if not properties.publish:
        yield f"glue_database is {database}, and publish is not set: set publish to delta, iceberg, or both"


def _wrong_arrivals(properties: TableProperties, schema: pa.Schema | None) -> Iterator[str]:
    if properties.schema_growth is SchemaGrowth.REFUSE and schema is None:
        yield "schema_growth is refuse, and the table has no declared schema: create it with one"
    for folder in properties.allow_files:
        if not is_remote(folder):
            yield f"allow_files names {folder!r}: write s3://bucket/folder"


def _in_log_form(name: str, value: object) -> object:
    form = _WRITTEN_FORMS.get(name)
    return value if form is None else form(value)


def _shown(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def default_policy_of_text(text: str | None) -> CompactWhen | None:
    """A policy for tables that have none. Raises `Invalid`, with every reason, for one that no table could have."""
    if not text:
        return None
    policy = TableProperties().changed({"compact_when": value_of_text("compact_when", text)}).compact_when
    refuse_if([] if policy is None else list(contradictions_of(policy, ("key",))))
    return policy
