"""FORMAT.md says what the code does: its examples are read and written back, its tables are tried."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_json

from compactor.catalog.actions import RoundCommitted, StreamAction, StreamVersionCreated
from compactor.catalog.checkpoint import SCHEMA, describe, restore
from compactor.catalog.definition import TABLE_LOG, TableAction
from compactor.catalog.properties import GRACE_SECONDS, NAMES
from compactor.catalog.retired import id_digest
from compactor.catalog.stream import STREAM_LOG
from compactor.log.checkpoints import CheckpointHead
from compactor.log.durable_log import CHECKPOINT_ENTRIES, DurableLog
from compactor.log.entries import ENTRY_BYTES_MAX, WITH_LISTS_FORMAT
from compactor.log.long_lists import ListsBeside, LongLists
from compactor.model.files import DeletionVector
from compactor.model.names import LifecycleState
from compactor.schemas.unify import parse_schema
from compactor.storage.keys import PART_BYTES_MAX, encode, encode_partition
from dispatcher.records.liveness import SignOfLife
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

FORMAT = (files("compactor.catalog") / "FORMAT.md").read_text()


def examples(kind: str) -> list[str]:
    found: list[str] = re.findall(rf"```json {kind}\n(.*?)```", FORMAT, re.DOTALL)
    return found


@pytest.mark.parametrize("example", examples("stream"))
def test_every_stream_action_reads_and_writes_as_its_example(example: str) -> None:
    action = STREAM_LOG.action_type.validate_json(example)
    written = json.loads(to_json(action))
    # A field at its default may be left out.
    assert STREAM_LOG.action_type.validate_json(to_json(written)) == action
    assert json.loads(example).items() <= {**written, **_with_defaults_left_out(written)}.items()


def _with_defaults_left_out(written: dict[str, object]) -> dict[str, object]:
    """Examples leave out what the log does not say of a file."""
    return {
        name: [{field: value for field, value in file.items() if value not in ({}, None, [])} for file in files]
        for name, files in written.items()
        if name in ("files", "files_added") and isinstance(files, list)
    }


def test_every_kind_of_stream_action_has_an_example() -> None:
    schema = TypeAdapter(StreamAction).json_schema()
    kinds = set(schema["discriminator"]["mapping"])
    assert {json.loads(example)["action"] for example in examples("stream")} == kinds


def test_the_example_of_a_round_leaves_no_field_out() -> None:
    (example,) = (example for example in examples("stream") if "round_committed" in example)
    assert set(json.loads(example)) == set(RoundCommitted.model_fields)
    assert parse_schema(json.loads(example)["compacted_schema"]).names == ["order_id"]


def test_the_example_of_a_deletion_vector_reads_and_writes() -> None:
    (example,) = examples("deletion_vector")
    assert json.loads(to_json(DeletionVector.model_validate_json(example))) == json.loads(example)


@pytest.mark.parametrize("example", examples("table"))
def test_every_table_action_reads_and_writes_as_its_example(example: str) -> None:
    action = TABLE_LOG.action_type.validate_json(example)
    assert json.loads(to_json(action)) == json.loads(example)


def test_every_kind_of_table_action_has_an_example() -> None:
    kinds = set(TypeAdapter(TableAction).json_schema()["discriminator"]["mapping"])
    assert {json.loads(example)["action"] for example in examples("table")} == kinds


def test_every_property_of_a_table_is_in_the_example_and_in_the_text() -> None:
    (example,) = (example for example in examples("table") if "table_properties_set" in example)
    assert set(json.loads(example)["properties"]) == set(NAMES)
    section = FORMAT[FORMAT.index("## 5.") : FORMAT.index("## 6.")]
    described = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)))
    assert set(described) == set(NAMES)
    assert f"(absent: {GRACE_SECONDS:,})" in section


def test_the_example_of_an_entry_reads_and_writes_under_its_key() -> None:
    example, _ = examples("entry")
    store = MemoryStore(ManualClock())
    body = json.loads(example)
    store.put_if_absent(f"log/{body['entry_number']:020d}.json", example.encode())
    entry = DurableLog(store, "log", STREAM_LOG, ManualClock()).entry(body["entry_number"])
    assert (entry.entry_id, entry.at_ms, len(entry.actions)) == (body["entry_id"], body["at_ms"], 1)


def test_the_example_of_an_entry_without_its_lists_says_where_they_belong() -> None:
    _, example = examples("entry")
    body = json.loads(example)
    assert body["format"] == WITH_LISTS_FORMAT
    assert json.loads(ListsBeside.model_validate_json(json.dumps(body["lists"])).render()) == body["lists"]
    (rows,) = body["lists"]["rows"]
    place, field = rows["list"].split("/")
    assert body["actions"][int(place)][field] == []
    columns = {column for column, _ in (STREAM_LOG.long_lists or LongLists(dict)).columns.values()}
    described = FORMAT[FORMAT.index("a column for each kind of element") :].partition(". A reader")[0]
    assert columns < set(re.findall(r"`(\w+)`", described))
    assert f"more than {ENTRY_BYTES_MAX:,} bytes" in FORMAT


def test_the_example_of_a_hint_is_what_is_written() -> None:
    (example,) = examples("hint")
    store, clock = MemoryStore(ManualClock()), ManualClock()
    log = DurableLog(store, "log", STREAM_LOG, clock)
    log.write_checkpoint(
        log.append(lambda _: [StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE)]).after
    )
    body = store.read("log/_last_checkpoint")
    assert body is not None
    assert json.loads(body).keys() == json.loads(example).keys()


def test_the_example_of_a_checkpoint_reads_and_writes_and_its_state_is_a_streams() -> None:
    (example,) = examples("checkpoint")
    head = CheckpointHead.parse_durable(example.encode(), "example")
    assert json.loads(head.render()) == json.loads(example)
    assert restore(head.state, {}).sources[1].last_position == 1795228500617
    assert describe(restore(head.state, {})).state == head.state


def test_digests_of_retired_ids_are_as_the_table_says() -> None:
    vectors = re.findall(r"^\| `([^`]+)` \| ([0-9]+) \|$", FORMAT, re.MULTILINE)
    assert len(vectors) == 2
    for delta_id, digest in vectors:
        assert id_digest(delta_id) == int(digest)


def test_the_example_of_a_sign_of_life_is_what_is_written() -> None:
    (example,) = examples("sign_of_life")
    assert json.loads(SignOfLife.parse_durable(example.encode(), "example").render()) == json.loads(example)


def test_the_encoded_names_are_as_the_table_says() -> None:
    assert encode("ACME.ORDERS.V1") == "ACME.ORDERS.V1"
    assert encode("..") == "%2E."
    assert encode("") == "%"
    assert encode("a/b ü") == "a%2Fb%20%C3%BC"
    partition = {"region": "North America", "order_day": "1995-04-03"}
    assert encode_partition(partition) == "region=North%20America,order_day=1995-04-03"
    assert encode_partition({"region": ""}) == "region=%"
    assert encode("x" * 198 + ".yz") == "x" * 198 + "%2~/Eyz"


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    assert f"longer than {PART_BYTES_MAX} bytes" in FORMAT
    assert f"every multiple of {CHECKPOINT_ENTRIES} entries" in FORMAT


def test_the_columns_of_a_checkpoint_are_those_of_the_table() -> None:
    described = re.findall(r"^\| `(\w+)` \| (?:one|at most one)[ ,]", FORMAT, re.MULTILINE)
    assert described == SCHEMA.names
