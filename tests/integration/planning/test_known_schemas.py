"""What was read for a plan is not read again: neither by the planner nor by the job."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.keys import TableFolder
from compactor.engine.in_process import InProcessEngine
from compactor.model.clock import SystemClock
from compactor.planning import session_input
from compactor.planning.session_planner import measure_session, plan_measured
from compactor.planning.spec import SessionPlan
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from compactor.tabular import TabularFile, read_schema
from launcher.plan import plan_for_cluster
from tests.builders import TABLE_ID, pinned_session
from tests.fakes.attempts import run_attempt
from tests.fakes.faulty_store import FaultyStore


@pytest.fixture
def lake(tmp_path: Path) -> DeltaCatalog:
    return DeltaCatalog(LocalStore(StoreLocation(f"file://{tmp_path / 'lake'}")), SystemClock())


def planned(lake: DeltaCatalog) -> SessionPlan:
    plan = plan_measured(measure_session(pinned_session(lake, TABLE_ID), lake), InProcessEngine().resources())
    return SessionPlan.parse_durable(plan.model_dump_json().encode(), "plan.json")


def schemas_in_job(lake: DeltaCatalog, plan: SessionPlan) -> tuple[tuple[pa.Schema, ...], list[str]]:
    """The schemas that a job gives the pending files, and the files that it opens for them."""
    opened = []

    def schema_of(location: StoreLocation, file: TabularFile, declared: pa.Schema | None) -> pa.Schema:
        opened.append(file.uri)
        return read_schema(location, file, declared)

    session = session_input.read_session_input(plan.spec, lake, schema_of=schema_of, known_schemas=plan.known_schemas)
    return session.schemas, opened


def test_a_job_opens_no_file_for_its_columns(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE_ID)
    table.append({}, pa.table({"id": [1, 2]}))
    table.append({}, pa.table({"id": [2, 3], "name": ["b", "c"]}))
    plan = planned(lake)
    schemas, opened = schemas_in_job(lake, plan)
    assert opened == []
    assert [schema.names for schema in schemas] == [["id"], ["id", "name"]]
    assert schemas == schemas_in_job(lake, plan.model_copy(update={"known_schemas": ()}))[0]


def test_text_is_read_whole_by_the_job_since_a_plan_reads_a_sample(lake: DeltaCatalog, tmp_path: Path) -> None:
    table = lake.create_table(TABLE_ID)
    text = tmp_path / "delta.csv"
    pyarrow.csv.write_csv(pa.table({"id": [1, 2]}), text)
    table.append({}, [str(text)])
    plan = planned(lake)
    assert plan.known_schemas == ()
    assert schemas_in_job(lake, plan)[1] == [text.as_uri()]


def test_schemas_that_are_too_long_for_a_plan_are_read_by_the_job(lake: DeltaCatalog) -> None:
    names = [f"column_{number:0>120}" for number in range(session_input.KNOWN_SCHEMAS_BYTES_MAX // 120)]
    lake.create_table(TABLE_ID).append({}, pa.table({"id": [1], **{name: [1] for name in names}}))
    plan = planned(lake)
    assert plan.known_schemas == ()
    assert len(schemas_in_job(lake, plan)[1]) == 1


def test_a_session_with_known_schemas_leaves_the_same_rows(lake: DeltaCatalog) -> None:
    table = lake.create_table(TABLE_ID)
    table.append({}, pa.table({"id": [1, 2], "name": ["a", "b"]}))
    compact(TABLE_ID, {"id"}, delta_catalog_client=lake)
    table.append({}, pa.table({"id": [2, 3], "name": ["B", "c"], "more": [1.5, 2.5]}))
    plan = planned(lake)
    assert len(plan.known_schemas) == 1
    run_attempt(plan, lake, lake.store, InProcessEngine(), 1, SystemClock())
    rows = table.scan().to_table().to_pylist()
    assert sorted(rows, key=lambda row: int(row["id"])) == [
        {"id": 1, "name": "a", "more": None},
        {"id": 2, "name": "B", "more": 1.5},
        {"id": 3, "name": "c", "more": 2.5},
    ]


def test_a_launcher_s_plan_reads_the_definition_of_a_table_once(tmp_path: Path) -> None:
    store = FaultyStore(LocalStore(StoreLocation(f"file://{tmp_path / 'lake'}")))
    lake = DeltaCatalog(store, SystemClock())
    lake.create_table(TABLE_ID).append({}, pa.table({"id": [1, 2]}))
    spec = planned(lake).spec
    store.requests.clear()
    assert isinstance(plan_for_cluster(spec, lake, InProcessEngine().resources()), SessionPlan)
    definition = TableFolder(TABLE_ID).definition_log
    read = [key for verb, key in store.requests if verb == "read" and key.startswith(f"{definition}/")]
    assert len(read) == len(set(read)), read
