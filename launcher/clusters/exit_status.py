"""Translates the exit code and the last output of a Spark job's driver into a status. Pure."""

from __future__ import annotations

import signal

from compactor.model.errors import ErrorKind
from compactor.model.exit_codes import EXIT_FENCED, EXIT_INVALID
from launcher.spark_job import JobFailed, JobStatus, JobSucceeded

OUTPUT_LINES_IN_REASON = 12
OUT_OF_MEMORY_WORDS = ("java.lang.OutOfMemoryError", "MemoryError")
KILLED = "was killed (SIGKILL), as the system does where memory runs out"


def status_of_exit(exit_code: int, output: str) -> JobStatus:
    """`exit_code` below 0: the signal that ended Spark's own process. `output`: the end of what the driver wrote."""
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


def last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()][-OUTPUT_LINES_IN_REASON:]
    return "its last output: " + " | ".join(lines) if lines else "it wrote nothing"
