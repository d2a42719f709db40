"""EMR and EMR Serverless over botocore. It translates the errors of botocore.

RunJobFlow takes no client token: botocore must not repeat it after a lost answer, as it may all other requests.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol, Self

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError

from compactor.model.errors import Conflict, Denied, ErrorKind, Unavailable
from compactor.planning.cluster_plan import ClusterUse
from compactor.storage.aws.boto import Answer, Pages, open_client
from compactor.storage.aws.failures import code_of, translated
from launcher.emr.reasons import of_refusal
from launcher.emr.request import JsonObject
from launcher.emr.service import ClusterSeen, InstanceSeen, JobRunSeen, StepSeen
from launcher.spark_job import JobFailed, NoCapacity, NotLaunched

_GONE = frozenset({"ResourceNotFoundException", "InvalidRequestException"})


class _EmrClient(Protocol):
    def get_paginator(self, name: str, /) -> Pages: ...
    def run_job_flow(self, **request: object) -> Answer: ...
    def describe_cluster(self, **request: object) -> Answer: ...
    def list_steps(self, **request: object) -> Answer: ...
    def terminate_job_flows(self, **request: object) -> Answer: ...


class _ServerlessClient(Protocol):
    def get_paginator(self, name: str, /) -> Pages: ...
    def start_job_run(self, **request: object) -> Answer: ...
    def get_job_run(self, **request: object) -> Answer: ...
    def cancel_job_run(self, **request: object) -> Answer: ...


class BotoEmr:
    """An `EmrService` of one region."""

    def __init__(self, client: _EmrClient, single_try: _EmrClient) -> None:
        """`single_try` does not retry."""
        self._client = client
        self._single_try = single_try

    @classmethod
    def open(cls, region: str, endpoint_url: str | None = None) -> Self:
        failure = f"emr in {region} cannot be reached"
        client: _EmrClient = open_client("emr", failure, region, endpoint_url)
        return cls(client, open_client("emr", failure, region, endpoint_url, tries=1))

    def run_job_flow(self, request: JsonObject) -> str:
        try:
            with _refused("EMR launches no cluster"):
                cluster_id: str = self._single_try.run_job_flow(**request)["JobFlowId"]
        except Unavailable as error:
            if _did_nothing(error.__cause__) and not isinstance(error, Denied):
                raise NotLaunched(str(error)) from error
            raise
        return cluster_id

    def clusters(self, states: Sequence[str], created_after_ms: int | None = None) -> Iterator[ClusterSeen]:
        request = {"ClusterStates": list(states), **_created_after("CreatedAfter", created_after_ms)}
        with translated("the clusters on EMR cannot be listed"):
            for page in self._client.get_paginator("list_clusters").paginate(**request):
                yield from map(_cluster, page["Clusters"])

    def cluster(self, cluster_id: str) -> ClusterSeen | None:
        with translated(f"cluster {cluster_id} cannot be described"):
            found = _unless_gone(lambda: self._client.describe_cluster(ClusterId=cluster_id))
        return None if found is None else _cluster(found["Cluster"])

    def steps(self, cluster_id: str) -> Sequence[StepSeen]:
        with translated(f"the steps of cluster {cluster_id} cannot be described"):
            return [_step(step) for step in self._client.list_steps(ClusterId=cluster_id)["Steps"]]

    def instances(self, cluster_id: str) -> Sequence[InstanceSeen]:
        with translated(f"the instances of cluster {cluster_id} cannot be listed"):
            pages = self._client.get_paginator("list_instances").paginate(ClusterId=cluster_id)
            found = [each for page in pages for each in page["Instances"]]
        return [_instance(each) for each in found if each.get("Ec2InstanceId")]

    def terminate(self, cluster_ids: Sequence[str]) -> None:
        with translated(f"clusters {', '.join(cluster_ids)} cannot be terminated"):
            _unless_gone(lambda: self._client.terminate_job_flows(JobFlowIds=list(cluster_ids)))


class BotoEmrServerless:
    """An `EmrServerlessService` of one application."""

    def __init__(self, client: _ServerlessClient, application_id: str) -> None:
        self._client = client
        self._application_id = application_id

    @classmethod
    def open(cls, application_id: str, region: str, endpoint_url: str | None = None) -> Self:
        failure = f"emr-serverless in {region} cannot be reached"
        return cls(open_client("emr-serverless", failure, region, endpoint_url), application_id)

    def start_job_run(self, request: JsonObject) -> str:
        with _refused("EMR Serverless starts no job run"):
            job_run_id: str = self._client.start_job_run(**request)["jobRunId"]
        return job_run_id

    def job_runs(self, states: Sequence[str], created_after_ms: int | None = None) -> Iterator[JobRunSeen]:
        request = {"states": list(states), **_created_after("createdAtAfter", created_after_ms)}
        with translated(f"the job runs of application {self._application_id} cannot be listed"):
            pages = self._client.get_paginator("list_job_runs")
            for page in pages.paginate(applicationId=self._application_id, **request):
                for found in page["jobRuns"]:
                    yield _job_run(found, found["id"])

    def job_run(self, job_run_id: str) -> JobRunSeen | None:
        request = {"applicationId": self._application_id, "jobRunId": job_run_id}
        with translated(f"job run {job_run_id} cannot be described"):
            found = _unless_gone(lambda: self._client.get_job_run(**request))
        return None if found is None else _job_run(found["jobRun"], job_run_id)

    def cancel(self, job_run_id: str) -> None:
        request = {"applicationId": self._application_id, "jobRunId": job_run_id}
        with translated(f"job run {job_run_id} cannot be cancelled"):
            try:
                self._client.cancel_job_run(**request)
            except ClientError as error:
                if code_of(error) not in (*_GONE, "ValidationException"):  # it has ended
                    raise


@contextmanager
def _refused(failure: str) -> Iterator[None]:
    """As `translated`, but a refusal for a temporary reason (a quota, a role's rights) is retried."""
    with translated(failure):
        try:
            yield
        except ClientError as error:
            if code_of(error) == "ConflictException":
                raise Conflict(f"{failure}: {_message_of(error)}") from error
            passes = code_of(error) in (*_GONE, "ValidationException")
            reason = of_refusal(_message_of(error)) if passes else None
            match reason:
                case None:
                    raise
                case NoCapacity():
                    raise Unavailable(f"{failure}: it {reason.reason}") from error
                case JobFailed():
                    kind = Denied if reason.error_kind is ErrorKind.DENIED else Unavailable
                    raise kind(f"{failure}: it {reason.reason}") from error


def _did_nothing(error: BaseException | None) -> bool:
    """Whether the service refused the request, or was not reached."""
    if isinstance(error, ClientError):
        return error.response["ResponseMetadata"]["HTTPStatusCode"] < 500
    return isinstance(error, ConnectTimeoutError | EndpointConnectionError)


def _created_after(name: str, at_ms: int | None) -> dict[str, datetime]:
    return {} if at_ms is None else {name: datetime.fromtimestamp(at_ms / 1000, UTC)}


def _unless_gone(ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except ClientError as error:
        if code_of(error) in _GONE:
            return None
        raise


def _message_of(error: ClientError) -> str:
    return error.response.get("Error", {}).get("Message", "")


def _cluster(found: Answer) -> ClusterSeen:
    status = found["Status"]
    reason = status.get("StateChangeReason", {})
    return ClusterSeen(
        cluster_id=found["Id"],
        name=found.get("Name", ""),
        state=status["State"],
        code=reason.get("Code", ""),
        message=reason.get("Message", ""),
        error_codes=tuple(each.get("ErrorCode", "") for each in status.get("ErrorDetails", ())),
        created_at_ms=int(status.get("Timeline", {})["CreationDateTime"].timestamp() * 1000),
        tags=MappingProxyType({tag["Key"]: tag.get("Value", "") for tag in found.get("Tags", ())}),
    )


def _step(found: Answer) -> StepSeen:
    failure = found["Status"].get("FailureDetails", {})
    parts = (failure.get("Reason", ""), failure.get("Message", ""))
    return StepSeen(
        state=found["Status"]["State"],
        message=" ".join(filter(None, parts)),
        log_file=failure.get("LogFile", ""),
    )


def _instance(found: Answer) -> InstanceSeen:
    timeline = found["Status"]["Timeline"]
    ended_at = timeline.get("EndDateTime")
    return InstanceSeen(
        instance_type=found.get("InstanceType", ""),
        is_spot=found.get("Market") == "SPOT",
        created_at_ms=int(timeline["CreationDateTime"].timestamp() * 1000),
        ended_at_ms=None if ended_at is None else int(ended_at.timestamp() * 1000),
    )


def _billed(found: Answer) -> ClusterUse | None:
    billed = found.get("billedResourceUtilization")
    if billed is None:
        return None
    return ClusterUse(
        vcpu_hours=billed.get("vCPUHour", 0.0),
        gib_hours=billed.get("memoryGBHour", 0.0),
        disk_gib_hours=billed.get("storageGBHour", 0.0),
    )


def _job_run(found: Answer, job_run_id: str) -> JobRunSeen:
    return JobRunSeen(
        job_run_id=job_run_id,
        name=found.get("name", ""),
        state=found["state"],
        details=found.get("stateDetails", ""),
        created_at_ms=int(found["createdAt"].timestamp() * 1000),
        tags=MappingProxyType(found.get("tags", {})),
        billed=_billed(found),
    )
