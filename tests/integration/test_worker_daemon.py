"""A task's connection carries every byte, whatever kind of socket Spark has opened."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import BinaryIO

import pytest

from compactor import worker_daemon

Pair = Callable[[], tuple[socket.socket, socket.socket]]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


@pytest.mark.parametrize("pair", [tcp_pair, socket.socketpair], ids=["TCP", "Unix"])
@pytest.mark.parametrize("length", [0, 1, 65_536, 300_000])
def test_a_task_reads_what_the_other_side_sent_and_answers(
    pair: Pair, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = bytes(number % 251 for number in range(length))
    read: list[bytes] = []

    def task(infile: BinaryIO, outfile: BinaryIO) -> None:
        size = int.from_bytes(infile.read(8), "big")
        read.append(infile.read(size))
        outfile.write(b"done")

    monkeypatch.setattr(worker_daemon, "_run_worker", task)
    here, there = pair()
    with here, there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        there.sendall(len(sent).to_bytes(8, "big") + sent[: length // 2])
        there.sendall(sent[length // 2 :])
        with os.fdopen(os.dup(here.fileno()), "rb") as infile, os.fdopen(os.dup(here.fileno()), "wb") as outfile:
            worker_daemon._run_task(infile, outfile)
        assert read == [sent]
        assert there.recv(4) == b"done"


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, EOFError])
def test_a_worker_whose_task_was_ended_by_spark_ends_without_a_traceback(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(*given: object) -> int:
        raise error

    monkeypatch.setattr(worker_daemon, "_serve", serve)
    assert worker_daemon._serve_until_closed(None, False) == 1


PROGRAM = """
import resource, sys
import numpy as np
from compactor.model.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        np.ones(50_000_000, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_freed_memory_is_used_again_without_asking_the_kernel() -> None:
    def faults(how: str) -> int:
        ended = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        return int(ended.stdout)

    assert faults("kept") * 10 < faults("returned")
