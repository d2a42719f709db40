"""What a table is: its partition keys and its schema, in a small log of its own under the table's folder.

A table exists once entry 1 of this log does. Its partition streams have logs of their own (`stream.py`): writers of
two partitions never meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import TypeAdapter

from compactor.catalog.log import LogFormat
from compactor.document import Document
from compactor.errors import Corrupt, Invalid
from compactor.names import TableId
from compactor.schemas import parse_schema, render_schema


class TableCreated(Document):
    """`arrow_schema` is an Arrow IPC schema message in base64; None for a table that takes whatever its files hold."""

    action: Literal["table_created"] = "table_created"
    table_id: str
    partition_keys: tuple[str, ...]
    arrow_schema: str | None = None


@dataclass(frozen=True)
class TableDefinition:
    """The fold of a definition log.

    schema  what was declared; files may hold less (missing columns are null) or more (contract 2, "Schemas may grow")
    """

    table_id: str
    partition_keys: tuple[str, ...]
    schema: pa.Schema | None

    def as_action(self) -> TableCreated:
        schema = None if self.schema is None else render_schema(self.schema)
        return TableCreated(table_id=self.table_id, partition_keys=self.partition_keys, arrow_schema=schema)

    def difference_from(self, other: TableDefinition) -> str | None:
        """What the other definition has that this one has not, for a person; None for equal definitions."""
        if self.partition_keys != other.partition_keys:
            return f"the partition keys {list(other.partition_keys)}, not {list(self.partition_keys)}"
        if (self.schema is None) != (other.schema is None):
            return "no schema" if other.schema is None else "a schema"
        if self.schema is not None and not self.schema.equals(other.schema, check_metadata=True):
            return f"another schema ({_one_line(other.schema)})"
        return None


def define_table(table_id: str, partition_keys: Sequence[str], schema: pa.Schema | None) -> TableDefinition:
    """A definition of what a user asked for. Raises `Invalid`, with every reason at once."""
    reasons: list[str] = []
    try:
        TableId.parse(table_id)
    except Invalid as error:
        reasons += error.reasons
    if isinstance(partition_keys, str):
        reasons.append(f"partition_keys is the text {partition_keys!r}: give a list of names")
    else:
        reasons += [f"partition key {key!r} has no name" for key in partition_keys if not key]
        reasons += [f"partition key {key!r} is named twice" for key in _repeated(partition_keys)]
    if schema is not None:
        reasons += [f"column {name!r} is in the schema twice" for name in _repeated(schema.names)]
    if reasons:
        raise Invalid(*reasons)
    return TableDefinition(table_id, tuple(partition_keys), schema)


def _apply(definition: TableDefinition | None, action: TableCreated) -> TableDefinition:
    if definition is not None:
        raise Corrupt(f"table {action.table_id} is created twice")
    schema = None
    if action.arrow_schema is not None:
        try:
            schema = parse_schema(action.arrow_schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Corrupt(f"the schema of table {action.table_id} cannot be read: {error}") from error
    return TableDefinition(action.table_id, action.partition_keys, schema)


TABLE_LOG: LogFormat[TableDefinition | None, TableCreated] = LogFormat(
    name="table", action_type=TypeAdapter(TableCreated), initial=None, apply=_apply
)


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for position, name in enumerate(names) if name in names[:position]})


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
