"""Runs the steps of the fake EMR: the step's own command, on this machine, with the programs of a node.

A node has `aws` and `spark-submit` on its path; here they are `tests/fakes/emr_node.py`. The Spark home may be a real
one, or the stand-in of `tests/fakes/spark_submit.py`.
"""

from __future__ import annotations

import io
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Protocol

import boto3

from launcher.archive import MANIFEST, PROJECT, ArchiveManifest, python_release

OUTPUT_TAIL_BYTES = 4_096
REPOSITORY = Path(__file__).parents[2]
_KEEPS = ("--name", "--conf", "--class")
"""Options of spark-submit that mean the same wherever it runs."""


class RunningStep(Protocol):
    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    def stop(self) -> None: ...

    def output_tail(self) -> str: ...


class StepRunner(Protocol):
    def start(self, name: str, arguments: Sequence[str]) -> RunningStep:
        """`arguments` begin with `spark-submit`; `name` is unique."""


@dataclass
class ScriptedStep:
    """A step that ends when a test says so."""

    exit_code: int | None = None
    output: str = ""
    stopped: bool = False

    def poll(self) -> int | None:
        return self.exit_code

    def stop(self) -> None:
        self.stopped = True
        if self.exit_code is None:
            self.exit_code = 143

    def output_tail(self) -> str:
        return self.output


@dataclass
class ScriptedSteps:
    """`started` has every step's command and its running step, in order."""

    ends_with: int | None = None
    started: list[tuple[tuple[str, ...], ScriptedStep]] = field(default_factory=list)

    def start(self, name: str, arguments: Sequence[str]) -> ScriptedStep:
        step = ScriptedStep(self.ends_with)
        self.started.append((tuple(arguments), step))
        return step


@dataclass
class StepsInThreads:
    """Steps whose program is a function of this process: it gets the program's arguments and a flag to stop at."""

    program: Callable[[Sequence[str], threading.Event], int]

    def start(self, name: str, arguments: Sequence[str]) -> RunningStep:
        return _ThreadStep(self.program, program_arguments(arguments))


class _ThreadStep:
    def __init__(self, program: Callable[[Sequence[str], threading.Event], int], arguments: Sequence[str]) -> None:
        self._stopped = threading.Event()
        self._exit_code: int | None = None
        self._output = ""
        self._thread = threading.Thread(target=self._run, args=(program, arguments), daemon=True)
        self._thread.start()

    def _run(self, program: Callable[[Sequence[str], threading.Event], int], arguments: Sequence[str]) -> None:
        try:
            self._exit_code = program(arguments, self._stopped)
        except BaseException as error:
            self._exit_code, self._output = 1, repr(error)
            raise

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._exit_code

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def output_tail(self) -> str:
        return self._output


@dataclass(frozen=True)
class SparkSubmitSteps:
    """
    work_folder  a folder a step, with its log
    spark_home   with bin/spark-submit
    master       instead of `yarn`
    environment  of the processes: a node's variables, without the test's
    s3_endpoint  where s3:// files are downloaded from
    """

    work_folder: Path
    spark_home: Path
    master: str = "local[2]"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    s3_endpoint: str | None = None

    def start(self, name: str, arguments: Sequence[str]) -> RunningStep:
        folder = self.work_folder / name
        folder.mkdir(parents=True)
        environment = self._environment(folder)
        if arguments[0] == "spark-submit":
            arguments = _as_serverless_does(arguments, folder, self.s3_endpoint)
        with (folder / "output.log").open("wb") as log:
            process = subprocess.Popen(
                list(arguments),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _ProcessStep(process, folder / "output.log")

    def _environment(self, folder: Path) -> dict[str, str]:
        programs = folder / "programs"
        programs.mkdir()
        for name in ("aws", "spark-submit"):
            program = programs / name
            node = f"{shlex.quote(sys.executable)} -m tests.fakes.emr_node {name}"
            ours = f'NODE_PYTHONPATH="$PYTHONPATH" PYTHONPATH={shlex.quote(str(REPOSITORY))}'
            program.write_text(f'#!/bin/sh\n{ours} exec {node} "$@"\n')
            program.chmod(0o755)
        return {
            **self.environment,
            "PATH": os.pathsep.join((str(programs), self.environment["PATH"])),
            "NODE_SPARK_HOME": str(self.spark_home),
            "NODE_MASTER": self.master,
            "NODE_S3_ENDPOINT": self.s3_endpoint or "",
        }


def _as_serverless_does(arguments: Sequence[str], folder: Path, s3_endpoint: str | None) -> Sequence[str]:
    """The arguments after the downloads and unpacking that the service does on EMR Serverless."""
    submit = parse_submit(arguments)
    program = folder / Path(submit.program).name
    download(submit.program, program, s3_endpoint)
    for archive in submit.archives:
        uri, _, target = archive.partition("#")
        packed = folder / Path(uri).name
        download(uri, packed, s3_endpoint)
        with tarfile.open(packed) as opened:
            opened.extractall(folder / target, filter="tar")
    place = list(arguments).index(submit.program)
    return ["spark-submit", *arguments[1:place], str(program), *submit.program_arguments]


def download(uri: str, file: Path, s3_endpoint: str | None) -> None:
    if uri.startswith("s3://"):
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        boto3.client("s3", endpoint_url=s3_endpoint).download_file(bucket, key, str(file))
    else:
        shutil.copyfile(uri.removeprefix("file://"), file)


class _ProcessStep:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        with suppress(ProcessLookupError):  # all processes of the group have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def output_tail(self) -> str:
        return self._log.read_bytes()[-OUTPUT_TAIL_BYTES:].decode(errors="replace")


@dataclass(frozen=True)
class Submit:
    """A spark-submit command, parsed. `kept`: options that mean the same on any master."""

    program: str
    program_arguments: tuple[str, ...]
    archives: tuple[str, ...]
    conf: Mapping[str, str]
    kept: tuple[tuple[str, str], ...]


def parse_submit(arguments: Sequence[str]) -> Submit:
    """Raises `ValueError` for a command that no spark-submit of a cluster takes."""
    left = list(arguments)
    if left and left[0] == "bash":  # what the step's script makes of its own arguments
        place = left.index("--")
        left = ["spark-submit", *left[5:place], "main.py", *left[place + 1 :]]
    if not left or left.pop(0) != "spark-submit":
        raise ValueError(f"{arguments} is no spark-submit command")
    options: list[tuple[str, str]] = []
    while left and left[0].startswith("--"):
        options.append((left.pop(0), left.pop(0)))
    if not left:
        raise ValueError(f"{arguments} names no program")
    conf = dict(value.split("=", 1) for name, value in options if name == "--conf")
    archives = [value for name, value in options if name == "--archives"]
    archives += [conf[name] for name in ("spark.archives", "spark.yarn.dist.archives") if name in conf]
    kept = [(name, value) for name, value in options if name in _KEEPS and not _is_of_a_cluster(name, value)]
    flat = tuple(each for joined in archives for each in joined.split(",") if each)
    return Submit(left[0], tuple(left[1:]), flat, conf, tuple(kept))


def program_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    return parse_submit(arguments).program_arguments


def serverless_command(driver: Mapping[str, object]) -> list[str]:
    """The command that a Serverless job run's driver stands for."""
    submit = driver["sparkSubmit"]
    assert isinstance(submit, dict)
    parameters = shlex.split(submit.get("sparkSubmitParameters", ""))
    return ["spark-submit", *parameters, submit["entryPoint"], *submit.get("entryPointArguments", [])]


def _is_of_a_cluster(name: str, value: str) -> bool:
    """Settings of YARN, of its nodes' sizes, and of archives, which are unpacked here already."""
    setting = value.split("=", 1)[0]
    sizes = ("spark.executor.instances", "spark.executor.cores", "spark.executor.memory", "spark.driver.memory")
    ours = ("spark.yarn.", "spark.emr-serverless.", "spark.archives", "spark.dynamicAllocation.", "spark.executorEnv.")
    return name == "--conf" and (setting.startswith(ours) or setting.startswith(sizes) or setting == "spark.master")


def pack_this_python(archive: Path) -> None:
    """Writes an archive for nodes: its `bin/python` is this process's Python with its installed packages."""
    manifest = ArchiveManifest(
        lithify=metadata.version(PROJECT),
        python=python_release(),
        platform=f"{sys.platform}-{platform.machine()}",
        cpu="native",
        spark=None,
        packages={},
        files=1,
        bytes=1,
    )
    script = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'.encode()
    with tarfile.open(archive, "w:gz") as opened:
        for name, body in {MANIFEST: manifest.render(), "bin/python": script}.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(body), 0o755
            opened.addfile(entry, io.BytesIO(body))
