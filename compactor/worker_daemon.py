"""PySpark's worker daemon with our steps loaded: every worker it forks starts ready. Named in spark_settings.py.

Nothing here may start a thread or open a connection: what does not survive a fork must not exist before it.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import socket
import sys
import zipimport
from typing import BinaryIO

from compactor.unpacked_pyspark import prefer_unpacked_pyspark

prefer_unpacked_pyspark()

from pyspark import daemon, worker  # noqa: E402

import compactor.round_runner  # noqa: E402, F401  (its import is the point)
from compactor.kernels.warm import warm_kernels  # noqa: E402

_BUFFER_BYTES = 65536
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER_TRIMMED_BYTES = 2**30
_run_worker = worker.main


def _keep_what_is_loaded() -> None:
    """Spares every task what PySpark does around it: without this, 0.1 to 0.2 s a task for nothing.

    Before a task PySpark drops the import caches, and so would read the contents of its own zip archives anew; after
    it, it looks for garbage, among all that was imported. Archives do not change while a job runs, and what was
    imported is no garbage.
    """
    for importer in sys.path_importer_cache.values():
        if isinstance(importer, zipimport.zipimporter):
            importer.invalidate_caches = _nothing  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> None:
    """Has glibc keep for the next task what one task needed, up to its peak, for which memory was planned.

    A large array is otherwise given back to the kernel when it is freed, and cleared by it page by page when the next
    one is asked for: a seventh of the time of a session on a table that is compacted whole.
    """
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    if adjust is not None:
        adjust(_M_MMAP_MAX, 0)
        adjust(_M_TRIM_THRESHOLD, _NEVER_TRIMMED_BYTES)


def _nothing() -> None:
    return


class _PromptReader(io.RawIOBase):
    """Reads from a TCP connection, and acknowledges at once whatever has come.

    The JVM sends a task in several small pieces. Its side of the connection holds a small piece back until the one
    before is acknowledged (Nagle), and this side acknowledges late, in the hope of an answer to send along: 40 ms a
    task in which nobody does anything. The kernel forgets the setting, so it is renewed whenever all has been read.
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
    """One task, as PySpark runs it, over a connection that waits for nothing."""
    with socket.socket(fileno=os.dup(infile.fileno())) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6} and hasattr(socket, "TCP_QUICKACK"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            infile = io.BufferedReader(_PromptReader(connection), _BUFFER_BYTES)
        _run_worker(infile, outfile)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    keep_freed_memory()
    warm_kernels()
    _keep_what_is_loaded()
    worker.main = _run_task
    daemon.worker_main = _run_task  # where releases before Spark 4.1 look for it
    daemon.manager()  # type: ignore[no-untyped-call]
