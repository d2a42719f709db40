"""Files outside of the lake, where the stage allows it: who appends them, and who compacts them, reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.roles.stage import DeployedStage, deployed_stage

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.long]

TABLE = "ACME.ORDERS.V1"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedStage]:
    """It allows s3://landing/orders; the table says more, so that the roles decide."""
    with deployed_stage(tmp_path_factory.mktemp("stage"), is_s3_real=False, example="serverless") as deployed:
        deployed.client("s3").create_bucket(Bucket="landing")
        assert deployed.lithify("WriterRole", "table", "create", TABLE).exit_code == 0
        allowed = deployed.lithify("OperatorActRole", "table", "set", TABLE, "allow_files=s3://landing")
        assert allowed.exit_code == 0, allowed.err
        yield deployed


def landed(stage: DeployedStage, key: str) -> str:
    pq.write_table(pa.table({"id": [1, 2], "v": ["a", "b"]}), stage.folder / "rows.parquet")
    stage.client("s3").upload_file(str(stage.folder / "rows.parquet"), "landing", key)
    return f"s3://landing/{key}"


def test_files_below_an_allowed_folder_are_appended_and_compacted_where_they_lie(stage: DeployedStage) -> None:
    appended = stage.lithify("WriterRole", "table", "append", TABLE, landed(stage, "orders/1.parquet"))
    assert appended.exit_code == 0, appended.err
    document = {"schema_version": "1", "job_run_id": "one", "source_table_id": TABLE, "primary_keys": ["id"]}
    (stage.folder / "one.json").write_text(json.dumps(document))
    assert stage.lithify("SenderRole", "submit", "one.json").exit_code == 0
    dispatched = stage.dispatch()
    assert dispatched.exit_code == 0, dispatched.err
    found = stage.lithify("OperatorReadRole", "status", "one", "--output", "json").json()
    assert (found["status"], [each["attempt"] for each in found["sessions"]]) == ("succeeded", [1]), found
    others = [each for each in stage.gate.denied if each.role != "SenderRole"]
    assert others == [], "\n".join(map(str, others))


def test_files_elsewhere_in_that_bucket_are_refused_at_the_append(stage: DeployedStage) -> None:
    refused = stage.lithify("WriterRole", "table", "append", TABLE, landed(stage, "salaries/1.parquet"))
    assert refused.exit_code == 1
    assert "s3://landing/salaries/1.parquet" in refused.err
