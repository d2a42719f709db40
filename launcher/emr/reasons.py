"""Why something ended on EMR or EMR Serverless, translated into our kinds of error, once.

| what the service says                                          | kind        | tried again          |
|----------------------------------------------------------------|-------------|----------------------|
| a role or a user lacks a right, an instance profile is invalid | Denied      | for hours: fix it    |
| a quota or an application's maximum capacity is reached        | Unavailable | for hours            |
| no capacity, an instance fleet that timed out                  | Unavailable | for hours            |
| Spot instances were taken away                                 | Unavailable | for hours            |
| EC2 throttled EMR; an internal error of EMR                    | Unavailable | for hours            |
| a request that can never work (subnet, instance type, key)     | Invalid     | never                |
| memory ran out                                                 | OutOfMemory | with a smaller plan  |
| another compactor was faster (exit code 3)                     | Fenced      | planned anew         |
| the program can never work (exit code 2)                       | Invalid     | never                |
| bootstrap failed, a node failed, the step failed               | crashed     | a few times          |
| the cluster was terminated, the step was cancelled             | crashed     | a few times          |

Codes are matched before words, which AWS may change. Any other end is `crashed`, with the service's message.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from compactor.model.errors import EXIT_FENCED, EXIT_INVALID, ErrorKind
from launcher.spark_job import JobFailed, JobStatus, JobSucceeded, NoCapacity

KILLED_EXIT_CODE = 137


@dataclass(frozen=True)
class _Rule:
    """
    Attributes:
        codes: prefixes, of which one matches
        words: of which one is in the message, ignoring case
        no_capacity: there was no capacity, so that nothing ran"""

    kind: ErrorKind
    sentence: str
    codes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    no_capacity: bool = False

    def fits(self, codes: Sequence[str], message: str) -> bool:
        lowered = message.lower()
        return any(code.startswith(self.codes) for code in codes if self.codes) or any(
            word in lowered for word in self.words
        )


_DETAILED = (
    _Rule(
        ErrorKind.UNAVAILABLE,
        "found no capacity: allow more instance types or subnets, or wait",
        codes=("INTERNAL_ERROR_EC2_INSUFFICIENT_CAPACITY", "INTERNAL_ERROR_SPOT_NO_CAPACITY", "INSTANCE_FLEET_TIMEOUT"),
        words=("insufficient capacity", "insufficientinstancecapacity", "not have sufficient"),
        no_capacity=True,
    ),
    _Rule(
        ErrorKind.UNAVAILABLE,
        "lost Spot instances that it cannot do without",
        codes=("INTERNAL_ERROR_SPOT_PRICE_INCREASE",),
        words=("spot instance interruption", "spot interruption", "spot instance was terminated"),
    ),
    _Rule(
        ErrorKind.DENIED,
        "met a role that lacks a right: give it to the role",
        words=(
            "insufficient ec2 permissions",
            "not authorized",
            "access denied",
            "accessdenied",
            "instance profile",
            "failed to authorize",
            "cannot be assumed",
            "unable to assume",
            "is invalid or does not have",
        ),
    ),
    _Rule(
        ErrorKind.UNAVAILABLE,
        "met a quota: ask AWS for more, raise the application's maximum capacity, or lower the limit on nodes",
        words=(
            "quota",
            "vcpu limit",
            "vcpulimitexceeded",
            "instancelimitexceeded",
            "limit exceeded",
            "limitexceeded",
            "maxspotinstancecountexceeded",
            "exceeded maxcapacity",
            "maxcapacityexceeded",
        ),
        no_capacity=True,
    ),
    _Rule(ErrorKind.UNAVAILABLE, "was not started: AWS takes no more requests now", words=("throttl", "rate exceeded")),
)

_BY_CODE = {
    "BOOTSTRAP_FAILURE": _Rule(ErrorKind.CRASHED, "failed in a bootstrap action, whose log lies at the log URI"),
    "VALIDATION_ERROR": _Rule(
        ErrorKind.INVALID, "can never start as it was asked for: fix the settings of the cluster"
    ),
    "INSTANCE_FAILURE": _Rule(ErrorKind.CRASHED, "lost nodes that it cannot do without"),
    "INTERNAL_ERROR": _Rule(ErrorKind.UNAVAILABLE, "met an internal error of EMR"),
    "USER_REQUEST": _Rule(
        ErrorKind.CRASHED, "was terminated by somebody: to end the session, cancel its job run instead"
    ),
}

_ENDED = _Rule(ErrorKind.CRASHED, "ended with its cluster")
_FAILED = _Rule(ErrorKind.CRASHED, "failed")
_OUT_OF_MEMORY = _Rule(ErrorKind.OUT_OF_MEMORY, "ran out of memory")
_BY_EXIT_CODE = {
    EXIT_FENCED: _Rule(ErrorKind.FENCED, "was overtaken by another compactor"),
    EXIT_INVALID: _Rule(ErrorKind.INVALID, "can never work"),
}
_OUT_OF_MEMORY_WORDS = (
    "outofmemoryerror",
    "memoryerror",
    "exceeding memory limits",
    "exceeding physical memory limits",
    "beyond the 'physical' memory limit",
    "exit code is 137",
)
_EXIT_CODE = re.compile(r"(?:exited with status|exit ?code:?)\s*(\d+)", re.IGNORECASE)


CANCELLED = JobFailed(ErrorKind.CRASHED, "was cancelled by somebody: to end the session, cancel its job run instead")
"""Reason of a job run that somebody else cancelled."""


def of_cluster(code: str, message: str, error_codes: Sequence[str] = ()) -> JobStatus:
    """Why a cluster ended, by its StateChangeReason and the codes of its ErrorDetails.

    For `STEP_FAILURE` the step has the reason: `of_program`.
    """
    if code == "ALL_STEPS_COMPLETED":
        return JobSucceeded()
    rule = _detailed((code, *error_codes), message) or _BY_CODE.get(code) or _ENDED
    return _status(rule, code, message)


def of_program(message: str) -> JobStatus:
    """Why a Spark job failed, by the end of its output that the service quotes."""
    lowered = message.lower()
    found = _EXIT_CODE.search(message)
    exit_code = int(found[1]) if found is not None else None
    if exit_code == KILLED_EXIT_CODE or any(words in lowered for words in _OUT_OF_MEMORY_WORDS):
        return _status(_OUT_OF_MEMORY, "", message)
    by_exit_code = _BY_EXIT_CODE.get(exit_code) if exit_code is not None else None
    return _status(by_exit_code or _detailed((), message) or _FAILED, "", message)


def of_refusal(message: str) -> JobFailed | NoCapacity | None:
    """Why a valid request was refused; None: for a permanent reason."""
    rule = _detailed((), message)
    return None if rule is None else _status(rule, "", message)


def _detailed(codes: Sequence[str], message: str) -> _Rule | None:
    by_code = next((rule for rule in _DETAILED if rule.fits(codes, "")), None)
    return by_code or next((rule for rule in _DETAILED if rule.fits((), message)), None)


def _status(rule: _Rule, code: str, message: str) -> JobFailed | NoCapacity:
    message = " ".join(message.split())
    quoted = f"{code}: {message}" if code and message else code or message
    reason = f"{rule.sentence} ({quoted})" if quoted else rule.sentence
    return NoCapacity(reason) if rule.no_capacity else JobFailed(rule.kind, reason)
