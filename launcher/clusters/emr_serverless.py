"""Runs each session as a job run of an application on EMR Serverless.

StartJobRun takes a client token, which follows from the attempt: repeated requests start one job run.
"""

from __future__ import annotations

from collections.abc import Iterator

from compactor.model.clock import Clock
from compactor.model.errors import Conflict, Invalid, Unavailable
from compactor.planning.cluster_plan import ClusterPlan, ClusterUse
from launcher.clusters import LaunchedJob, unless_denied
from launcher.emr.reasons import CANCELLED, of_program
from launcher.emr.request import ClusterLaunch, start_job_run_request
from launcher.emr.service import (
    SERVERLESS_ENDED_STATES,
    SERVERLESS_LIVE_STATES,
    SERVERLESS_PAID_STATES,
    EmrServerlessService,
)
from launcher.emr.settings import STATE_TAG, EmrServerlessSettings, tags_of
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.sizing.instance_types import PriceList
from launcher.sizing.serverless import with_cost_of_hours
from launcher.spark_job import (
    JOB_NAMES_BEGIN,
    ClusterReference,
    JobRunning,
    JobStatus,
    JobSucceeded,
    JobVanished,
    SparkJob,
)

KIND = "emr_serverless"
APPLICATION_ID, JOB_RUN_ID = "application_id", "job_run_id"
FOUND_AGAIN_SECONDS = 14 * 86_400.0
"""Time after the start in which a job run is found by its name, even if it has ended."""

BILL_PAUSES_SECONDS = (5.0, 10.0, 15.0)
"""Pauses between two questions for what a job run that has ended is billed: EMR Serverless tells it some seconds after
the end, and nothing or zeros until then. AWS states no bound."""


class EmrServerlessCluster:
    """A `Cluster`. Threads may share one."""

    status_is_free = False

    def __init__(
        self,
        service: EmrServerlessService,
        settings: EmrServerlessSettings,
        room: ClusterRoom,
        owner: str,
        clock: Clock,
    ) -> None:
        """`room`, `owner`: as in `EmrCluster`."""
        self._service = service
        self._settings = settings
        self._room = room
        self._owner = owner
        self._clock = clock

    @property
    def place(self) -> str:
        settings = self._settings
        return " ".join(filter(None, (KIND, settings.region, settings.application_id, settings.endpoint_url)))

    def resources(self) -> ClusterRoom:
        return self._room

    def launch(self, job: SparkJob, cluster_plan: ClusterPlan | None = None) -> ClusterReference:
        if cluster_plan is None:
            raise Invalid(f"{job.name} has no cluster in its plan, and needs one to run on EMR Serverless")
        launch = ClusterLaunch(job, tags_of(job, self._owner, self._settings.tags), cluster_plan)
        request = start_job_run_request(launch, self._settings)
        try:
            return self._reference(self._service.start_job_run(request))
        except Conflict as error:
            # Another dispatcher has started this attempt: its tags, and so its request, differ.
            found = self.find(job.name)
            if found is None:
                raise Unavailable(f"attempt {job.name} was started before, and is gone: {error}") from error
            return found

    def attach(self, reference: ClusterReference) -> EmrServerlessJob | None:
        settings = self._settings
        is_here = reference.kind == KIND and reference.region == settings.region
        if not is_here or reference.ids[APPLICATION_ID] != settings.application_id:
            return None
        return EmrServerlessJob(self._service, reference, settings.log_uri, self._room.prices, self._clock)

    def find(self, name: str) -> ClusterReference | None:
        since_ms = self._clock.now_ms() - round(FOUND_AGAIN_SECONDS * 1000)
        for states, created_after_ms in ((SERVERLESS_PAID_STATES, None), (SERVERLESS_ENDED_STATES, since_ms)):
            for seen in self._service.job_runs(sorted(states), created_after_ms):
                if seen.name == name:
                    whole = self._service.job_run(seen.job_run_id)
                    if whole is not None and STATE_TAG in whole.tags:
                        return self._reference(seen.job_run_id)
        return None

    def launched(self) -> Iterator[LaunchedJob]:
        """All running jobs that Lithify launched here, of any state store, as far as they may be described."""
        for seen in self._service.job_runs(sorted(SERVERLESS_LIVE_STATES)):
            if not seen.name.startswith(JOB_NAMES_BEGIN):
                continue
            whole = unless_denied(self._service.job_run, seen.job_run_id)
            if whole is not None and STATE_TAG in whole.tags and whole.state in SERVERLESS_LIVE_STATES:
                reference = self._reference(whole.job_run_id)
                yield LaunchedJob(reference, whole.name, whole.state, whole.tags, whole.created_at_ms)

    def _reference(self, job_run_id: str) -> ClusterReference:
        ids = {APPLICATION_ID: self._settings.application_id, JOB_RUN_ID: job_run_id}
        return ClusterReference(kind=KIND, region=self._settings.region, ids=ids)


class EmrServerlessJob:
    """A `RunningSparkJob`."""

    def __init__(
        self, service: EmrServerlessService, reference: ClusterReference, log_uri: str, prices: PriceList, clock: Clock
    ) -> None:
        self._service = service
        self._prices = prices
        self._clock = clock
        self.reference = reference
        self._job_run_id = reference.ids[JOB_RUN_ID]
        self._log_uri = log_uri

    @property
    def description(self) -> str:
        application_id = self.reference.ids[APPLICATION_ID]
        logs = f"{self._log_uri.rstrip('/')}/applications/{application_id}/jobs/{self._job_run_id}/"
        return f"EMR Serverless job run {self._job_run_id} of application {application_id}, logs at {logs}"

    def status(self) -> JobStatus:
        seen = self._service.job_run(self._job_run_id)
        if seen is None:
            return JobVanished(f"vanished: EMR Serverless no longer knows job run {self._job_run_id}")
        if seen.state not in SERVERLESS_ENDED_STATES:
            return JobRunning()
        if seen.state == "SUCCESS":
            return JobSucceeded()
        return CANCELLED if seen.state == "CANCELLED" else of_program(seen.details)

    def use(self, plan: ClusterPlan) -> ClusterUse | None:
        billed = self._billed()
        for pause_seconds in BILL_PAUSES_SECONDS:
            if billed is not None and billed.vcpu_hours:
                break
            self._clock.sleep(pause_seconds)
            billed = self._billed()
        return None if billed is None else with_cost_of_hours(billed, self._prices)

    def _billed(self) -> ClusterUse | None:
        seen = self._service.job_run(self._job_run_id)
        return None if seen is None else seen.billed

    def stop(self) -> None:
        try:
            self._service.cancel(self._job_run_id)
        except Invalid as error:
            raise Unavailable(f"{self.description} cannot be cancelled: {error}") from error
