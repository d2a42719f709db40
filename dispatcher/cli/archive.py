"""`lithify archive`, `lithify warm`: the Python environment of a cluster's workers as one file; compiled kernels."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from compactor.model.names import counted
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer, console, write_lines
from dispatcher.clients import CommandDependencies
from launcher.archive import THIS_CPU, ArchiveManifest, pack_archive

MIB = 1024 * 1024


def archive(
    target: Annotated[Path, typer.Argument(help="The file to write; for example lithify.tar.gz.")],
    cpu: Annotated[
        str,
        typer.Option(
            help="Processors that kernels are compiled for, by LLVM's name: x86-64-v3, neoverse-n1, ... "
            "native: this machine's."
        ),
    ] = THIS_CPU,
    with_python: Annotated[
        bool, typer.Option("--with-python", help="Include this machine's Python, for workers that have none.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Pack Lithify and what it needs for the workers of a Spark cluster; PySpark is the cluster's own."""
    with TemporaryDirectory(prefix="lithify-archive-") as scratch:
        packed = pack_archive(target, Path(scratch), cpu, with_python=with_python)
    manifest, size = packed.manifest, f"{packed.archive_bytes / MIB:,.0f} MiB"
    whole = f"{manifest.files:,} files of {manifest.bytes / MIB:,.0f} MiB"
    answer(
        output,
        {"archive": str(packed.path), "archive_bytes": packed.archive_bytes, **manifest.model_dump(mode="json")},
        [
            f"{packed.path}: {size}, with {counted(len(manifest.packages), 'package')} in {whole}.",
            f"Workers need {_needed(manifest)} on {manifest.platform}; kernels are compiled for {manifest.cpu}.",
        ],
    )


def _needed(manifest: ArchiveManifest) -> str:
    return "no Python" if manifest.with_python else f"Python {manifest.python}"


def warm(dependencies: CommandDependencies) -> None:
    """Compile the kernels for this processor, which the first compaction does otherwise. It takes about half a minute,
    once for each release and user; run it when an image or a machine is made."""
    from compactor.kernels.compilation import on_compilation
    from compactor.kernels.warm import warm_kernels

    clock = dependencies.clock
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
