"""Spark drivers as processes of this machine, which outlive the dispatcher that started them.

    <work folder>/jobs/<name>.json     the record of its supervisor (`supervisor.py`)
    <work folder>/logs/<name>.log      its output, kept unless it succeeded
    <work folder>/scratch/<name>/      its scratch files
    <work folder>/scratch/<name>.lock  locked by its processes, while one of them runs

A driver and all that it starts are a process group of their own. Its supervisor, in another group, records its end,
removes its scratch files and ends it on request; so dispatchers may be replaced while it runs. A lock ends with the
last process that has it: a scratch folder that is not locked has no owner, and the next one's creator removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from compactor.engine.java_home import utf8_locale
from compactor.engine.settings import QUICK_JVM
from compactor.model.clock import Clock
from compactor.model.document import Document
from compactor.model.errors import EXIT_FENCED, EXIT_INVALID, ErrorKind, Invalid, Unavailable
from launcher.clusters import supervisor
from launcher.clusters.supervisor import process_started
from launcher.spark_job import ClusterReference, JobFailed, JobRunning, JobStatus, JobSucceeded, JobVanished

_LOCK = ".lock"


class ScratchFolder:
    """Held from `claim` to `remove` or `leave`. Processes that share it inherit `descriptor`."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self.descriptor = descriptor

    @classmethod
    def claim(cls, root: Path, name: str) -> ScratchFolder:
        """A new, empty folder. Raises `OSError` if it cannot be created."""
        root.mkdir(parents=True, exist_ok=True)
        lock = _lock_of(root, name)
        while True:
            descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _has_name(lock, descriptor):
                break
            os.close(descriptor)  # a sweep removed it before it was locked
        claimed = cls(root / name, descriptor)
        try:
            claimed.folder.mkdir()
        except OSError:
            claimed.remove()
            raise
        return claimed

    @property
    def lock(self) -> Path:
        return _lock_of(self.folder.parent, self.folder.name)

    def leave(self) -> None:
        """Leaves it to the processes that inherited the descriptor."""
        os.close(self.descriptor)
        self.descriptor = -1

    def remove(self) -> None:
        """Idempotent. Files that cannot be removed now are swept later."""
        if self.descriptor < 0:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        if not self.folder.exists():
            _lock_of(self.folder.parent, self.folder.name).unlink(missing_ok=True)
        os.close(self.descriptor)
        self.descriptor = -1


def sweep(root: Path) -> None:
    """Removes the folders that are not locked."""
    for lock in sorted(root.glob(f"*{_LOCK}")):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:
            continue  # another process sweeps too
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_name(lock, descriptor):
                ScratchFolder(lock.with_name(lock.name.removesuffix(_LOCK)), os.dup(descriptor)).remove()
        except OSError:
            pass  # it is held
        finally:
            os.close(descriptor)


def is_held(root: Path, name: str) -> bool:
    """Whether there is such a folder, or a process creates or removes it now."""
    return _lock_of(root, name).exists()


def is_locked(root: Path, name: str) -> bool:
    """Whether a running process holds it."""
    try:
        descriptor = os.open(_lock_of(root, name), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock_of(root: Path, name: str) -> Path:
    return root / f"{name}{_LOCK}"


def _has_name(lock: Path, descriptor: int) -> bool:
    """Whether the open file is the one that has the name now."""
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


OUTPUT_TAIL_BYTES = 4_096
FIND_SECONDS = 5.0
"""A supervisor must write its record within this time."""

POLL_SECONDS = 0.05

OUTPUT_LINES_IN_REASON = 12
OUT_OF_MEMORY_WORDS = ("java.lang.OutOfMemoryError", "MemoryError")
KILLED = "was killed (SIGKILL), as the system does where memory runs out"


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """
    Attributes:
        work_folder: for records, output and scratch files
        stop_seconds: from asking a job to end to killing it
        unattended_seconds: after which a job that no dispatcher observes is ended
        logs_kept: of jobs that did not succeed"""

    work_folder: Path
    stop_seconds: float = 10.0
    unattended_seconds: float = 6 * 3600.0
    logs_kept: int = 50


class Machine(Document):
    """Identifies visible processes: `host` is the machine's name, `run` changes when it or its container restarts."""

    host: str
    run: str

    @classmethod
    def here(cls) -> Machine:
        run = ""
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            run = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
        return cls(host=socket.gethostname(), run=run)


class _Record(Document):
    """The record of a supervisor: see there."""

    pid: int
    started: str | None
    group: int | None
    group_started: str | None
    exit_code: int | None
    stopped: str | None


class Drivers:
    """Starts and finds drivers below one work folder."""

    def __init__(self, kind: str, settings: DriverSettings, clock: Clock) -> None:
        """`kind`: of the cluster, in references."""
        self._kind = kind
        self._settings = settings
        self._clock = clock
        self._machine = Machine.here()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        sweep(self._scratch)

    @property
    def place(self) -> str:
        return f"{self._kind} {self._machine.host} {self._machine.run} {self._settings.work_folder}"

    @property
    def _scratch(self) -> Path:
        return self._settings.work_folder / "scratch"

    @property
    def _jobs(self) -> Path:
        return self._settings.work_folder / "jobs"

    @property
    def _logs(self) -> Path:
        return self._settings.work_folder / "logs"

    def launch(
        self, name: str, command: Callable[[Path], Sequence[str]], environment: Callable[[Path], Mapping[str, str]]
    ) -> ClusterReference:
        """Starts the driver of `command` in `environment`; both functions get the scratch folder.

        Raises `Invalid` if its program cannot be executed, `Unavailable` if the system cannot start another process.
        """
        found = self.find(name)
        if found is not None:
            return found
        scratch: ScratchFolder | None = None
        try:
            sweep(self._scratch)
            self._remove_old()
            self._jobs.mkdir(parents=True, exist_ok=True)
            self._logs.mkdir(parents=True, exist_ok=True)
            scratch = ScratchFolder.claim(self._scratch, name)
            argv = command(scratch.folder)
            if not os.access(argv[0], os.X_OK) or not Path(argv[0]).is_file():
                raise Invalid(f"{argv[0]} cannot be started: {_start_error(argv[0])}; is SPARK_HOME right?")
            process = self._start(name, scratch, argv, environment(scratch.folder))
        except (OSError, Invalid) as error:
            if scratch is not None:
                scratch.remove()
            if isinstance(error, Invalid):
                raise
            raise Unavailable(f"{name} cannot be started now: {error.strerror}") from error
        scratch.leave()
        self._children[process.pid] = process
        return self._reference(name, process.pid, process_started(process.pid))

    def attach(self, reference: ClusterReference) -> Driver | None:
        ids = reference.ids
        if reference.kind != self._kind or ids.get("host") != self._machine.host:
            return None
        is_here = ids.get("run") == self._machine.run
        return Driver(reference, self._children.get(int(ids["pid"])), is_here=is_here)

    def find(self, name: str) -> ClusterReference | None:
        until = self._clock.monotonic_seconds() + FIND_SECONDS
        while (record := read_record(self._jobs / f"{name}.json")) is None:
            if not is_locked(self._scratch, name) or self._clock.monotonic_seconds() > until:
                return None
            self._clock.sleep(POLL_SECONDS)
        return self._reference(name, record.pid, record.started)

    def _reference(self, name: str, pid: int, started: str | None) -> ClusterReference:
        ids = {
            "name": name,
            "host": self._machine.host,
            "run": self._machine.run,
            "folder": str(self._settings.work_folder),
            "pid": str(pid),
            "started": started or "",
        }
        return ClusterReference(kind=self._kind, ids=ids)

    def _start(
        self, name: str, scratch: ScratchFolder, argv: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        arguments = {
            "command": list(argv),
            "record": str(self._jobs / f"{name}.json"),
            "output": str(self._logs / f"{name}.log"),
            "scratch": str(scratch.folder),
            "lock": str(scratch.lock),
            "descriptor": scratch.descriptor,
            "stop_seconds": self._settings.stop_seconds,
            "unattended_seconds": self._settings.unattended_seconds,
        }
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,
            pass_fds=(scratch.descriptor,),
        )

    def _remove_old(self) -> None:
        """Keeps the newest logs and records of ended jobs, and those of running jobs."""
        for folder in (self._logs, self._jobs):
            ended = [file for file in folder.glob("*") if not is_held(self._scratch, file.stem)]
            for file in sorted(ended, key=modified_ns)[: -self._settings.logs_kept]:
                file.unlink(missing_ok=True)
        for process in list(self._children.values()):
            if process.poll() is not None:
                self._children.pop(process.pid, None)  # another launch may remove it, too


class Driver:
    """A `RunningSparkJob`: the process of a reference, started by this process or by another."""

    def __init__(self, reference: ClusterReference, child: subprocess.Popen[bytes] | None, *, is_here: bool) -> None:
        """`is_here` False: the machine was restarted since, so it no longer runs."""
        ids = reference.ids
        self.reference = reference
        self._child = child
        self._is_here = is_here
        self._pid, self._started = int(ids["pid"]), ids["started"]
        self._folder, self._name = Path(ids["folder"]), ids["name"]

    @property
    def description(self) -> str:
        return f"{self.reference.kind} process {self._pid}, output in {self.output}"

    @property
    def output(self) -> Path:
        return self._folder / "logs" / f"{self._name}.log"

    @property
    def _record_file(self) -> Path:
        return self._folder / "jobs" / f"{self._name}.json"

    def status(self) -> JobStatus:
        if not self._is_here:
            return JobVanished("vanished when its machine was started anew")
        if self._supervisor_lives():
            with suppress(OSError):
                os.utime(self._record_file)
            return JobRunning()
        if is_locked(self._folder / "scratch", self._name):
            return JobRunning()  # only its supervisor was killed
        record = read_record(self._record_file)
        if record is None or record.exit_code is None:
            return JobVanished("vanished: its processes are gone, and their exit was not observed")
        if record.stopped is not None and record.exit_code != 0:
            return JobFailed(ErrorKind.UNAVAILABLE, f"was ended from outside (SIGTERM): {record.stopped}")
        return status_of_exit(record.exit_code, output_tail(self.output))

    def stop(self) -> None:
        if not self._is_here:
            return
        if self._supervisor_lives():
            _signal(self._pid, signal.SIGTERM)
            return
        record = read_record(self._record_file)
        if record is None or record.group is None or not is_locked(self._folder / "scratch", self._name):
            return
        if process_started(record.group) in (record.group_started, None):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(record.group, signal.SIGKILL)

    def output_tail(self) -> str:
        return output_tail(self.output)

    def _supervisor_lives(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            return False
        return process_started(self._pid) == self._started


def status_of_exit(exit_code: int, output: str) -> JobStatus:
    """The status of a Spark job whose driver has exited. Pure.

    `exit_code` below 0: the signal that ended Spark's own process. `output`: the end of what the driver wrote.
    """
    output_end = last_lines(output)
    match exit_code:
        case 0:
            return JobSucceeded()
        case _ if exit_code == EXIT_FENCED:
            return JobFailed(ErrorKind.FENCED, f"was overtaken by another compactor; {output_end}")
        case _ if exit_code == -signal.SIGKILL:
            # Later output of the driver is only about the dead Java process.
            return JobFailed(ErrorKind.OUT_OF_MEMORY, f"lost Spark's Java process: it {KILLED}")
        case _ if exit_code == 128 + signal.SIGKILL:
            return JobFailed(ErrorKind.OUT_OF_MEMORY, f"{KILLED}; {output_end}")
    kind = ErrorKind.CRASHED
    if exit_code == EXIT_INVALID:
        kind = ErrorKind.INVALID
    elif any(words in output for words in OUT_OF_MEMORY_WORDS):
        kind = ErrorKind.OUT_OF_MEMORY
    return JobFailed(kind, f"exited with code {exit_code} without a word; {output_end}")


def output_tail(file: Path) -> str:
    """The end of a process's output."""
    try:
        with file.open("rb") as output:
            output.seek(max(0, file.stat().st_size - OUTPUT_TAIL_BYTES))
            return output.read().decode(errors="replace")
    except OSError as error:
        return f"({file} cannot be read: {error.strerror})"


def last_lines(output: str) -> str:
    """The end of a reason."""
    lines = [line.strip() for line in output.splitlines() if line.strip()][-OUTPUT_LINES_IN_REASON:]
    return "its last output: " + " | ".join(lines) if lines else "it wrote nothing"


def read_record(file: Path) -> _Record | None:
    """None if there is no valid record."""
    try:
        return _Record.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def find_program() -> Path:
    """The Spark job's program: `compactor/main.py` of the package that this process runs from."""
    spec = find_spec("compactor")
    if spec is None or spec.origin is None:
        raise Invalid("the package compactor cannot be found: is Lithify installed?")
    return Path(spec.origin).with_name("main.py")


def process_environment(
    inherited: Mapping[str, str], spark_home: Path, java_home: Path, scratch: Path, *, worker_python: str
) -> dict[str, str]:
    """The driver's environment. `worker_python`: the interpreter of the executors' Python workers."""
    packages = str(find_program().parent.parent)
    return {
        **inherited,
        **utf8_locale(inherited),
        "SPARK_HOME": str(spark_home),
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": worker_python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # For the JVM that only builds the job's command.
        "SPARK_LAUNCHER_OPTS": " ".join(QUICK_JVM),
        "TMPDIR": str(scratch),
        "PYTHONPATH": os.pathsep.join(filter(None, (packages, inherited.get("PYTHONPATH")))),
    }


def find_spark_home(environment: Mapping[str, str]) -> Path:
    """SPARK_HOME if it is set, else the Spark inside the installed pyspark, found without importing it."""
    named = environment.get("SPARK_HOME")
    if named:
        home, hint = Path(named), f"SPARK_HOME is {named}"
    else:
        spec = find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise Invalid("there is no Spark: pip install 'lithify[spark]', or set SPARK_HOME to a Spark installation")
        home, hint = Path(spec.origin).parent, "pyspark is installed without Spark's own programs"
    if not (home / "bin" / "spark-submit").is_file():
        raise Invalid(f"there is no {home / 'bin' / 'spark-submit'}: {hint}")
    return home


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _start_error(program: str) -> str:
    return "Permission denied" if Path(program).exists() else "No such file or directory"


def modified_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
