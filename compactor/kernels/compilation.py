"""Reports each kernel that numba compiles. It happens once for a processor and a source, and takes seconds for each."""

from __future__ import annotations

from collections.abc import Callable

from numba.core import event


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
