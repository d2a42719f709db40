"""`privacy prove` finds a key in logs and published metadata, whatever the type, unit or scale it was written with."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.log.keys import EntryObject
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine
from tests.proofs import prove_many

TABLE = "ACME.SIGHTINGS.V1"
AT, LATER = datetime.fromisoformat("2026-01-01T01:02:03"), datetime.fromisoformat("2027-01-01")
HOUR, LATER_HOUR = time(1, 2, 3), time(2)


@pytest.mark.parametrize(
    ("written", "key", "text"),
    [
        ([pa.array([AT, LATER], pa.timestamp("s"))], AT, "2026-01-01T01:02:03"),
        ([pa.array([AT, LATER], pa.timestamp("ns"))], AT, "2026-01-01T01:02:03"),
        ([pa.array([AT, LATER], pa.timestamp("ms")), pa.array([LATER], pa.timestamp("us"))], AT, "2026-01-01T01:02:03"),
        ([pa.array([AT, LATER], pa.timestamp("s", "Asia/Tokyo"))], AT.replace(tzinfo=UTC), "2026-01-01T01:02:03"),
        ([pa.array([AT, LATER], pa.date32()), pa.array([LATER], pa.date64())], date(2026, 1, 1), '"2026-01-01"'),
        ([pa.array([HOUR, LATER_HOUR], pa.time32("s"))], HOUR, "01:02:03"),
        ([pa.array([HOUR, LATER_HOUR], pa.time64("us"))], HOUR, "01:02:03"),
        ([pa.array([HOUR, LATER_HOUR], pa.time32("ms")), pa.array([LATER_HOUR], pa.time64("ns"))], HOUR, "01:02:03"),
        (
            [pa.array([Decimal("1.50"), Decimal(2)], pa.decimal128(9, 2)), pa.array([3], pa.decimal128(10, 3))],
            Decimal("1.50"),
            '"1.50"',
        ),
        ([pa.array([1.5, 2.5], pa.float32()), pa.array([2.5], pa.float64())], 1.5, ":1.5"),
    ],
)
def test_a_key_of_any_unit_or_scale_is_found_in_the_bounds_of_earlier_ones(
    lake: DeltaCatalog, clock: ManualClock, tmp_path: Path, written: list[pa.Array], key: object, text: str
) -> None:
    properties = {"primary_keys": ["seen"], "private_columns": ["email"], "publish": ["delta"]}
    table = lake.create_table(TABLE, properties=properties)
    for values in written:
        table.append({}, pa.table({"seen": values, "email": ["ann@example"] * len(values)}))
        compact(TABLE, delta_catalog_client=lake, hash_bucket_count=1, engine=UnrulyEngine())
    root = tmp_path / "lake"
    having = {str(path.relative_to(root)) for path in root.rglob("*.json") if text in path.read_text()}
    assert sum("/log/" in path for path in having) >= 2, "of the delta, and of the round"
    (proof,) = prove_many(lake, TABLE, {}, [{"seen": key}], clock)
    assert having <= {holder.key for holder in proof.holders}
    entries = [holder.why for holder in proof.holders if holder.kind == "log entry"]
    assert set(entries) == {"a bound of column 'seen' is the key's value"}


def test_a_bound_that_is_not_of_the_keys_type_may_be_the_key(lake: DeltaCatalog, clock: ManualClock) -> None:
    table = lake.create_table(TABLE, properties={"primary_keys": ["id"], "private_columns": ["email"]})
    table.append({}, pa.table({"id": [4711], "email": ["ann@example"]}))
    table.release_stream_version({}, table.create_stream_version({}))
    table.append({}, pa.table({"id": ["4712"], "email": ["ann@example"]}))
    (proof,) = prove_many(lake, TABLE, {}, [{"id": "4711"}], clock)
    entries = {holder.key: holder.why for holder in proof.holders if holder.kind == "log entry"}
    first = EntryObject(table.stream({}).log.folder, 1).key
    assert entries == {first: "a bound of column 'id' cannot be read, and may be the key's value"}
