"""A stage on EMR Serverless: its dispatchers and job runs do their work with their roles."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.roles.stage import DeployedStage, deployed_stage
from tests.servers import aws_environment

pytestmark = [pytest.mark.servers, pytest.mark.long]

TABLE = "ACME.ORDERS.V1"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedStage]:
    folder = tmp_path_factory.mktemp("serverless")
    with aws_environment(), deployed_stage(folder, is_s3_real=False, example="serverless") as deployed:
        created = deployed.lithify("WriterRole", "table", "create", TABLE)
        assert created.exit_code == 0, created.err
        yield deployed


def submit(stage: DeployedStage, job_run_id: str) -> None:
    document = {"schema_version": "1", "job_run_id": job_run_id, "source_table_id": TABLE, "primary_keys": ["id"]}
    (stage.folder / f"{job_run_id}.json").write_text(json.dumps(document))
    assert stage.append(TABLE, [{"id": 1, "v": job_run_id}]).exit_code == 0
    assert stage.lithify("SenderRole", "submit", f"{job_run_id}.json").exit_code == 0


def test_a_session_is_one_job_run_of_the_application_and_nothing_it_needs_is_denied(stage: DeployedStage) -> None:
    submit(stage, "first")
    dispatched = stage.dispatch_on_emr()
    assert dispatched.exit_code == 0, dispatched.err
    found = stage.lithify("OperatorReadRole", "status", "first", "--output", "json")
    assert found.exit_code == 0, found.err
    assert [each["attempt"] for each in found.json()["sessions"]] == [1]
    assert [each.state for each in stage.emr.serverless.job_runs.values()] == ["SUCCESS"]
    denied = [each for each in stage.gate.denied if each.role != "SenderRole"]
    assert denied == [], "\n".join(map(str, denied))
    used = {action for role, action in stage.gate.used if role == "DispatcherRole" and "emr-serverless" in action}
    assert used >= {f"emr-serverless:{name}" for name in ("StartJobRun", "TagResource", "ListJobRuns", "GetJobRun")}
