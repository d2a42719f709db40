"""PySpark's worker daemon with Lithify's steps imported for its forked workers (`compactor/engine/settings.py`).

Nothing here may start a thread or open a connection: they do not survive a fork.
"""

import gc
import io
import os
import socket
import sys
import zipimport
from pathlib import Path
from typing import BinaryIO

if __name__ == "__main__":
    # Imported objects stay: the collector would scan them repeatedly and find no garbage.
    gc.disable()

from compactor.engine.pyspark_path import prefer_unpacked_pyspark

prefer_unpacked_pyspark()

from pyspark import daemon, worker  # noqa: E402

import compactor.sessions.round_runner  # noqa: E402, F401  (its import is the point)
from compactor.index.files import share_index_pages  # noqa: E402
from compactor.kernels.warm import warm_kernels  # noqa: E402
from compactor.model.freed_memory import keep_freed_memory  # noqa: E402

_BUFFER_BYTES = 65536
_run_worker = worker.main
_serve = daemon.worker


def _keep_what_is_loaded() -> None:
    """Avoids two things that PySpark does for every task.

    Before a task PySpark drops the import caches, so it would read its zip archives again; after a task it collects
    garbage, which scans all imported objects. Archives do not change while a job runs, and imported objects are not
    garbage.
    """
    for importer in sys.path_importer_cache.values():
        if isinstance(importer, zipimport.zipimporter):
            importer.invalidate_caches = _nothing  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()
    gc.enable()


def _share_index_pages() -> None:
    """In the scratch folders of the executor, which Spark names to its Python workers and deletes at its end."""
    folders = os.environ.get("SPARK_LOCAL_DIRS")  # noqa: TID251
    if folders:
        share_index_pages([Path(folder) for folder in folders.split(",")])


def _nothing() -> None:
    return


class _PromptReader(io.RawIOBase):
    """Reads from a TCP connection, and acknowledges received data at once.

    The JVM sends a task in several small pieces. Its side of the connection delays a small piece until the one before
    is acknowledged (Nagle's algorithm), and this side would delay the acknowledgement (delayed ACK): 40 ms of waiting
    per task. The kernel resets the option, so it is set again after each read.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._connection.recv_into(buffer)
        if count < len(buffer):
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return count


def _run_task(infile: BinaryIO, outfile: BinaryIO) -> None:
    """Runs one task as PySpark does, over a connection without these delays."""
    with socket.socket(fileno=os.dup(infile.fileno())) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6} and hasattr(socket, "TCP_QUICKACK"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            infile = io.BufferedReader(_PromptReader(connection), _BUFFER_BYTES)
        _run_worker(infile, outfile)  # type: ignore[no-untyped-call]


def _serve_until_closed(*given: object) -> int:
    """As PySpark's own, which prints a traceback where Spark has closed the connection: it has ended the task, as when
    another one has failed, and nobody waits for an answer. Returns the exit code of the worker."""
    try:
        code: int = _serve(*given)  # type: ignore[no-untyped-call]
    except (ConnectionError, EOFError):
        return 1
    return code


if __name__ == "__main__":
    keep_freed_memory()
    warm_kernels()
    _share_index_pages()
    _keep_what_is_loaded()
    daemon.worker = _serve_until_closed
    worker.main = _run_task
    daemon.worker_main = _run_task  # releases before Spark 4.1 look for it here
    daemon.manager()  # type: ignore[no-untyped-call]
