"""The job runs of applications on EMR Serverless: SUBMITTED, PENDING, SCHEDULED, RUNNING, and SUCCESS, FAILED or
CANCELLED, on a clock that a test drives. As in `tests/fakes/emr_account.py`, nothing runs in the background."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compactor.model.clock import Clock
from tests.fakes.emr_account import ACCOUNT, REGION
from tests.fakes.emr_shapes import Refused, time_of
from tests.fakes.emr_steps import RunningStep, StepRunner, serverless_command

LIVE = ("SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING", "QUEUED")
_TIMED = {"SUBMITTED": "PENDING", "PENDING": "SCHEDULED", "SCHEDULED": "RUNNING", "CANCELLING": "CANCELLED"}
NO_SERVERLESS_CAPACITY = (
    "ApplicationMaxCapacityExceededException: Worker could not be allocated as the application has exceeded maxCapacity"
)
SERVERLESS_ROLE_WITHOUT_RIGHTS = "Job failed to start: access denied, the execution role cannot be assumed"


@dataclass
class FakeJobRun:
    job_run_id: str
    request: Mapping[str, Any]
    created_ms: int
    mishap: str | None
    state: str = "SUBMITTED"
    details: str = "-"
    since_ms: int = 0
    running: RunningStep | None = None
    attempts: int = 0

    @property
    def arn(self) -> str:
        application_id = self.request["applicationId"]
        return f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/{application_id}/jobruns/{self.job_run_id}"

    def enter(self, state: str, at_ms: int, details: str = "-") -> None:
        if state not in ("RUNNING", "SUCCESS") and self.running is not None:
            self.running.stop()
        self.state, self.since_ms, self.details = state, at_ms, details

    def described(self) -> dict[str, Any]:
        found = {
            "applicationId": self.request["applicationId"],
            "arn": self.arn,
            "createdBy": f"arn:aws:iam::{ACCOUNT}:user/tests",
            "createdAt": time_of(self.created_ms),
            "updatedAt": time_of(self.since_ms),
            "executionRole": self.request["executionRoleArn"],
            "state": self.state,
            "stateDetails": self.details,
            "releaseLabel": "emr-7.13.0",
        }
        if "name" in self.request:
            found["name"] = self.request["name"]
        return found


@dataclass
class ServerlessAccount:
    """`mishaps`: the failure details of the job runs that are started from now on, one each; None: no failure.
    `billed_after_seconds`: after its end a job run's bill is told."""

    clock: Clock
    steps: StepRunner
    application_ids: tuple[str, ...] = ("00abcdefgh123456",)
    seconds_in_a_state: float = 10.0
    billed_after_seconds: float = 0.0
    mishaps: list[str | None] = field(default_factory=list)
    job_runs: dict[str, FakeJobRun] = field(default_factory=dict)
    tokens: dict[str, tuple[str, str]] = field(default_factory=dict)

    def let_time_pass(self) -> None:
        for job_run in self.job_runs.values():
            while self._go_on(job_run):
                pass

    def live(self) -> list[FakeJobRun]:
        self.let_time_pass()
        return [job_run for job_run in self.job_runs.values() if job_run.state in LIVE]

    def stop(self) -> None:
        for job_run in self.job_runs.values():
            if job_run.running is not None:
                job_run.running.stop()

    # -- the service's operations

    def start_job_run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        application_id = self._application(request)
        body = json.dumps({name: request[name] for name in sorted(request) if name != "clientToken"}, sort_keys=True)
        before = self.tokens.get(request["clientToken"])
        if before is not None:
            job_run_id, body_before = before
            if body != body_before:
                raise Refused("ConflictException", "The client token was used with other parameters", 409)
        else:
            job_run_id = f"00jobrun{len(self.job_runs) + 1:08d}"
            mishap = self.mishaps.pop(0) if self.mishaps else None
            now_ms = self.clock.now_ms()
            self.job_runs[job_run_id] = FakeJobRun(job_run_id, request, now_ms, mishap, since_ms=now_ms)
            self.tokens[request["clientToken"]] = (job_run_id, body)
        return {"applicationId": application_id, "jobRunId": job_run_id, "arn": self.job_runs[job_run_id].arn}

    def get_job_run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        job_run = self._job_run(request)
        found = job_run.described() | {"jobRunId": job_run.job_run_id, "jobDriver": job_run.request["jobDriver"]}
        billed_at_ms = job_run.since_ms + round(self.billed_after_seconds * 1000)
        if job_run.state not in LIVE and self.clock.now_ms() >= billed_at_ms:
            hours = (job_run.since_ms - job_run.created_ms) / 3_600_000
            found["billedResourceUtilization"] = {
                "vCPUHour": 4 * hours,
                "memoryGBHour": 32 * hours,
                "storageGBHour": 0.0,
            }
        if "tags" in job_run.request:
            found["tags"] = job_run.request["tags"]
        return {"jobRun": found}

    def cancel_job_run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        job_run = self._job_run(request)
        if job_run.state not in LIVE:
            raise Refused(
                "ValidationException", f"Job run {job_run.job_run_id} is in the terminal state {job_run.state}"
            )
        job_run.enter("CANCELLING", self.clock.now_ms())
        return {"applicationId": request["applicationId"], "jobRunId": job_run.job_run_id}

    def list_job_runs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        application_id = self._application(request)
        states = request.get("states") or (*LIVE, "SUCCESS", "FAILED", "CANCELLED")
        found = [
            job_run.described() | {"id": job_run.job_run_id}
            for job_run in reversed(self.job_runs.values())
            if job_run.state in states
            and job_run.request["applicationId"] == application_id
            and job_run.created_ms / 1000 >= request.get("createdAtAfter", 0)
        ]
        size, begin = request.get("maxResults", 50), int(request.get("nextToken", "0"))
        answer: dict[str, Any] = {"jobRuns": found[begin : begin + size]}
        if begin + size < len(found):
            answer["nextToken"] = str(begin + size)
        return answer

    # -- state changes of job runs

    def _go_on(self, job_run: FakeJobRun) -> bool:
        now_ms = self.clock.now_ms()
        if job_run.state in _TIMED:
            until_ms = job_run.since_ms + round(self.seconds_in_a_state * 1000)
            if until_ms > now_ms:
                return False
            if job_run.state == "SCHEDULED" and job_run.mishap is not None:
                job_run.enter("FAILED", until_ms, job_run.mishap)
                return True
            job_run.enter(_TIMED[job_run.state], until_ms)
            if job_run.state == "RUNNING":
                command = serverless_command(job_run.request["jobDriver"])
                job_run.running = self.steps.start(job_run.job_run_id, command)
            return True
        if job_run.state != "RUNNING" or job_run.running is None:
            return False
        exit_code = job_run.running.poll()
        if exit_code is None:
            return False
        if exit_code == 0:
            job_run.enter("SUCCESS", now_ms)
        else:
            tail = " ".join(job_run.running.output_tail().split())[-120:]
            details = (
                f"Job failed, please check complete logs in configured logging destination. ExitCode: {exit_code}. "
            )
            job_run.enter("FAILED", now_ms, (details + f"Last few exceptions: {tail}")[:256])
        return True

    def _application(self, request: Mapping[str, Any]) -> str:
        application_id: str = request["applicationId"]
        if application_id not in self.application_ids:
            raise Refused("ResourceNotFoundException", f"Application {application_id} does not exist", 404)
        return application_id

    def _job_run(self, request: Mapping[str, Any]) -> FakeJobRun:
        self._application(request)
        job_run = self.job_runs.get(request["jobRunId"])
        if job_run is None:
            raise Refused("ResourceNotFoundException", f"Job run {request['jobRunId']} does not exist", 404)
        return job_run
