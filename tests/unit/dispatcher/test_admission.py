"""What a document may name: by default the dispatcher's own lake and topic, and whatever its settings allow beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import compact
from compactor.events.relay import EventSink
from compactor.model.errors import Invalid
from compactor.planning.session_planner import PinnedSession
from compactor.planning.session_streams import PendingWork
from compactor.storage.location import StoreLocation
from dispatcher.intake.admission import Admission
from dispatcher.intake.instruction import InstructionDocument
from dispatcher.intake.intake import Accepted, Rejected
from tests.fakes.dispatch_desk import TABLE, Desk, instruction
from tests.fakes.manual_clock import ManualClock
from tests.plans import a_run, a_session

OWN = StoreLocation("s3://own/lake")
TOPIC = "arn:aws:sns:us-east-1:123456789012:events"
REGIONS = {"aws": frozenset({"us-east-1"})}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, clock=ManualClock())
    yield desk
    desk.close()


def refusals(admission: Admission, lake: str = OWN.root_uri, **fields: object) -> list[str]:
    document = InstructionDocument.model_validate_json(
        InstructionDocument(schema_version="1", source_table_id=TABLE, primary_keys=("id",))
        .model_copy(update=fields)
        .model_dump_json()
    )
    return list(admission.refusals(document, StoreLocation(lake)))


@pytest.mark.parametrize(
    ("lakes", "lake", "allowed"),
    [
        ((), "s3://own/lake", True),
        ((), "s3://own/lake/below", False),
        ((), "s3://own/lake2", False),
        ((), "file:///own/lake", False),
        (("s3://team",), "s3://team/a/b", True),
        (("s3://team/",), "s3://team", True),
        (("s3://team",), "s3://team2/a", False),
        (("s3://",), "s3://any/thing", True),
        (("s3://",), "file:///etc", False),
        (("file:///lakes",), "file:///lakes/../etc", False),
        (("file:///",), "file:///anything", True),
    ],
)
def test_a_lake_is_the_own_one_or_lies_below_an_allowed_folder(
    lakes: tuple[str, ...], lake: str, allowed: bool
) -> None:
    found = refusals(Admission(own_lake=OWN, lakes=lakes), lake)
    assert found == ([] if allowed else [found[0]])
    assert allowed or "--allow-lake" in found[0]


def test_source_and_destination_are_both_looked_up_among_the_allowed_tables() -> None:
    admission = Admission(own_lake=OWN, tables=("ACME.ORDERS.V1", "REPORTS.*"))
    assert refusals(admission) == []
    assert refusals(admission, destination_compacted_table_id="REPORTS.X.V1") == []
    (reason,) = refusals(admission, destination_compacted_table_id="ACME.ORDERS.V12")
    assert "table ACME.ORDERS.V12 is not allowed here" in reason
    assert len(refusals(admission, source_table_id="X.Y.V1", destination_compacted_table_id="X.Z.V1")) == 2


def test_a_topic_is_the_own_one_or_an_allowed_one_in_a_region_that_exists() -> None:
    admission = Admission(own_lake=OWN, own_topic=TOPIC, topics=("arn:aws:sns:*",), sns_regions=REGIONS)
    assert refusals(admission, sns_event_topic_arn=TOPIC) == []
    assert refusals(admission, sns_event_topic_arn=f"{TOPIC}-of-a-team") == []
    nowhere = TOPIC.replace("us-east-1", "us-nowhere-1")
    (reason,) = refusals(admission, sns_event_topic_arn=nowhere)
    assert "AWS partition aws has no us-nowhere-1" in reason
    (reason,) = refusals(Admission(own_lake=OWN, own_topic=TOPIC), sns_event_topic_arn=f"{TOPIC}-evil")
    assert "is not allowed here" in reason


@pytest.mark.parametrize(
    "admission",
    [
        Admission(),
        Admission(own_lake=OWN, own_topic="arn:aws:sns:-:123456789012:a"),
        Admission(own_lake=OWN, own_topic=f"{TOPIC}.fifo"),
        Admission(own_lake=OWN, topics=(TOPIC.replace("us-east-1", "us-nowhere-1"),), sns_regions=REGIONS),
    ],
)
def test_settings_that_no_document_can_work_with_are_refused_at_start(admission: Admission) -> None:
    with pytest.raises(Invalid):
        admission.check()


def session_with(*uris: str) -> PinnedSession:
    spec = a_session(a_run(TABLE, lake=OWN))
    return PinnedSession(spec, PendingWork(delta_files=len(uris)), 0, 1, uris_outside_lake=uris)


def test_a_lake_on_s3_names_files_outside_of_it_only_where_they_are_allowed() -> None:
    session = session_with("file:///etc/passwd", "s3://own/lake/x", "s3://own/lake2/x", "s3://landing/a/b.parquet")
    found = list(Admission(own_lake=OWN, files=("s3://landing/a",)).file_refusals(OWN, [session]))
    assert [each.partition(",")[0] for each in found] == ["file:///etc/passwd", "s3://own/lake2/x"]
    assert "--allow-files file:///etc, or take the delta back (lithify table retract) and append" in found[0]
    in_a_folder = StoreLocation("file:///data/lake")
    assert list(Admission(own_lake=in_a_folder).file_refusals(in_a_folder, [session])) == []


def test_a_refusal_is_a_dead_letter_and_an_event_to_the_own_topic(desk: Desk) -> None:
    topics: list[str | None] = []

    def sink_for(topic: str | None) -> EventSink:
        topics.append(topic)
        return desk.sink

    desk = desk.second(sink_for=sink_for)
    desk.append([{"id": 1}])
    message_id = desk.send(instruction(sns_event_topic_arn=TOPIC, delta_catalog="s3://somebody/else"))
    (rejected,) = desk.take()
    assert isinstance(rejected, Rejected)
    assert len(rejected.reasons) == 2
    assert len(desk.queue.dead_letters().bodies) == 1
    desk.publish(message_id)
    assert desk.sink.names == ["job_run.rejected"]
    assert set(topics) == {None}


# ----------------------------------------------------------------------------------------------- destinations


def test_a_destination_is_the_source_or_empty_or_already_its_compaction(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.append([{"id": 1}], table="ACME.OTHERS.V1")
    desk.lake.create_table("ACME.EMPTY.V1")
    desk.send(instruction(destination_compacted_table_id="ACME.OTHERS.V1"))
    desk.send(instruction(destination_compacted_table_id="ACME.EMPTY.V1"))
    desk.send(instruction(destination_compacted_table_id="ACME.NEW.V1"))
    refused, empty, new = desk.take()
    assert isinstance(refused, Rejected)
    assert "ACME.OTHERS.V1 (unpartitioned) holds deltas of its own: choose another destination" in refused.reasons[0]
    assert isinstance(empty, Accepted)
    assert isinstance(new, Accepted)


def test_a_destination_that_holds_another_table_s_compaction_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.append([{"id": 1}])
    desk.append([{"id": 1}], table="ACME.OTHERS.V1")
    desk.accept(destination_compacted_table_id="ACME.CLEAN.V1")
    desk.run()
    desk.send(instruction(source_table_id="ACME.OTHERS.V1", destination_compacted_table_id="ACME.CLEAN.V1"))
    desk.append([{"id": 2}])
    desk.send(instruction(destination_compacted_table_id="ACME.CLEAN.V1"))
    desk.send(instruction(destination_compacted_table_id="ACME.CLEAN.V1", primary_keys=["id", "v"]))
    desk.append([{"id": 2, "v": "a"}])
    others, again, other_keys = desk.take()
    desk.close()
    assert isinstance(others, Rejected)
    assert "holds the compaction of ACME.ORDERS.V1" in others.reasons[0]
    assert isinstance(again, Accepted)
    assert isinstance(other_keys, Rejected)
    assert "the index was built for primary keys ['id'], not ['id', 'v']" in other_keys.reasons[0]


def test_compact_refuses_a_destination_as_the_dispatcher_does(desk: Desk) -> None:
    desk.append([{"id": 1}])
    desk.append([{"id": 1}], table="ACME.OTHERS.V1")
    before = [entry.key for entry in desk.lake.store.list("")]
    with pytest.raises(Invalid, match=r"ACME\.OTHERS\.V1 \(unpartitioned\) holds deltas of its own"):
        compact(TABLE, {"id"}, delta_catalog_client=desk.lake, destination_compacted_table_id="ACME.OTHERS.V1")
    with pytest.raises(Invalid, match="hash_bucket_count is 1,000,001: at most 1,000,000 are allowed"):
        compact(TABLE, {"id"}, delta_catalog_client=desk.lake, hash_bucket_count=1_000_001)
    assert [entry.key for entry in desk.lake.store.list("")] == before


def test_a_new_partition_is_not_compacted_over_deltas_that_others_put_there(desk: Desk) -> None:
    source = desk.lake.create_table("ACME.DAYS.V1", ["day"])
    target = desk.lake.create_table("ACME.CLEAN.V1", ["day"])
    source.append({"day": "2"}, pa.table({"id": [1]}))
    target.append({"day": "1"}, pa.table({"id": [1]}))
    desk.send(instruction(source_table_id="ACME.DAYS.V1", destination_compacted_table_id="ACME.CLEAN.V1"))
    (refused,) = desk.take()
    assert isinstance(refused, Rejected)
    assert "ACME.CLEAN.V1 day=1 holds deltas of its own" in refused.reasons[0]


# ----------------------------------------------------------------------------------------------- files in all


def test_rows_per_file_may_be_anything_that_makes_no_more_than_a_million_files(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "many.parquet"
    pq.write_table(pa.table({"id": pa.array(range(1_000_001), pa.int32())}), file)
    desk.lake.create_table(TABLE).append({}, [file])
    desk.send(instruction(rows_per_compacted_file=1, rows_per_primary_key_index_file=1))
    desk.send(instruction(rows_per_compacted_file=2, rows_per_primary_key_index_file=2))
    refused, accepted = desk.take()
    assert isinstance(refused, Rejected)
    too_many = "1,000,001 rows would make up to 1,000,001 files, and at most 1,000,000 are allowed: give 2 or more"
    assert refused.reasons == (
        f"rows_per_compacted_file is 1: {too_many}",
        f"rows_per_primary_key_index_file is 1: {too_many}",
    )
    assert isinstance(accepted, Accepted)


def test_as_many_partitions_as_a_document_may_name_are_looked_up_by_one_listing(desk: Desk) -> None:
    desk.lake.create_table("ACME.DAYS.V1", ["day"]).append({"day": "1"}, pa.table({"id": [1]}))
    desk.send(instruction(source_table_id="ACME.DAYS.V1", partitions=[{"day": str(day)} for day in range(10_000)]))
    (refused,) = desk.take()
    assert isinstance(refused, Rejected)
    assert len(refused.reasons) == 101
    assert refused.reasons[0].startswith("ACME.DAYS.V1 has no partition day=0: there are day=1")
    assert refused.reasons[-1] == "and 9,899 more"
