"""`lithify archive`: the Python environment that workers of a cluster run in, as one file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from compactor.model.names import counted
from dispatcher.cli.options import Output, OutputOption
from dispatcher.cli.output import answer
from launcher.archive import THIS_CPU, ArchiveManifest, pack_archive

MIB = 1024 * 1024


def archive(
    target: Annotated[Path, typer.Argument(help="The file to write; for example lithify.tar.gz.")],
    cpu: Annotated[
        str,
        typer.Option(
            help="For which processors kernels are compiled, by LLVM's name: x86-64-v3, neoverse-n1, ... "
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
