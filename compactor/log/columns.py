"""Converts frozen values to Arrow columns and back: a checkpoint has documents in typed columns, not as text.

A codec is built from the declared fields of a class, so a new field of a document needs no change here. Each field
becomes a column of its own type, nested values become structs, lists and maps. A scalar of a file's statistics becomes
one nullable column per type, which a reader can compare without parsing.

A field that a checkpoint lacks takes its default. Any other mismatch raises `Corrupt`, and the log is replayed instead.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import accumulate, compress
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
from pydantic import BaseModel, TypeAdapter

from compactor.model.errors import Corrupt
from compactor.model.files import Scalar

ValueT = TypeVar("ValueT")
Values = Sequence[Any]


class ColumnCodec(Protocol):
    """Values of one Python type as one Arrow array. None is null, whatever the type."""

    arrow_type: pa.DataType

    def to_array(self, values: Values) -> pa.Array: ...

    def to_values(self, array: pa.Array) -> list[Any]: ...


class RecordCodec(Generic[ValueT]):
    """A document or a frozen dataclass as a struct, without the fields in `leave_out`, which the caller stores."""

    def __init__(self, of: type[ValueT], leave_out: Sequence[str] = ()) -> None:
        self._name = of.__name__
        self._fields = {
            name: codec_of(annotation)
            for name, annotation in _annotations(of).items()
            # A literal names the class; here the column does.
            if name not in leave_out and get_origin(annotation) is not Literal
        }
        self._needed = _needed(of)
        self._defaulted = _defaulted(of)
        # Validates the values again, which is faster than building unvalidated documents one by one in Python.
        self._build = TypeAdapter(list[of]).validate_python if issubclass(of, BaseModel) else _builder(of)  # type: ignore[valid-type]
        self.arrow_type = pa.struct([pa.field(name, codec.arrow_type) for name, codec in self._fields.items()])

    def to_array(self, values: Sequence[ValueT | None]) -> pa.Array:
        columns = [
            codec.to_array([None if value is None else getattr(value, name) for value in values])
            for name, codec in self._fields.items()
        ]
        absent = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow_type), mask=absent)

    def to_values(self, array: pa.Array, given: Mapping[str, object] | None = None) -> list[ValueT | None]:
        """`given` are the fields that were left out; they are the same for every value."""
        stored = {field.name: position for position, field in enumerate(array.type)}
        unknown = sorted(stored.keys() - self._fields.keys())
        missing = sorted((self._needed & self._fields.keys()) - stored.keys())
        if unknown or missing:
            raise Corrupt(f"a {self._name} has no {', '.join(unknown + missing)} as this Lithify knows it")
        names = [name for name in self._fields if name in stored]
        columns = [self._fields[name].to_values(array.field(stored[name])) for name in names]
        present = _presence(array)
        rows = zip(*columns) if columns else iter([()] * len(array))
        found = [{**dict(zip(names, row)), **(given or {})} for row in compress(rows, present)]
        # Of several pieces of a checkpoint some lack the field: it is null there.
        for name in (name for name in names if name in self._defaulted and array.field(stored[name]).null_count):
            for row in (row for row in found if row[name] is None):
                del row[name]
        built = iter(self._build(found))
        return [next(built) if is_present else None for is_present in present]


class _PlainCodec:
    """Numbers, text, bytes and booleans."""

    def __init__(self, arrow_type: pa.DataType) -> None:
        self.arrow_type = arrow_type

    def to_array(self, values: Values) -> pa.Array:
        return pa.array(values, self.arrow_type)

    def to_values(self, array: pa.Array) -> list[Any]:
        same = array if array.type == self.arrow_type else array.cast(self.arrow_type)
        return list(same.to_pylist())


class _EnumCodec(_PlainCodec):
    """A value of an enumeration."""

    def __init__(self, words: type[Enum]) -> None:
        super().__init__(pa.string())
        self._words: dict[str | None, Enum | None] = {None: None, **{word.value: word for word in words}}

    def to_values(self, array: pa.Array) -> list[Any]:
        return [self._words[text] for text in super().to_values(array)]


class _ListCodec:
    """A tuple of any length."""

    def __init__(self, item: ColumnCodec) -> None:
        self._item = item
        self.arrow_type = pa.list_(pa.field("item", item.arrow_type))

    def to_array(self, values: Values) -> pa.Array:
        items = self._item.to_array([item for value in values for item in value or ()])
        return pa.ListArray.from_arrays(_offsets(values), items, type=self.arrow_type, mask=_absent(values))

    def to_values(self, array: pa.Array) -> list[Any]:
        borders, own = _own_items(array)
        items = self._item.to_values(array.values.slice(*own))
        return [
            tuple(items[start:end]) if is_present else None
            for start, end, is_present in zip(borders, borders[1:], _presence(array))
        ]


class _MapCodec:
    """A dict; its order is kept."""

    def __init__(self, key: ColumnCodec, item: ColumnCodec) -> None:
        self._key, self._item = key, item
        self.arrow_type = pa.map_(key.arrow_type, item.arrow_type)

    def to_array(self, values: Values) -> pa.Array:
        keys = self._key.to_array([key for value in values for key in value or ()])
        items = self._item.to_array([item for value in values for item in (value or {}).values()])
        # A map array takes no mask: a null value is a null offset.
        offsets: list[int | None] = _offsets(values).to_pylist()
        for position, value in enumerate(values):
            offsets[position] = None if value is None else offsets[position]
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items)

    def to_values(self, array: pa.Array) -> list[Any]:
        borders, own = _own_items(array)
        keys, items = self._key.to_values(array.keys.slice(*own)), self._item.to_values(array.items.slice(*own))
        return [
            dict(zip(keys[start:end], items[start:end])) if is_present else None
            for start, end, is_present in zip(borders, borders[1:], _presence(array))
        ]


class _ScalarCodec:
    """A value of a file's statistics, in the column of its type. Integers beyond 64 bits are a text column."""

    arrow_type = pa.struct(
        [
            ("truth", pa.bool_()),
            ("integer", pa.int64()),
            ("great_integer", pa.string()),
            ("real", pa.float64()),
            ("text", pa.string()),
        ]
    )

    def to_array(self, values: Values) -> pa.Array:
        stored: dict[str, list[Scalar | None]] = {field.name: [None] * len(values) for field in self.arrow_type}
        for position, value in enumerate(values):
            if value is not None:
                name, as_stored = self._place(value)
                stored[name][position] = as_stored
        columns = [pa.array(stored[field.name], field.type) for field in self.arrow_type]
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow_type), mask=_absent(values))

    def to_values(self, array: pa.Array) -> list[Any]:
        values: list[Any] = [None] * len(array)
        for field in self.arrow_type:
            column = array.field(field.name)
            if column.null_count == len(column):
                continue
            for row, stored in enumerate(column.to_pylist()):
                if stored is not None:
                    values[row] = int(stored) if field.name == "great_integer" else stored
        return values

    @staticmethod
    def _place(value: Scalar) -> tuple[str, Scalar]:
        match value:
            case bool():
                return "truth", value
            case int() if -(2**63) <= value < 2**63:
                return "integer", value
            case int():
                return "great_integer", str(value)
            case float():
                return "real", value
            case str():
                return "text", value


_PLAIN: Mapping[type, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


def codec_of(annotation: object) -> ColumnCodec:
    """The codec of a field's declared type. Raises TypeError for a type without a codec."""
    codec = _codec_of_class(annotation) if isinstance(annotation, type) else _codec_of_generic(annotation)
    if codec is None:
        raise TypeError(f"there is no Arrow column for {annotation}: give it a codec in {__name__}")
    return codec


def _codec_of_class(of: type[Any]) -> ColumnCodec | None:
    if of in _PLAIN:
        return _PlainCodec(_PLAIN[of])
    if issubclass(of, Enum):
        return _EnumCodec(of)
    if issubclass(of, BaseModel) or dataclasses.is_dataclass(of):
        return RecordCodec(of)
    return None


def _codec_of_generic(annotation: object) -> ColumnCodec | None:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return codec_of(arguments[0])
    if origin in (Union, types.UnionType):
        stated = [argument for argument in arguments if argument is not types.NoneType]
        if set(stated) == set(get_args(Scalar)):
            return _ScalarCodec()
        return codec_of(stated[0]) if len(stated) == 1 else None
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return _ListCodec(codec_of(arguments[0]))
    if origin in (dict, Mapping):
        return _MapCodec(codec_of(arguments[0]), codec_of(arguments[1]))
    return None


def _annotations(of: type[Any]) -> dict[str, Any]:
    if issubclass(of, BaseModel):
        return {name: field.annotation for name, field in of.model_fields.items()}
    hints = get_type_hints(of)
    return {field.name: hints[field.name] for field in dataclasses.fields(of)}


def _builder(of: type[ValueT]) -> Callable[[list[dict[str, Any]]], list[ValueT]]:
    return lambda rows: [of(**row) for row in rows]


def _needed(of: type[Any]) -> set[str]:
    """Fields without a default."""
    if issubclass(of, BaseModel):
        return {name for name, field in of.model_fields.items() if field.is_required()}
    return {
        field.name
        for field in dataclasses.fields(of)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


def _defaulted(of: type[Any]) -> set[str]:
    """Fields with a default other than None, so that they are never null."""
    if issubclass(of, BaseModel):
        defaults = {name: field.get_default(call_default_factory=True) for name, field in of.model_fields.items()}
        return {name for name, default in defaults.items() if default is not None} - _needed(of)
    return {field.name for field in dataclasses.fields(of) if field.default is not None} - _needed(of)


def _offsets(values: Values) -> pa.Array:
    return pa.array(accumulate((len(value or ()) for value in values), initial=0), pa.int32())


def _own_items(array: pa.Array) -> tuple[list[int], tuple[int, int]]:
    """The borders of a list array's values among its items, and the first and the number of these: a slice of an array
    has the items of all of it."""
    borders = array.offsets.to_pylist() or [0]
    first, last = borders[0], borders[-1]
    return [border - first for border in borders], (first, last - first)


def _presence(array: pa.Array) -> list[bool]:
    return list(array.is_valid().to_pylist()) if array.null_count else [True] * len(array)


def _absent(values: Values) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())
