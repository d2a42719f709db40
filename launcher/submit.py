"""The command that starts a session's Spark job. Pure: values in, arguments out.

The job is told its plan by name: where the dispatcher's state lies, and the key of plan.json in it. Nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactor.object_store import StoreLocation


@dataclass(frozen=True)
class SparkJob:
    """One attempt of a session.

    name      for people who look at a cluster's list of applications
    state     where the plan, the session log and the heartbeat lie
    plan_key  of plan.json in `state`
    """

    name: str
    state: StoreLocation
    plan_key: str
    attempt: int


def submit_arguments(spark_submit: str, program: str, job: SparkJob, conf: Mapping[str, str]) -> tuple[str, ...]:
    """The whole command line, settings in name order so that equal jobs have equal commands."""
    settings = (argument for name in sorted(conf) for argument in ("--conf", f"{name}={conf[name]}"))
    return (spark_submit, "--name", job.name, *settings, program, *job_arguments(job))


def job_arguments(job: SparkJob) -> tuple[str, ...]:
    """What `compactor/main.py` reads."""
    optional = []
    if job.state.endpoint_url is not None:
        optional += ["--state-endpoint-url", job.state.endpoint_url]
    if job.state.region is not None:
        optional += ["--state-region", job.state.region]
    return ("--state", job.state.root_uri, *optional, "--plan", job.plan_key, "--attempt", str(job.attempt))
