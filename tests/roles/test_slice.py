"""The keeper and the ingest do their work under their roles; `make test-roles` has the other parts, for weeks."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from compactor import DeltaCatalog
from compactor.model.clock import SystemClock
from compactor.storage.location import StoreLocation
from compactor.storage.opening import open_store
from tests.roles.policies import REGION
from tests.roles.stage import Answer, DeployedStage, deployed_stage
from tests.servers import aws_environment

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TABLE = "ACME.ORDERS.V1"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedStage]:
    """With a table whose streams have hints."""
    with aws_environment(), deployed_stage(tmp_path_factory.mktemp("stage"), is_s3_real=False) as deployed:
        lake = DeltaCatalog(open_store(StoreLocation(deployed.lake, deployed.direct_s3_url, REGION)), SystemClock())
        policy = {"lag_seconds": 5, "pending_rows": 2}
        lake.create_table(TABLE, primary_keys=["id"], properties={"news_hints": True, "compact_when": policy})
        yield deployed


def look_of(kept: Answer) -> dict[str, object]:
    """The line that a run of the keeper ends with."""
    look: dict[str, object] = json.loads(kept.out.splitlines()[-1])
    return look


def test_the_keeper_has_a_table_compacted_by_its_policy_and_samples_its_lag(stage: DeployedStage) -> None:
    assert stage.append(TABLE, [{"id": 3, "v": "c"}, {"id": 4, "v": "d"}], days=9).exit_code == 0
    kept = stage.keep(days=9)
    assert kept.exit_code == 0, kept.err
    assert '"TablesWatched": 1' in kept.out
    look = look_of(kept)
    assert (look["decided"], look["sent"]) == (1, 1)
    dispatched = stage.dispatch(days=9)
    assert dispatched.exit_code == 0, dispatched.err
    assert hints(stage) == []
    assert look_of(stage.keep(days=9.1))["ended"] == 1
    assert stage.keys("State", "state/history/lag")
    assert [each for each in stage.gate.denied if each.role != "SenderRole"] == [], "\n".join(
        map(str, stage.gate.denied)
    )


def test_the_ingest_appends_what_a_register_document_names_quarantines_rows_and_refuses_what_it_cannot_read(
    stage: DeployedStage,
) -> None:
    lake = DeltaCatalog(open_store(StoreLocation(stage.lake, stage.direct_s3_url, REGION)), SystemClock())
    folder, quarantine = (f"s3://{stage.bucket('Lakes')}/lake/{name}/" for name in ("landing", "quarantine"))
    properties = {"landing": [folder], "quarantine": quarantine, "news_hints": True}
    table = lake.create_table("ACME.VISITS.V1", ["day"], primary_keys=["id"], properties=properties)
    sqs, s3 = stage.client("sqs", "SenderRole"), stage.client("s3")
    for name, body in (("1.csv", b"id,day,v\n1,1,a\n2,1,b\n3,,c\n"), ("2.csv", b"")):
        s3.put_object(Bucket=stage.bucket("Lakes"), Key=f"lake/landing/{name}", Body=body)
        document = json.dumps({"register": {"files": [f"{folder}{name}"]}})
        sqs.send_message(QueueUrl=stage.queue_url("Announcements"), MessageBody=document)
    stage.gate.denied.clear()
    taken = stage.take_in()
    assert "1 file taken in, 2 rows; 1 refused.\n1 row quarantined." in taken.out, taken.err
    assert sorted(row["id"] for row in table.scan(view="merged").to_table().to_pylist()) == [1, 2]
    assert len(stage.keys("Lakes", "lake/quarantine/ACME.VISITS.V1/")) == 1

    table.drop_partitions({"day": "1"}, dry_run=False)
    s3.put_object(Bucket=stage.bucket("Lakes"), Key="lake/landing/3.csv", Body=b"id,day,v\n4,1,d\n")
    document = json.dumps({"register": {"files": [f"{folder}3.csv"]}})
    sqs.send_message(QueueUrl=stage.queue_url("Announcements"), MessageBody=document)
    taken = stage.take_in()
    assert "1 file taken in, 1 row" in taken.out, taken.err
    assert [row["id"] for row in table.scan(view="merged").to_table().to_pylist()] == [4]

    (stage.folder / "changes.json").write_text(
        '{"op": "u", "id": 5, "day": 1, "v": "e"}\n{"op": "no such", "id": 6, "day": 1, "v": "f"}\n'
    )
    changed = stage.lithify("WriterRole", "table", "append", "ACME.VISITS.V1", "changes.json", "--changes", "ops")
    assert changed.exit_code == 0, changed.err
    assert "1 change quarantined in " in changed.out
    assert stage.gate.denied == [], "\n".join(map(str, stage.gate.denied))


def test_the_keeper_gives_hints_to_a_table_that_gets_a_policy_later(stage: DeployedStage) -> None:
    lake = DeltaCatalog(open_store(StoreLocation(stage.lake, stage.direct_s3_url, REGION)), SystemClock())
    later = lake.create_table("ACME.LATER.V1", ["day"], primary_keys=["id"])
    later.append({"day": "1"}, pa.table({"id": [1]}))
    later.set_properties({"compact_when": {"pending_rows": 2}})
    stage.gate.denied.clear()
    for days in (30.0, 45.0):
        kept = stage.keep(days=days)
        assert kept.exit_code == 0, kept.err
    assert lake.table("ACME.LATER.V1").properties.news_hints
    assert len(stage.keys("Lakes", "lake/tables/ACME.LATER.V1/news/")) == 1
    assert stage.gate.denied == [], "\n".join(map(str, stage.gate.denied))


def hints(stage: DeployedStage) -> list[str]:
    return stage.keys("Lakes", f"lake/tables/{TABLE}/news/")
