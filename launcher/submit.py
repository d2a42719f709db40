"""The command that starts a session's Spark job. Pure: values in, arguments out.

The arguments name only the dispatcher's state and the key of the plan in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from compactor.planning.sizing import Resources
from compactor.storage.location import StoreLocation

NAME_LENGTH_MAX = 100
"""Limit of a job's name: services take 64 to 256 characters, file systems 255 bytes with a suffix."""


def job_name(state: StoreLocation, job_run_id: str, session_id: str, attempt: int) -> str:
    """The name of an attempt on every cluster: letters, digits and hyphens. The same attempt has the same name, so that
    a launch with a lost answer can be found; a job run of the same id in another state has other names. Pure.

    Worked: `lithify-nightly-1-a2-5f0c9d1e7a3b`, for attempt 2 of session `nightly.1`.
    """
    whole = "\0".join((state.root_uri, state.endpoint_url or "", job_run_id, session_id, str(attempt)))
    end = f"-a{attempt}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", f"lithify-{session_id}").strip("-")
    return cleaned[: NAME_LENGTH_MAX - len(end)].rstrip("-") + end


@dataclass(frozen=True)
class SparkJob:
    """One attempt of a session.

    name       of the application and its cluster: see `job_name`
    state      where the plan, the session log and the heartbeat lie
    plan_key   of the attempt's plan in `state`
    resources  resources of that plan
    """

    name: str
    state: StoreLocation
    plan_key: str
    attempt: int
    resources: Resources


def submit_arguments(spark_submit: str, program: str, job: SparkJob, conf: Mapping[str, str]) -> tuple[str, ...]:
    """The whole command line, settings in name order so that equal jobs have equal commands."""
    settings = (argument for name in sorted(conf) for argument in ("--conf", f"{name}={conf[name]}"))
    return (spark_submit, "--name", job.name, *settings, program, *job_arguments(job))


def job_arguments(job: SparkJob) -> tuple[str, ...]:
    """The arguments of `compactor/main.py`."""
    optional = []
    if job.state.endpoint_url is not None:
        optional += ["--state-endpoint-url", job.state.endpoint_url]
    if job.state.region is not None:
        optional += ["--state-region", job.state.region]
    return ("--state", job.state.root_uri, *optional, "--plan", job.plan_key, "--attempt", str(job.attempt))
