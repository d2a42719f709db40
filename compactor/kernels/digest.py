"""SHA-1 digests of primary keys (the paper, hash bucket step; FORMAT.md, "Key digests").

A key's message is its columns in sorted name order, each framed: a little-endian uint32 with the length of its
canonical bytes, then the bytes; 0xFFFFFFFF alone for null. So ('ab', 'c') and ('a', 'bc') differ, as do null and empty.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compactor.kernels.canonical import CanonicalColumn, FixedColumn
from compactor.kernels.compilation import kernel
from compactor.kernels.sha1 import Digests, sha1
from compactor.model.errors import Invalid

DIGEST_ENCODING = 1
"""The number of the encoding above. It is written with every index; a changed encoding gets a new number."""

_NULL_FRAME = np.uint32(0xFFFFFFFF)
_FRAME_BYTES = 4


def digest_keys(columns: Sequence[CanonicalColumn], rows: int) -> Digests:
    """The digest of every row's key. `columns` in sorted name order. Returns digests of shape (rows, 5).

    Precondition, which is checked: every column has `rows` rows. Raises `Invalid` for offsets that decrease or point
    beyond a column's data; only damaged files have them.
    """
    for column in columns:
        _check(column, rows)
    fixed = [each.values for each in columns if isinstance(each, FixedColumn) and each.valid is None]
    return sha1(*(_frame_fixed_width(fixed, rows) if len(fixed) == len(columns) else _frame(columns, rows)))


def _check(column: CanonicalColumn, rows: int) -> None:
    if column.valid is not None and len(column.valid) != rows:
        raise ValueError(f"a key column has validity for {len(column.valid)} rows, not {rows}")
    if isinstance(column, FixedColumn):
        if len(column.values) != rows:
            raise ValueError(f"a key column has {len(column.values)} rows, not {rows}")
        return
    offsets = column.offsets
    if len(offsets) != rows + 1:
        raise ValueError(f"a key column has {len(offsets)} offsets, not those of {rows} rows")
    if offsets[0] < 0 or offsets[-1] > len(column.data) or bool((offsets[1:] < offsets[:-1]).any()):
        raise Invalid("a key column's offsets lead outside of its data: the file is damaged")


def _frame_fixed_width(
    columns: Sequence[npt.NDArray[np.uint8]], rows: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """As `_frame`, but faster, for fixed-width columns without nulls: all messages have one layout."""
    kinds = [np.dtype((np.void, column.shape[1])) for column in columns]
    messages = np.empty(rows, [(f"{n}", [("length", "<u4"), ("value", kind)]) for n, kind in enumerate(kinds)])
    for n, (column, kind) in enumerate(zip(columns, kinds, strict=True)):
        messages[f"{n}"]["length"] = kind.itemsize
        messages[f"{n}"]["value"] = np.ascontiguousarray(column).view(kind)[:, 0]
    return messages.view(np.uint8), np.arange(rows + 1, dtype=np.int64) * messages.itemsize


def _frame(columns: Sequence[CanonicalColumn], rows: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    lengths = np.zeros(rows, np.int64)
    for column in columns:
        lengths += _FRAME_BYTES
        widths = column.values.shape[1] if isinstance(column, FixedColumn) else np.diff(column.offsets)
        lengths += widths if column.valid is None else np.where(column.valid, widths, 0)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    messages = np.empty(int(offsets[-1]), np.uint8)
    cursor = offsets[:-1].copy()
    for column in columns:
        valid = np.ones(0, np.bool_) if column.valid is None else column.valid
        if isinstance(column, FixedColumn):
            _write_fixed(column.values, valid, messages, cursor)
        else:
            _write_variable(column.offsets, column.data, valid, messages, cursor)
    return messages, offsets


@kernel
def _write_frame(messages, at, length):  # type: ignore[no-untyped-def]
    for byte in range(4):
        messages[at + byte] = (length >> np.uint32(8 * byte)) & np.uint32(0xFF)


@kernel
def _write_fixed(values, valid, messages, cursor):  # type: ignore[no-untyped-def]
    width = values.shape[1]
    for row in range(values.shape[0]):
        at = cursor[row]
        if valid.size and not valid[row]:
            _write_frame(messages, at, _NULL_FRAME)
            cursor[row] = at + 4
            continue
        _write_frame(messages, at, np.uint32(width))
        for byte in range(width):
            messages[at + 4 + byte] = values[row, byte]
        cursor[row] = at + 4 + width


@kernel
def _write_variable(offsets, data, valid, messages, cursor):  # type: ignore[no-untyped-def]
    for row in range(offsets.size - 1):
        at = cursor[row]
        if valid.size and not valid[row]:
            _write_frame(messages, at, _NULL_FRAME)
            cursor[row] = at + 4
            continue
        length = offsets[row + 1] - offsets[row]
        _write_frame(messages, at, np.uint32(length))
        for byte in range(length):
            messages[at + 4 + byte] = data[offsets[row] + byte]
        cursor[row] = at + 4 + length
