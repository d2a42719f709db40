"""The values behind an encoded Arrow type or array: dictionary, run ends, extension."""

import pyarrow as pa

FLAT_TYPE_IDS = frozenset(
    kind.id
    for kind in (
        *(pa.null(), pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.decimal128(1), pa.decimal256(1)),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("s"), pa.duration("s")),
    )
)
"""Types that are neither encoded nor nested nor views: most columns, and small files have little else to decide."""

_LARGE_OF_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def decoded_type(arrow_type: pa.DataType) -> pa.DataType:
    """The value type of a dictionary or run-end encoded type; any other type unchanged."""
    while pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        arrow_type = arrow_type.value_type
    return arrow_type


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the stored values, also of an extension type, such as a UUID's 16 bytes."""
    if arrow_type.id in FLAT_TYPE_IDS:
        return arrow_type
    while (inner := _storage_type(decoded_type(arrow_type))) is not arrow_type:
        arrow_type = inner
    return arrow_type


def _storage_type(arrow_type: pa.DataType) -> pa.DataType:
    return arrow_type.storage_type if isinstance(arrow_type, pa.BaseExtensionType) else arrow_type


def holds_text(arrow_type: pa.DataType) -> bool:
    """Whether values of the type are text, or have some at any depth."""
    kind = value_type(arrow_type)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text or any(holds_text(kind.field(position).type) for position in range(kind.num_fields))


def stored_values(array: pa.Array, keep_dictionary: bool = False) -> pa.Array:
    """The stored values of dictionaries, run ends and extension types, also nested ones.

    Their type is `value_type` of the array's, except that views in dictionaries or runs become plain text and bytes.

    Args:
        keep_dictionary: do not decode dictionaries"""
    while True:
        arrow_type = array.type
        if isinstance(arrow_type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_run_end_encoded(arrow_type):
            import pyarrow.compute as pc

            runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, _without_views(stored_values(array.values)))
            array = pc.run_end_decode(runs.slice(array.offset, len(array)))
        elif pa.types.is_dictionary(arrow_type) and not keep_dictionary:
            values = _without_views(stored_values(array.dictionary))
            # The slot under a null struct has an index even when the dictionary is empty.
            array = values.take(array.indices) if len(values) else pa.nulls(len(array), values.type)
        else:
            return array


def _without_views(values: pa.Array) -> pa.Array:
    """PyArrow does not decode runs of views, and does not take them out of dictionaries."""
    arrow_type = _LARGE_OF_VIEWS.get(values.type)
    return values if arrow_type is None else values.cast(arrow_type)


def wide_dictionary(arrow_type: pa.DataType) -> pa.DataType:
    """A dictionary type with indices of at least 32 bits; any other type unchanged.

    The rows of several files, each with a dictionary, may need more values than 8 bits can count: PyArrow writes such a
    Parquet file, and then cannot read it.
    """
    if not pa.types.is_dictionary(arrow_type) or arrow_type.index_type.bit_width >= 32:
        return arrow_type
    return pa.dictionary(pa.int32(), arrow_type.value_type, ordered=arrow_type.ordered)
