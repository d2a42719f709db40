"""Copies bytes between arrays by the C library, which is faster than a loop."""

from __future__ import annotations

from numba.core import cgutils, types
from numba.extending import intrinsic


@intrinsic
def copy_bytes(_, target, _target_start, source, _source_start, _count):  # type: ignore[no-untyped-def]
    """Copies source[source_start:source_start + count] to target[target_start:].

    Precondition: both are C-contiguous uint8 arrays of one dimension that do not overlap, 0 <= count,
    0 <= source_start <= len(source) - count, 0 <= target_start <= len(target) - count. It is not checked, not even by
    numba's bounds checks.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        to = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        come = context.make_array(signature.args[2])(context, builder, arguments[2]).data
        to, come = builder.gep(to, [arguments[1]]), builder.gep(come, [arguments[3]])
        cgutils.raw_memcpy(builder, to, come, arguments[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    number = types.int64
    return types.void(target, number, source, number, number), generate
