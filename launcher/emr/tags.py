"""The tags of Lithify's jobs on AWS: for people, and for sweeps to identify the jobs that they may end."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from compactor.model.errors import Corrupt
from compactor.sessions.keys import BundleObject, SessionObject
from compactor.storage.keys import parse_any
from compactor.storage.location import StoreLocation
from launcher.spark_job import SparkJob

DIGEST_CHARACTERS = 32
VALUE_CHARACTERS_MAX = 256
STATE_TAG, JOB_RUN_TAG = "lithify-state", "lithify-job-run"
SESSION_TAG, BUNDLE_TAG = "lithify-session", "lithify-bundle"
"""A job has one of the two: it runs one session, or a bundle of them."""

ATTEMPT_TAG, OWNER_TAG = "lithify-attempt", "lithify-owner"
OUR_TAGS = (STATE_TAG, JOB_RUN_TAG, SESSION_TAG, BUNDLE_TAG, ATTEMPT_TAG, OWNER_TAG)
OUR_TAGS_OF_A_JOB = len(OUR_TAGS) - 1

_NOT_TAKEN = re.compile(r"[^A-Za-z0-9_.:/=+@ -]+")


def state_digest(state: StoreLocation) -> str:
    """Distinguishes the clusters of state stores; a digest, because a URI may be longer than a tag."""
    exact = f"{state.root_uri}\0{state.endpoint_url or ''}".encode()
    return hashlib.sha256(exact).hexdigest()[:DIGEST_CHARACTERS]


def tags_of(job: SparkJob, owner: str, own: Mapping[str, str]) -> dict[str, str]:
    """The tags of an attempt: the user's `own`, and ours, which win.

    owner  the dispatcher that launched it
    """
    ours = {
        STATE_TAG: state_digest(job.state),
        **_plan_tags(job.plan_key),
        ATTEMPT_TAG: str(job.attempt),
        OWNER_TAG: owner,
    }
    return {**own, **{key: tag_value(value) for key, value in ours.items()}}


def tag_value(text: str) -> str:
    """Characters that tags do not allow become `-`; long values are truncated."""
    return _NOT_TAKEN.sub("-", text)[:VALUE_CHARACTERS_MAX]


def _plan_tags(plan_key: str) -> dict[str, str]:
    match parse_any(plan_key, (SessionObject, BundleObject)):
        case SessionObject(session=session):
            return {JOB_RUN_TAG: session.job_run_id, SESSION_TAG: session.session_id}
        case BundleObject(bundle=bundle):
            return {JOB_RUN_TAG: bundle.job_run_id, BUNDLE_TAG: bundle.bundle_id}
        case _:
            raise Corrupt(f"{plan_key} is no plan of a session, nor of a bundle")
