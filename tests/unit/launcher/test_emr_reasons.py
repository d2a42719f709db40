"""What EMR says of an end, and what follows from it."""

from __future__ import annotations

import pytest

from compactor.model.errors import AnotherTry, ErrorKind
from launcher.emr.reasons import of_cluster, of_program, of_refusal
from launcher.spark_job import JobFailed, JobStatus, JobSucceeded, NoCapacity
from tests.fakes.emr_account import (
    BOOTSTRAP_FAILED,
    NO_CAPACITY,
    NO_FLEET,
    NO_SUCH_SUBNET,
    NODES_FAILED,
    OVER_QUOTA,
    ROLE_WITHOUT_RIGHTS,
    SPOT_LOST,
    Mishap,
)
from tests.fakes.emr_serverless_account import NO_SERVERLESS_CAPACITY, SERVERLESS_ROLE_WITHOUT_RIGHTS


def kind_and_reason(status: JobStatus) -> tuple[ErrorKind, str]:
    """As an attempt that ended so is judged."""
    match status:
        case NoCapacity(reason):
            return ErrorKind.UNAVAILABLE, reason
        case JobFailed(kind, reason):
            return kind, reason
        case _:
            raise AssertionError(status)


@pytest.mark.parametrize(
    ("mishap", "kind", "says"),
    [
        (NO_CAPACITY, ErrorKind.UNAVAILABLE, "found no capacity"),
        (NO_FLEET, ErrorKind.UNAVAILABLE, "found no capacity"),
        (OVER_QUOTA, ErrorKind.UNAVAILABLE, "met a quota"),
        (ROLE_WITHOUT_RIGHTS, ErrorKind.DENIED, "a role that lacks a right"),
        (NO_SUCH_SUBNET, ErrorKind.INVALID, "fix the settings"),
        (BOOTSTRAP_FAILED, ErrorKind.CRASHED, "failed in a bootstrap action"),
        (SPOT_LOST, ErrorKind.UNAVAILABLE, "lost Spot instances"),
        (NODES_FAILED, ErrorKind.CRASHED, "lost nodes"),
        (
            Mishap("RUNNING", "USER_REQUEST", "Terminated by user request"),
            ErrorKind.CRASHED,
            "was terminated by somebody",
        ),
        (Mishap("STARTING", "INTERNAL_ERROR", "Something"), ErrorKind.UNAVAILABLE, "met an internal error"),
        (
            Mishap("STARTING", "INTERNAL_ERROR", "Throttled from Amazon EC2"),
            ErrorKind.UNAVAILABLE,
            "takes no more requests",
        ),
        (Mishap("RUNNING", "NEW_CODE", "Who knows"), ErrorKind.CRASHED, "ended with its cluster (NEW_CODE: Who knows)"),
    ],
    ids=lambda value: value.message if isinstance(value, Mishap) else "",
)
def test_the_reason_of_a_cluster_s_end_has_one_kind_and_quotes_the_service(
    mishap: Mishap, kind: ErrorKind, says: str
) -> None:
    found, reason = kind_and_reason(of_cluster(mishap.code, mishap.message, mishap.details))
    assert found is kind
    assert says in reason
    assert mishap.message in reason


def test_a_cluster_that_ended_with_its_step_went_wrong_by_nothing() -> None:
    assert of_cluster("ALL_STEPS_COMPLETED", "Steps completed") == JobSucceeded()


@pytest.mark.parametrize("mishap", [NO_CAPACITY, NO_FLEET, OVER_QUOTA], ids=lambda mishap: mishap.message)
def test_a_job_without_capacity_has_not_run(mishap: Mishap) -> None:
    assert isinstance(of_cluster(mishap.code, mishap.message, mishap.details), NoCapacity)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", ErrorKind.OUT_OF_MEMORY),
        ("Container killed by YARN for exceeding memory limits. 9.1 GB of 9 GB", ErrorKind.OUT_OF_MEMORY),
        ("User application exited with status 137", ErrorKind.OUT_OF_MEMORY),
        ("Job failed, please check complete logs. ExitCode: 137. Last few exceptions:", ErrorKind.OUT_OF_MEMORY),
        ("User application exited with status 3", ErrorKind.FENCED),
        ("application finished with exit code 2; there is no table", ErrorKind.INVALID),
        ("User application exited with status 1", ErrorKind.CRASHED),
        (NO_SERVERLESS_CAPACITY, ErrorKind.UNAVAILABLE),
        (SERVERLESS_ROLE_WITHOUT_RIGHTS, ErrorKind.DENIED),
        ("", ErrorKind.CRASHED),
    ],
)
def test_the_reason_of_a_program_s_end_is_read_from_what_the_service_quotes(message: str, kind: ErrorKind) -> None:
    found, reason = kind_and_reason(of_program(message))
    assert found is kind
    assert message in reason


def test_a_refused_request_is_tried_again_only_for_reasons_that_pass() -> None:
    assert of_refusal("You have requested more vCPU capacity than your current vCPU limit") is not None
    assert of_refusal("The supplied release label is invalid: emr-9") is None


def test_every_kind_says_whether_it_is_tried_again() -> None:
    ends = [of_cluster(each.code, each.message, each.details) for each in (NO_CAPACITY, NO_SUCH_SUBNET, NODES_FAILED)]
    assert [kind_and_reason(end)[0].another_try for end in ends] == [
        *(AnotherTry.LATER, AnotherTry.NEVER, AnotherTry.A_FEW_TIMES)
    ]
