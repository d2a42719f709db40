"""A table's definition: its partition keys, its schema and its properties, in a small log under the table's folder.

A table exists once entry 1 of this log does. Each partition stream has its own log: writers of two never conflict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal, assert_never

from pydantic import Field, TypeAdapter

from compactor.catalog.keys import TableFolder
from compactor.catalog.properties import NO_PROPERTIES, SchemaGrowth, TableProperties, contradictions
from compactor.log.durable_log import LogFormat
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Invalid, reasons_of, refuse_if
from compactor.model.names import TableId, is_unicode
from compactor.storage.location import StoreLocation

if TYPE_CHECKING:  # a table without a declared schema is known without it
    import pyarrow as pa

_GLUE_NAME_MAX = 200
"""Longest id of a table that Glue accepts: it takes 255 characters, with what is added to an id."""

_NEEDS_ENCODING = re.compile(r"[^A-Za-z0-9._~/:-]")


class TableCreated(Document):
    """`arrow_schema` is an Arrow IPC schema message in base64; None for a table that accepts any columns."""

    action: Literal["table_created"] = "table_created"
    table_id: str
    partition_keys: tuple[str, ...]
    arrow_schema: str | None = None


class TablePropertiesSet(Document):
    """`properties`: all properties of the table from this entry on."""

    action: Literal["table_properties_set"] = "table_properties_set"
    properties: TableProperties


class TableDropped(Document):
    """The table is dropped. A later `TableCreated` begins another table of the same id. `at_ms`: the writer's clock."""

    action: Literal["table_dropped"] = "table_dropped"
    at_ms: int


class NewsHintsBegun(Document):
    """Writers put news hints from this entry on, and readers do not rely on them yet. `at_ms`: the writer's clock."""

    action: Literal["news_hints_begun"] = "news_hints_begun"
    at_ms: int


TableAction = Annotated[
    TableCreated | TablePropertiesSet | NewsHintsBegun | TableDropped, Field(discriminator="action")
]


@dataclass(frozen=True)
class TableDefinition:
    """The fold of a definition log.

    Attributes:
        arrow_schema: the declared schema, as text
        hints_begun_at_ms: since when writers put news hints; None: since the table was created, or never
        dropped_at_ms: None: the table is not dropped"""

    table_id: str
    partition_keys: tuple[str, ...]
    arrow_schema: str | None
    properties: TableProperties = NO_PROPERTIES
    hints_begun_at_ms: int | None = None
    dropped_at_ms: int | None = None

    @property
    def puts_hints(self) -> bool:
        """Whether writers put news hints. Readers rely on them if the property `news_hints` is true."""
        return bool(self.properties.news_hints) or self.hints_begun_at_ms is not None

    @cached_property
    def schema(self) -> pa.Schema | None:
        """The declared schema; files may have fewer columns (the missing ones are null) or, if the property
        `schema_growth` allows it, more."""
        if self.arrow_schema is None:
            return None
        import pyarrow as pa

        from compactor.schemas.unify import parse_schema

        try:
            return parse_schema(self.arrow_schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Corrupt(f"the schema of table {self.table_id} cannot be read: {error}") from error

    def as_actions(self) -> Sequence[TableAction]:
        created = TableCreated.from_facts(self)
        given = self.properties != NO_PROPERTIES
        return [created, TablePropertiesSet(properties=self.properties)] if given else [created]

    def as_new(self) -> TableDefinition:
        """The definition of a table that is created now: a schema that is declared is a contract, and writers hint a
        keeper at the streams of which there may be many, unless its creator says otherwise."""
        defaults: dict[str, object] = {}
        if self.arrow_schema is not None:
            defaults["schema_growth"] = SchemaGrowth.REFUSE
        if self.partition_keys and self.properties.compact_when is not None:
            defaults["news_hints"] = True
        left = {name: value for name, value in defaults.items() if name not in self.properties.model_fields_set}
        return replace(self, properties=self.properties.changed(left)) if left else self

    def in_key_order(self, partition: Mapping[str, object]) -> dict[str, str]:
        """The values of a partition in the order of the keys. Raises `Invalid`, with every reason, for other keys, and
        for values that are no text."""
        if not isinstance(partition, Mapping):
            raise Invalid(f"a partition is a dict of text by partition key, not a {type(partition).__name__}")
        texts = {key: value for key, value in partition.items() if isinstance(value, str)}
        if tuple(partition) == tuple(texts) == self.partition_keys:
            return texts
        keys = ", ".join(map(repr, self.partition_keys))
        has = f"table {self.table_id} has {f'the partition keys {keys}' if keys else 'no partition keys'}"
        reasons = [f"the partition lacks {key!r}: {has}" for key in self.partition_keys if key not in partition]
        reasons += [f"{key!r} is no partition key: {has}" for key in partition if key not in self.partition_keys]
        reasons += [
            f"the value of partition key {key!r} is {value!r}: give it as text"
            for key, value in partition.items()
            if not isinstance(value, str)
        ]
        refuse_if(reasons)
        return {key: str(partition[key]) for key in self.partition_keys}

    def difference_from(self, other: TableDefinition) -> str | None:
        """The difference from another definition, properties apart, in a sentence; None if they are equal."""
        if self.partition_keys != other.partition_keys:
            return f"the partition keys {list(other.partition_keys)}, not {list(self.partition_keys)}"
        if (self.schema is None) != (other.schema is None):
            return "no schema" if other.schema is None else "a schema"
        if self.schema is not None and not self.schema.equals(other.schema, check_metadata=True):
            return f"another schema ({_one_line(other.schema)})"
        return None


def set_properties(definition: TableDefinition, properties: TableProperties) -> Sequence[TableAction]:
    """The action that sets all properties; none if they are unchanged. Raises `Invalid`, with every reason, if the
    properties contradict each other or the table."""
    refuse_if(list(contradictions(properties, definition.partition_keys, definition.schema)))
    return [] if properties == definition.properties else [TablePropertiesSet(properties=properties)]


def define_table(
    table_id: str,
    partition_keys: Sequence[str],
    schema: pa.Schema | None,
    properties: Mapping[str, object] | None = None,
) -> TableDefinition:
    """The definition from a user's arguments. Raises `Invalid`, with every reason at once."""
    from compactor.schemas.nesting import deep_columns
    from compactor.schemas.unify import plain_schema, render_schema

    reasons = list(reasons_of(TableId.parse, table_id))
    if isinstance(partition_keys, str):
        reasons.append(f"partition_keys is the text {partition_keys!r}: give a list of names")
    else:
        reasons += [
            f"partition key {key!r} is no Unicode text: give a list of names"
            for key in partition_keys
            if not is_unicode(key)
        ]
        reasons += [f"partition key {key!r} has no name" for key in partition_keys if key == ""]
        reasons += [f"partition key {key!r} is named twice" for key in _repeated(partition_keys)]
    if schema is not None:
        reasons += [f"column {name!r} is in the schema twice" for name in _repeated(schema.names)]
        reasons += deep_columns("the schema", schema)
    plain = None if schema is None or reasons else plain_schema(schema)
    declared = NO_PROPERTIES
    try:
        declared = declared.changed(properties or {})
    except Invalid as error:
        reasons += error.reasons
    if not isinstance(partition_keys, str):
        reasons += contradictions(declared, partition_keys, plain)
    refuse_if(reasons)
    arrow_schema = None if plain is None else render_schema(plain)
    return TableDefinition(table_id, tuple(partition_keys), arrow_schema, declared)


def _apply(definition: TableDefinition | None, action: TableAction) -> TableDefinition:
    match action:
        case TableCreated():
            return _create(definition, action)
        case TablePropertiesSet():
            if definition is None:
                raise Corrupt("properties are set before the table is created")
            refused = action.properties.news_hints is False
            begun_at_ms = None if refused else definition.hints_begun_at_ms
            return replace(definition, properties=action.properties, hints_begun_at_ms=begun_at_ms)
        case NewsHintsBegun():
            if definition is None:
                raise Corrupt("news hints begin before the table is created")
            return replace(definition, hints_begun_at_ms=action.at_ms)
        case TableDropped():
            if definition is None:
                raise Corrupt("the table is dropped before it is created")
            return replace(definition, dropped_at_ms=action.at_ms)
        case _:
            assert_never(action)


def _create(definition: TableDefinition | None, action: TableCreated) -> TableDefinition:
    if definition is not None and definition.dropped_at_ms is None:
        raise Corrupt(f"table {action.table_id} is created twice")
    return TableDefinition(action.table_id, action.partition_keys, action.arrow_schema)


def reasons_against_place(location: StoreLocation, table_id: str) -> tuple[str, ...]:
    """Why other engines would not find a table's files here: some decode the names of folders, others do not."""
    return tuple(
        f"{noun} {name!r} has characters other than A-Z a-z 0-9 . _ ~ / -, which some engines decode: {instead}"
        for noun, name, instead in (
            ("the lake's root", location.root_uri, "publish a lake at another place"),
            ("the table's folder", TableFolder(table_id).key, "publish a table with another id"),
        )
        if _NEEDS_ENCODING.search(name)
    )


def reasons_against_glue(location: StoreLocation, table_id: str) -> tuple[str, ...]:
    """Why AWS Glue cannot lead to a table here."""
    found = []
    if not location.is_remote:
        found.append(f"glue_database: AWS Glue leads to tables on S3, and this lake is at {location.root_uri}")
    if len(table_id) > _GLUE_NAME_MAX:
        found.append(
            f"glue_database: a table id of {len(table_id)} characters has no name in Glue: {_GLUE_NAME_MAX} at most"
        )
    return tuple(found)


TABLE_LOG: LogFormat[TableDefinition | None, TableAction] = LogFormat(
    name="table", action_type=TypeAdapter(TableAction), initial=None, apply=_apply
)


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for position, name in enumerate(names) if name in names[:position]})


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
