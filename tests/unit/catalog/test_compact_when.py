"""The policy of a table: what is refused, and how it is written."""

from __future__ import annotations

import json

import pytest

from compactor.catalog.compact_when import SHORTEST_BOUND_SECONDS, CompactWhen, Preset, Window, policy_json_schema
from compactor.catalog.feed import parse_feed
from compactor.catalog.properties import TableProperties, value_of_text
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import Invalid
from compactor.planning.sizing import SESSION_SECONDS
from compactor.storage.location import StoreLocation
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

ORDERS = "ACME.ORDERS.V1"
NIGHT = {"cron": "0 1 * * *", "time_zone": "Europe/Zurich", "seconds": 3_600}


@pytest.fixture
def orders() -> Table:
    lake = DeltaCatalog(MemoryStore(ManualClock(), StoreLocation("file:///nowhere")), ManualClock())
    return lake.create_table(ORDERS, ["day"], primary_keys={"id"}, properties={"compact_when": "streaming"})


def test_a_preset_is_set_by_its_name(orders: Table) -> None:
    assert orders.properties.compact_when == CompactWhen(preset=Preset.STREAMING)
    text = orders.properties.model_dump_json()
    assert json.loads(text)["compact_when"] == {"preset": "streaming"}
    assert TableProperties.model_validate_json(text) == orders.properties


def test_bounds_are_set_as_json_of_the_command_line(orders: Table) -> None:
    given = {"lag_seconds": 300, "windows": [NIGHT], "at_latest_seconds": 86_400, "usd_per_day": 1.5}
    orders.set_properties({"compact_when": value_of_text("compact_when", json.dumps(given))})
    found = orders.properties.compact_when
    assert found is not None
    assert found.model_dump(mode="json") == given
    assert found.windows == (Window(cron="0 1 * * *", time_zone="Europe/Zurich", seconds=3_600),)


def test_a_policy_is_removed_like_every_property(orders: Table) -> None:
    orders.set_properties({"compact_when": None})
    assert orders.properties.compact_when is None


REFUSED: list[tuple[object, str]] = [
    ("hourly", "compact_when.preset is \"hourly\": it must be 'upsolver'"),
    ({"lag": 300}, "compact_when.lag: there is no such field"),
    ({"windows": [{"cron": "0 2 * * *"}]}, "compact_when.windows[0].seconds is missing"),
    ({}, "compact_when has no bound that can make a stream due"),
    ({"usd_per_day": 3.0}, "no bound that can make a stream due"),
    ({"lag_seconds": 4}, "compact_when.lag_seconds is 4: a session takes 5 seconds or more"),
    ({"every": 1}, "compact_when.every is 1: a session takes 5 seconds or more"),
    ({"lag_seconds": 0}, "compact_when.lag_seconds is 0"),
    ({"lag_seconds": 300, "not_before_seconds": 301}, "lag_seconds is 300, and not_before_seconds 301"),
    ({"every": 300, "not_before_seconds": 301}, "every is 300, and not_before_seconds 301"),
    ({"pending_rows": 1, "windows": [{**NIGHT, "cron": "0 1 30 2 *"}]}, "windows[0]: cron '0 1 30 2 *' names no day"),
    ({"pending_rows": 1, "windows": [{**NIGHT, "time_zone": "CEST?"}]}, "windows[0]: time zone 'CEST?'"),
    ({"pending_rows": 1, "windows": [{**NIGHT, "seconds": 59}]}, "compact_when.windows[0].seconds is 59"),
    ({"pending_rows": 1, "windows": [{"cron": "0 1 * * *"}]}, "compact_when.windows[0].seconds"),
    ({"pending_rows": 1, "at_latest_seconds": 60}, "at_latest_seconds is for a policy with windows"),
    (
        {"lag_seconds": 300, "at_latest_seconds": 300, "windows": [NIGHT]},
        "at_latest_seconds is 300, and lag_seconds 300: no window would ever be waited for",
    ),
    ({"preset": "nightly", "pending_rows": 5}, "preset is nightly, which says all: leave out pending_rows"),
    ({"preset": "nightly", "usd_per_day": 5.0}, "leave out usd_per_day"),
    ({"preset": "streaming", "ratio": 3.0}, "leave out ratio"),
    ({"ratio": 3.0, "pending_rows": 5}, "ratio is that of the preset size_ratio"),
    ({"preset": "size_ratio", "ratio": 0.5}, "compact_when.ratio is 0.5"),
    ({"preset": "size_ratio", "ratio": 1.0}, "compact_when.ratio is 1"),
    ({"dead_row_share": 1.1}, "compact_when.dead_row_share is 1.1"),
    ({"small_files": 1}, "compact_when.small_files is 1"),
    ({"pending_rows": 1, "max_usd": 3.0, "usd_per_day": 2.0}, "max_usd is 3, and usd_per_day 2"),
    ([1], "compact_when is [1]"),
]


@pytest.mark.parametrize(("policy", "reason"), REFUSED)
def test_a_contradiction_is_refused_and_leaves_the_old_policy_in_force(
    orders: Table, policy: object, reason: str
) -> None:
    with pytest.raises(Invalid) as refused:
        orders.set_properties({"compact_when": policy})
    assert reason in str(refused.value)
    assert orders.properties.compact_when == CompactWhen(preset=Preset.STREAMING)


def test_every_reason_against_a_policy_is_told_at_once(orders: Table) -> None:
    with pytest.raises(Invalid) as refused:
        orders.set_properties({"compact_when": {"lag_seconds": 2, "windows": [{**NIGHT, "cron": "0 1"}], "ratio": 2.0}})
    assert len(refused.value.reasons) == 3


def test_a_table_without_keys_takes_no_policy_but_manual(orders: Table) -> None:
    with pytest.raises(Invalid, match="the keeper's instructions name no keys"):
        orders.set_properties({"primary_keys": None})
    orders.set_properties({"primary_keys": None, "compact_when": "manual"})
    assert orders.properties.compact_when == CompactWhen(preset=Preset.MANUAL)


@pytest.mark.parametrize("bound", [{"small_files": 20}, {"small_file_share": 0.5}])
def test_a_bound_of_small_files_is_refused_where_none_is_merged(orders: Table, bound: dict[str, float]) -> None:
    with pytest.raises(Invalid, match=f"{next(iter(bound))} waits for small files, and merge_small_files is 0"):
        orders.set_properties({"compact_when": bound, "merge_small_files": 0})
    orders.set_properties({"compact_when": bound})
    with pytest.raises(Invalid, match="merge_small_files is 0"):
        orders.set_properties({"merge_small_files": 0})
    few = {"compact_when": {"small_files": 5}}
    with pytest.raises(Invalid, match="small_files is 5, and a compaction merges none before there are 8: set merge"):
        orders.set_properties(few)
    orders.set_properties({**few, "merge_small_files": 5})
    share = {"compact_when": {"small_file_share": 0.1}, "merge_small_files_share": 0.2}
    with pytest.raises(
        Invalid, match=r"small_file_share is 0\.1, and a compaction merges none before they are 0\.2 of all"
    ):
        orders.set_properties(share)
    orders.set_properties({**share, "merge_small_files_share": 0.1})


def test_a_field_that_stands_twice_is_refused() -> None:
    text = '{"lag_seconds": 60, "usd_per_day": 5, "lag_seconds": 600, "usd_per_day": 500}'
    with pytest.raises(Invalid) as refused:
        value_of_text("compact_when", text)
    assert refused.value.reasons == (
        'compact_when: field "lag_seconds" stands more than once',
        'compact_when: field "usd_per_day" stands more than once',
    )
    with pytest.raises(Invalid, match='changes: field "format" stands more than once'):
        parse_feed('{"format": "dms", "format": "ops"}')


def test_a_session_takes_as_long_as_its_plan_says() -> None:
    assert SHORTEST_BOUND_SECONDS == SESSION_SECONDS


PRESETS_SAY = [
    (Preset.STREAMING, {"lag_seconds": 300, "not_before_seconds": 60}),
    (
        Preset.NIGHTLY,
        {"pending_deltas": 1, "not_before_seconds": 14_400, "windows": [{"cron": "0 1 * * *", "seconds": 14_400}]},
    ),
]


@pytest.mark.parametrize(("preset", "fields"), PRESETS_SAY)
def test_a_preset_stands_for_its_fields(preset: Preset, fields: dict[str, object]) -> None:
    assert CompactWhen(preset=preset).resolved.model_dump(mode="json", exclude_unset=True) == fields


def test_the_schema_of_policies_names_every_field() -> None:
    schema = policy_json_schema()
    properties = schema["properties"]
    assert isinstance(properties, dict)
    assert set(properties) == set(CompactWhen.model_fields)
    assert schema["additionalProperties"] is False
