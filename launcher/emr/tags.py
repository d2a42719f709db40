"""The tags of Lithify's jobs on AWS: for people, and for sweeps to identify the jobs that they may end."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress

from compactor.model.errors import Invalid
from compactor.storage.location import StoreLocation
from compactor.storage.paths import SessionFolder, SessionObject, parse
from launcher.submit import SparkJob

DIGEST_CHARACTERS = 32
VALUE_CHARACTERS_MAX = 256
STATE_TAG, JOB_RUN_TAG, SESSION_TAG = "lithify-state", "lithify-job-run", "lithify-session"
ATTEMPT_TAG, OWNER_TAG = "lithify-attempt", "lithify-owner"
OUR_TAGS = (STATE_TAG, JOB_RUN_TAG, SESSION_TAG, ATTEMPT_TAG, OWNER_TAG)

_NOT_TAKEN = re.compile(r"[^A-Za-z0-9_.:/=+@ -]+")


def state_digest(state: StoreLocation) -> str:
    """Distinguishes the clusters of state stores; a digest, because a URI may be longer than a tag."""
    exact = f"{state.root_uri}\0{state.endpoint_url or ''}".encode()
    return hashlib.sha256(exact).hexdigest()[:DIGEST_CHARACTERS]


def tags_of(job: SparkJob, owner: str, own: Mapping[str, str]) -> dict[str, str]:
    """The tags of an attempt: the user's `own`, and ours, which win.

    owner  the dispatcher that launched it
    """
    session = _session_of(job)
    ours = {
        STATE_TAG: state_digest(job.state),
        JOB_RUN_TAG: session.job_run_id if session is not None else "",
        SESSION_TAG: session.session_id if session is not None else "",
        ATTEMPT_TAG: str(job.attempt),
        OWNER_TAG: owner,
    }
    return {**own, **{key: tag_value(value) for key, value in ours.items()}}


def tag_value(text: str) -> str:
    """Characters that tags do not allow become `-`; long values are truncated."""
    return _NOT_TAKEN.sub("-", text)[:VALUE_CHARACTERS_MAX]


def _session_of(job: SparkJob) -> SessionFolder | None:
    """None: the job runs another plan than a session's."""
    with suppress(Invalid):
        plan = parse(job.plan_key)
        return plan.session if isinstance(plan, SessionObject) else None
    return None
