"""Supervises a Spark job's driver in a process of its own: records its end and cleans up, with or without a dispatcher.

    python -I -S supervisor.py '{"command": [...], "record": ..., "output": ..., "scratch": ..., ...}'

A dispatcher may end while its Spark job runs. The next one finds this process by its record:

    {"pid": 7, "started": "...", "group": 9, "group_started": "...", "exit_code": null, "stopped": null}

SIGTERM ends the driver and its children: first by SIGTERM, after `stop_seconds` by SIGKILL. It also ends them if no
dispatcher touches the record for `unattended_seconds`. It imports nothing of Lithify: it starts in milliseconds, and
runs on the standard library alone.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

TICK_SECONDS = 20.0
KILL_TICK_SECONDS = 1.0
STOP_REQUESTED = "it was asked to"
UNATTENDED = "no dispatcher has polled it for too long"


def process_started(pid: int) -> str | None:
    """The start time of a process as its system reports it; with the process id it identifies the process. None:

    there is none, or it is a zombie.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _start_by_ps(pid)
    return None if fields[0] in "ZX" else fields[19]


def _start_by_ps(pid: int) -> str | None:
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return None if not answer or answer[0].startswith("Z") else " ".join(answer[1:])


class Supervisor:
    """Handles all signals; the main thread waits for the driver."""

    def __init__(self, arguments: dict[str, object]) -> None:
        self._record = Path(str(arguments["record"]))
        self._scratch = Path(str(arguments["scratch"]))
        self._lock = Path(str(arguments["lock"]))
        self._output = Path(str(arguments["output"]))
        self._command = [str(each) for each in arguments["command"]]  # type: ignore[attr-defined]
        self._descriptor = int(str(arguments["descriptor"]))
        self._stop_seconds = float(str(arguments["stop_seconds"]))
        self._unattended_ticks = float(str(arguments["unattended_seconds"])) / TICK_SECONDS
        self._driver: subprocess.Popen[bytes] | None = None
        self._stopped: str | None = None
        self._recorded_ns = 0
        self._ticks_alone = 0

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._stop(STOP_REQUESTED))
        signal.signal(signal.SIGALRM, lambda *_: self._tick())
        self._write(None)
        try:
            with self._output.open("wb") as output:
                self._driver = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(self._descriptor,),
                )
        except OSError as error:
            self._output.write_text(f"{self._command[0]} cannot be started: {error.strerror}\n")
            return self._end(127)
        self._write(None)
        signal.setitimer(signal.ITIMER_REAL, TICK_SECONDS, TICK_SECONDS)
        if self._stopped is not None:
            self._ask()
        exit_code = self._driver.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._signal(signal.SIGKILL)  # its children may have outlived it
        return self._end(exit_code)

    def _end(self, exit_code: int) -> int:
        self._write(exit_code)
        shutil.rmtree(self._scratch, ignore_errors=True)
        if not self._scratch.exists():
            self._lock.unlink(missing_ok=True)
        if exit_code == 0:
            self._output.unlink(missing_ok=True)  # the session log has everything
        return exit_code if exit_code >= 0 else 128 - exit_code

    def _stop(self, why: str) -> None:
        if self._stopped is None:
            self._stopped = why
            if self._driver is not None:
                self._ask()

    def _ask(self) -> None:
        self._signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, max(self._stop_seconds, 0.01), KILL_TICK_SECONDS)

    def _tick(self) -> None:
        if self._stopped is not None:
            self._signal(signal.SIGKILL)
            return
        recorded_ns = self._record.stat().st_mtime_ns if self._record.exists() else 0
        self._ticks_alone = self._ticks_alone + 1 if recorded_ns == self._recorded_ns else 0
        self._recorded_ns = recorded_ns
        if self._ticks_alone > self._unattended_ticks:
            self._stop(UNATTENDED)

    def _signal(self, number: signal.Signals) -> None:
        if self._driver is not None:
            try:
                os.killpg(self._driver.pid, number)
            except (ProcessLookupError, PermissionError):
                return  # the group has ended

    def _write(self, exit_code: int | None) -> None:
        """Whole or not at all."""
        group = self._driver.pid if self._driver is not None else None
        fields = {
            "pid": os.getpid(),
            "started": process_started(os.getpid()),
            "group": group,
            "group_started": process_started(group) if group is not None else None,
            "exit_code": exit_code,
            "stopped": self._stopped,
        }
        written = self._record.with_name(f"{self._record.name}.{os.getpid()}")
        written.write_text(json.dumps(fields))
        written.replace(self._record)


if __name__ == "__main__":
    sys.exit(Supervisor(json.loads(sys.argv[1])).run())
