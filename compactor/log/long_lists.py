"""Long lists of an entry, in one Parquet object beside it, so that it stays short (FORMAT.md, "Durable logs").

The entry has such lists empty, and says how many elements each has; the object has their elements one after the other,
a row each, in the column of their kind. Both are immutable, and the object is written first. A reader gets the actions
as they were decided, and sees no difference.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import BaseModel, Field

from compactor.log.row_files import parse_rows, render_rows
from compactor.model.document import Document
from compactor.model.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa

    from compactor.log.columns import ColumnCodec

ActionT = TypeVar("ActionT")


class RowsOfList(Document):
    """Rows of the object. `list`: the action's place in the entry, and the fields down to the list."""

    list: str
    rows: int = Field(ge=1)


class ListsBeside(Document):
    """The object with an entry's long lists. `rows`: the lists, in the order of its rows."""

    size_bytes: int = Field(ge=0)
    crc32: int = Field(ge=0)
    rows: tuple[RowsOfList, ...]

    @classmethod
    def of(cls, body: bytes, lists: Mapping[str, Sequence[object]]) -> ListsBeside:
        rows = tuple(RowsOfList(list=path, rows=len(elements)) for path, elements in lists.items())
        return cls(size_bytes=len(body), crc32=zlib.crc32(body), rows=rows)


@dataclass(frozen=True)
class LongLists:
    """Which lists of a kind of log are left out of long entries.

    Attributes:
        make_columns: loads PyArrow, so only a long entry has it called"""

    make_columns: Callable[[], Mapping[str, tuple[str, ColumnCodec]]]

    @cached_property
    def columns(self) -> Mapping[str, tuple[str, ColumnCodec]]:
        """By the name of a list's field: the column of its elements, of which several lists may have one."""
        return self.make_columns()

    def left_out_of(self, actions: Sequence[ActionT]) -> tuple[list[ActionT], dict[str, Sequence[object]]]:
        """The actions with these lists empty, and the lists, by their path. An empty list is none of them."""
        found: dict[str, Sequence[object]] = {}
        short = [self._without(cast(BaseModel, action), str(place), found) for place, action in enumerate(actions)]
        return cast(list[ActionT], short), found

    def _without(self, value: BaseModel, path: str, found: dict[str, Sequence[object]]) -> BaseModel:
        changes: dict[str, object] = {}
        for name in type(value).model_fields:
            part = getattr(value, name)
            if name in self.columns and isinstance(part, tuple) and part:
                found[f"{path}/{name}"], changes[name] = part, ()
            elif isinstance(part, BaseModel):
                changes[name] = self._without(part, f"{path}/{name}", found)
        return value.model_copy(update=changes)

    def render(self, lists: Mapping[str, Sequence[object]]) -> bytes:
        """The object."""
        import pyarrow as pa

        kinds = dict(self.columns.values())
        elements: dict[str, list[object]] = {column: [] for column in kinds}
        for path, values in lists.items():
            for column in kinds:
                elements[column] += values if column == self._column_of(path) else [None] * len(values)
        return render_rows(pa.table({name: codec.to_array(elements[name]) for name, codec in kinds.items()}))

    def filled_in(
        self, actions: Sequence[ActionT], lists: ListsBeside, body: bytes | None, key: str
    ) -> Iterator[ActionT]:
        """The actions with their lists. Raises `Corrupt` for an object (`body`, at `key`) that is not the entry's."""
        if body is None:
            raise Corrupt(f"{key} is missing: it has lists of the entry of this number")
        if (len(body), zlib.crc32(body)) != (lists.size_bytes, lists.crc32):
            raise Corrupt(f"{key} differs from what its entry says: {len(body)} bytes, or another checksum")
        import pyarrow as pa

        try:
            by_path = self._parse(lists, parse_rows(body))
            for place, action in enumerate(actions):
                whole = cast(BaseModel, action)
                for path, elements in by_path.items():
                    first, *fields = path.split("/")
                    whole = _with(whole, fields, elements) if int(first) == place else whole
                yield cast(ActionT, whole)
        except (pa.ArrowException, OSError, ValueError, KeyError, AttributeError) as error:
            raise Corrupt(f"{key} cannot be understood: {error}") from error

    def _parse(self, lists: ListsBeside, rows: pa.Table) -> dict[str, tuple[object, ...]]:
        kinds = {column: codec for column, codec in self.columns.values() if column in rows.column_names}
        values = {name: codec.to_values(rows[name].combine_chunks()) for name, codec in kinds.items()}
        borders = list(accumulate((each.rows for each in lists.rows), initial=0))
        if borders[-1] != rows.num_rows:
            raise ValueError(f"it has {rows.num_rows} rows, and its entry says {borders[-1]}")
        found = {}
        for each, (start, end) in zip(lists.rows, pairwise(borders), strict=True):
            found[each.list] = tuple(values[self._column_of(each.list)][start:end])
            if None in found[each.list]:
                raise ValueError(f"a row of {each.list} is null")
        return found

    def _column_of(self, path: str) -> str:
        return self.columns[path.rpartition("/")[2]][0]


def _with(value: BaseModel, fields: Sequence[str], elements: tuple[object, ...]) -> BaseModel:
    name, *inner = fields
    part = _with(getattr(value, name), inner, elements) if inner else elements
    return value.model_copy(update={name: part})
