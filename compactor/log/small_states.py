"""The checkpoint of a log whose state is small: the state as one JSON text, in a Parquet file of one row.

The file also has the digest of the state's shape: a reader whose state has other fields replays the log instead, so
that it never reads an incomplete state.
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Generic, TypeVar

import pyarrow as pa
from pydantic import TypeAdapter
from pydantic_core import to_json

from compactor.log.checkpoints import WholeCheckpoint
from compactor.model.errors import Corrupt

StateT = TypeVar("StateT")

SHAPE, STATE = "shape", "state"


def small_checkpoint(of: type[StateT]) -> WholeCheckpoint[StateT]:
    """The checkpoint form of a frozen dataclass of documents."""
    form = _Form(of)
    return WholeCheckpoint(form.to_table, form.from_table)


class _Form(Generic[StateT]):
    """Built at its first use: many processes write and read no checkpoint."""

    def __init__(self, of: type[StateT]) -> None:
        self._of = of

    def to_table(self, state: StateT) -> pa.Table:
        text = self._adapter.dump_json(state, fallback=_plain, warnings=False).decode()
        return pa.table({SHAPE: [self._shape], STATE: [text]})

    def from_table(self, table: pa.Table) -> StateT:
        if table.schema.names != [SHAPE, STATE] or table.num_rows != 1:
            raise Corrupt(f"its columns are {', '.join(table.schema.names)}, in {table.num_rows} rows")
        row = table.to_pylist()[0]
        if row[SHAPE] != self._shape:
            raise Corrupt("another release of Lithify wrote it, whose states have other fields")
        return self._adapter.validate_json(row[STATE])

    @cached_property
    def _adapter(self) -> TypeAdapter[StateT]:
        return TypeAdapter(self._of)

    @cached_property
    def _shape(self) -> str:
        schema = _without_descriptions(self._adapter.json_schema(mode="serialization"))
        return hashlib.sha256(to_json(schema)).hexdigest()


def _without_descriptions(schema: object) -> object:
    """They are docstrings: a state whose docstring is another one has the same fields."""
    if isinstance(schema, list):
        return [_without_descriptions(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_descriptions(each)
        for name, each in schema.items()
        if name != "description" or not isinstance(each, str)
    }


def _plain(value: object) -> object:
    """A value that documents cannot hold (an immutable mapping) as one that they can."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no place in a checkpoint")
