"""`lithify warm`: compiles the kernels beforehand."""

from __future__ import annotations

import typer

from compactor.model.names import counted
from dispatcher.cli.output import console, write_lines
from dispatcher.clients import dependencies_of


def warm(context: typer.Context) -> None:
    """Compile the kernels for this processor, which the first compaction does otherwise. It takes about half a minute,
    once for each release and user; run it when an image or a machine is made.
    """
    from compactor.kernels.compilation import on_compilation
    from compactor.kernels.warm import warm_kernels

    clock = dependencies_of(context).clock
    began_at_seconds, compiled = clock.monotonic_seconds(), [0]
    with console().status("loading kernels") as status:

        def show(before: int) -> None:
            compiled[0] = before + 1
            status.update(f"compiling kernels: {counted(before, 'kernel')} compiled")

        on_compilation(show)
        warm_kernels()
    seconds = clock.monotonic_seconds() - began_at_seconds
    done = f"Compiled {counted(compiled[0], 'kernel')}" if compiled[0] else "Loaded the kernels, which were compiled,"
    write_lines([f"{done} in {seconds:.0f} s."])
