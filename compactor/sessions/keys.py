"""The keys of sessions and of bundles, below the folder of their job run."""

from __future__ import annotations

from typing import Annotated

from compactor.storage.keys import Key, spelled


class JobRunFolder(Key, template="job_runs/{job_run_id}"):
    job_run_id: str

    def session(self, session_id: str) -> SessionFolder:
        return SessionFolder(self.job_run_id, session_id)

    def bundle(self, bundle_id: str) -> BundleFolder:
        return BundleFolder(self.job_run_id, bundle_id)


class SessionFolder(Key, template="job_runs/{job_run_id}/sessions/{session_id}"):
    job_run_id: str
    session_id: str

    @property
    def log(self) -> str:
        return SessionLogFolder(self).key

    def plan(self, attempt: int) -> SessionObject:
        """The attempt's plan; the first attempt's key has no number."""
        return SessionObject(self, "plan.json" if attempt == 1 else f"plan-{attempt}.json")

    @property
    def heartbeat(self) -> SessionObject:
        return SessionObject(self, "heartbeat.json")

    @property
    def published(self) -> SessionObject:
        return SessionObject(self, "published.json")


class SessionLogFolder(Key, template="job_runs/{session.job_run_id}/sessions/{session.session_id}/log"):
    session: SessionFolder


class SessionObject(Key, template="job_runs/{session.job_run_id}/sessions/{session.session_id}/{name}"):
    """An object beside a session's log."""

    session: SessionFolder
    name: Annotated[str, spelled(r"plan\.json|plan-(?:[2-9]|[1-9][0-9]+)\.json|heartbeat\.json|published\.json")]


class BundleFolder(Key, template="job_runs/{job_run_id}/bundles/{bundle_id}"):
    """The folder of a bundle: sessions that share one Spark job. Their logs are in their own folders."""

    job_run_id: str
    bundle_id: str

    @property
    def plan(self) -> BundleObject:
        return BundleObject(self, "plan.json")

    @property
    def heartbeat(self) -> BundleObject:
        return BundleObject(self, "heartbeat.json")


class BundleObject(Key, template="job_runs/{bundle.job_run_id}/bundles/{bundle.bundle_id}/{name}"):
    bundle: BundleFolder
    name: Annotated[str, spelled(r"plan\.json|heartbeat\.json")]
