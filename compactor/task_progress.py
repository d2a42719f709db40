"""Progress within a running task: the task reports its rows to the driver by datagrams.

    with listening(...) as listener:            in the driver
        listener.address                        is sent to the tasks with the plan
        listener.rows()                         rows done so far, also by tasks that still run

    counter = RowCounter(address)               in a task
    counter.add(rows)                           reports at most once in `REPORT_SECONDS`

Spark cannot report this: a Python task's accumulators leave its worker after its last row, and executors' heartbeats
carry only the JVM's metrics until then, which Python code cannot change.

It is a hint, and never a reason to fail: datagrams may be lost, or blocked by a network. Then progress is visible when
a task ends, and tasks are sized to last minutes (`task_memory.BYTES_PER_TASK`).
"""

import hmac
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from compactor.model.clock import Clock, SystemClock

REPORT_SECONDS = 10.0
"""Interval of a task's reports. A thousand concurrent tasks send a hundred datagrams of 56 bytes per second."""

_REPORT = struct.Struct(">32s16sQ")


@dataclass(frozen=True)
class ProgressAddress:
    """Where tasks send their reports. `token`: known only to this session's tasks."""

    host: str
    port: int
    token: str
    every_seconds: float = REPORT_SECONDS


class ProgressListener:
    """The driver's side."""

    def __init__(self, address: ProgressAddress, opened: socket.socket) -> None:
        self.address = address
        self._socket = opened
        self._rows: dict[bytes, int] = {}

    def rows(self) -> int:
        """Rows that tasks have reported so far. It only grows: a discarded attempt of a task counts too."""
        with suppress(BlockingIOError):
            while True:
                self._take(self._socket.recv(_REPORT.size + 1))
        return sum(self._rows.values())

    def _take(self, report: bytes) -> None:
        if len(report) != _REPORT.size:
            return
        token, task, rows = _REPORT.unpack(report)
        if hmac.compare_digest(token, self.address.token.encode()):
            self._rows[task] = max(rows, self._rows.get(task, 0))


@contextmanager
def listening(
    host: str, bind_host: str, clock: Clock, every_seconds: float = REPORT_SECONDS
) -> Iterator[ProgressListener | None]:
    """Listens until the block ends; None if no port can be opened.

    Args:
        host: the driver's address for tasks
        bind_host: the address that the driver listens on"""
    with ExitStack() as closing:
        try:
            family, kind, _, _, address = socket.getaddrinfo(bind_host, 0, type=socket.SOCK_DGRAM)[0]
            opened = closing.enter_context(socket.socket(family, kind))
            opened.setblocking(False)
            opened.bind(address)
        except OSError as error:
            # Only the driver gets here: a worker need not import it.
            from compactor.log_context import LOG

            LOG.warning("task_progress_unavailable", reason=str(error))
            yield None
            return
        port = int(opened.getsockname()[1])
        yield ProgressListener(ProgressAddress(host, port, clock.new_id(), every_seconds), opened)


class RowCounter:
    """A task's side, one per task. Without an address it does nothing."""

    def __init__(self, address: ProgressAddress | None, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._task = b"" if address is None else bytes.fromhex(self._clock.new_id())
        self._rows = 0
        self._reported_at_seconds = self._clock.monotonic_seconds()

    def add(self, rows: int) -> None:
        """Counts further rows."""
        self._rows += rows
        if self._address is None:
            return
        now_seconds = self._clock.monotonic_seconds()
        if now_seconds - self._reported_at_seconds < self._address.every_seconds:
            return
        self._reported_at_seconds = now_seconds
        try:
            self._send(self._address)
        except OSError:
            # Do not try again in a network that blocks datagrams.
            self._address = None

    def _send(self, address: ProgressAddress) -> None:
        family, kind, _, _, socket_address = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as opened:
            opened.setblocking(False)
            opened.sendto(_REPORT.pack(address.token.encode(), self._task, self._rows), socket_address)
