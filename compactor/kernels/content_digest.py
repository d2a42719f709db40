"""A digest of everything in a stream of Arrow tables: schema, rows, order. It does not depend on chunk borders.

It tells a repeated append from another append with the same delta id. Equal values must have equal digests: chunk
borders, slice offsets, bytes under a null, a validity bitmap without nulls and the order of a dictionary have no
effect. So each leaf of the schema has its own hashes of values only; they are combined at the end.
"""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from compactor.model.arrow_types import stored_values, value_type
from compactor.model.errors import Invalid


class ContentDigest:
    """`add` tables of one schema in order, then ask for `hexdigest` (SHA-256)."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = [f"{field.name}\0{field.type}\0" for field in schema]
        self._columns = [_Column(field.type, field.name) for field in schema]

    def add(self, table: pa.Table) -> None:
        for column, values in zip(self._columns, table.columns):
            for chunk in values.chunks:
                column.add(chunk)

    def hexdigest(self) -> str:
        whole = hashlib.sha256()
        for name, column in zip(self._names, self._columns):
            whole.update(name.encode())
            whole.update(column.digest())
        return whole.hexdigest()


class _Column:
    """One column, or one child of a nested one.

    Attributes:
        nulls: the rows that are null, as int64
        lengths: of variable-width values and of lists, as int64, nulls left out
        values: the bytes of leaf values, nulls left out"""

    def __init__(self, arrow_type: pa.DataType, name: str) -> None:
        self._type = _plain(arrow_type)
        self._rows = 0
        self._nulls = hashlib.sha256()
        self._lengths = hashlib.sha256()
        self._values = hashlib.sha256()
        self._children = [_Column(child, f"{name}.{position}") for position, child in enumerate(_children(self._type))]
        if types.is_union(self._type):
            raise Invalid(f"column {name!r} has type {arrow_type}, which no data file can hold")

    def add(self, values: pa.Array) -> None:
        values = _decoded(values)
        if values.null_count:
            null_rows = np.flatnonzero(pc.is_null(values).to_numpy(zero_copy_only=False)) + self._rows
            self._nulls.update(null_rows.astype("<i8").tobytes())
        self._rows += len(values)
        if types.is_struct(self._type):
            for child, of_child in zip(self._children, values.flatten()):
                child.add(of_child)
        elif not types.is_null(self._type):
            self._add_present(values.drop_null())

    def digest(self) -> bytes:
        whole = hashlib.sha256(self._rows.to_bytes(8, "little"))
        for part in (self._nulls, self._lengths, self._values):
            whole.update(part.digest())
        for child in self._children:
            whole.update(child.digest())
        return whole.digest()

    def _add_present(self, values: pa.Array) -> None:
        if self._children:
            if not types.is_fixed_size_list(self._type):
                lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
                self._lengths.update(lengths.astype("<i8").tobytes())
            self._children[0].add(values.flatten())
        elif _is_variable_width(self._type):
            binary = values.cast(pa.large_binary())
            if len(binary) == 0:
                return
            _, offsets_buffer, data = binary.buffers()
            offsets = np.frombuffer(offsets_buffer, "<i8")[binary.offset : binary.offset + len(binary) + 1]
            self._lengths.update(np.diff(offsets).tobytes())
            if data is not None:
                self._values.update(data[int(offsets[0]) : int(offsets[-1])])
        else:
            fixed = values.cast(pa.uint8()) if types.is_boolean(self._type) else values
            width_bytes = fixed.type.bit_width // 8
            if len(fixed) and width_bytes:
                self._values.update(fixed.buffers()[1][fixed.offset * width_bytes :][: len(fixed) * width_bytes])


def _plain(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the values as they are after `_decoded`."""
    arrow_type = value_type(arrow_type)
    if types.is_map(arrow_type):
        entry = pa.struct([("key", arrow_type.key_type), ("value", arrow_type.item_type)])
        return pa.list_(entry)
    if types.is_string_view(arrow_type) or types.is_binary_view(arrow_type):
        return pa.large_binary()
    return arrow_type


def _decoded(values: pa.Array) -> pa.Array:
    """The values themselves, behind extension types, dictionaries, runs and maps."""
    values = stored_values(values)
    # Maps become lists of pairs; views become types that `drop_null` supports.
    plain = _plain(values.type)
    return values if plain == values.type else values.cast(plain)


def _children(arrow_type: pa.DataType) -> list[pa.DataType]:
    if types.is_struct(arrow_type):
        return [arrow_type.field(position).type for position in range(arrow_type.num_fields)]
    if types.is_nested(arrow_type) and not types.is_union(arrow_type):
        return [arrow_type.value_type]
    return []


def _is_variable_width(arrow_type: pa.DataType) -> bool:
    is_text = types.is_string(arrow_type) or types.is_large_string(arrow_type)
    return bool(is_text or types.is_binary(arrow_type) or types.is_large_binary(arrow_type))
