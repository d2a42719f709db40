"""What kernels have of numba: their decorator, reports of compilation, and a copy of bytes by the C library.

A kernel is compiled once for a processor and a source, which takes seconds.
"""

from collections.abc import Callable

import numba as nb
from numba.core import cgutils, event, types
from numba.extending import intrinsic

from compactor.model.interrupts import DeferredInterrupts

_KERNELS_A_SENTENCE = 10

kernel = nb.njit(cache=True, nogil=True)
"""Decorates a function that is compiled at its first call, or loaded from numba's cache."""


class _WholeKernels(event.Listener):
    """Defers Ctrl-C until numba has compiled or loaded what it is at. LLVM calls Python meanwhile, which drops an error
    of such a call: the kernel would be used without a part, and the process end by a segmentation fault."""

    def __init__(self) -> None:
        self._interrupts = DeferredInterrupts()

    def on_start(self, event: object) -> None:
        self._interrupts.begin()

    def on_end(self, event: object) -> None:
        self._interrupts.end()


event.register("numba:compiler_lock", _WholeKernels())  # type: ignore[no-untyped-call]


class _Compilations(event.Listener):
    """Counts kernels; what numba compiles inside of one, because the kernel calls it, counts as a part of it."""

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self._kernels = 0
        self._depth = 0

    def on_start(self, event: object) -> None:
        if not self._depth:
            self._report(self._kernels)
        self._depth += 1

    def on_end(self, event: object) -> None:
        self._depth -= 1
        self._kernels += not self._depth


def on_compilation(report: Callable[[int], None]) -> None:
    """From now on, `report` is called before a kernel is compiled, with the number of those compiled before.

    Kernels that numba's cache holds are loaded, not compiled, and not reported.
    """
    event.register("numba:compile", _Compilations(report))  # type: ignore[no-untyped-call]


def announce_compilation(announce: Callable[[str], None]) -> None:
    """From now on, `announce` is called before every tenth kernel that is compiled, with a sentence."""

    def report(compiled: int) -> None:
        if compiled % _KERNELS_A_SENTENCE == 0:
            what = "compiling kernels for this processor, once, for about half a minute"
            announce(f"{what}{f' ({compiled} are done)' if compiled else ''}; `lithify warm` does it beforehand")

    on_compilation(report)


@intrinsic
def copy_bytes(_, target, _target_start, source, _source_start, _count):  # type: ignore[no-untyped-def]
    """Copies source[source_start:source_start + count] to target[target_start:], faster than a loop.

    Precondition: both are C-contiguous uint8 arrays of one dimension that do not overlap, 0 <= count,
    0 <= source_start <= len(source) - count, 0 <= target_start <= len(target) - count. Nothing checks it, not even
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
