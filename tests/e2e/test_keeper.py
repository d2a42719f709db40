"""`lithify keeper` beside a queue, and the dispatcher that takes what it sends."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Command
from tests.e2e.conftest import House, Mailroom
from tests.fakes.dispatch_desk import TABLE
from tests.servers import REGION

pytestmark = pytest.mark.servers


def test_what_is_due_is_compacted_and_the_log_says_what_it_took(
    house: House, mailroom: Mailroom, command: Command
) -> None:
    house.append([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    house.lake.table(TABLE).set_properties({"primary_keys": ["id"], "compact_when": {"pending_rows": 2}})
    places = ("--lake", str(house.folder / "lake"), "--state", str(house.folder / "state"))
    once = ("keeper", "--once", *places, "--queue-url", mailroom.queue_url, "--output", "json")
    services = ("--endpoint-url", mailroom.endpoint_url, "--region", REGION)
    looked = json.loads(command(*once, *services).out)
    assert (looked["decided"], looked["sent"], looked["open"]) == (1, 1, 1)
    assert looked["upkeep"]["steps"] == ["hints", "garbage", "state", "publication"]
    house.dispatch()
    looked = json.loads(command(*once, *services).out)
    assert (looked["decided"], looked["ended"], looked["open"]) == (0, 1, 0)
    (decision,) = json.loads(command("keeper", "log", *places, "--output", "json").out)["decisions"]
    assert (decision["what"], decision["by"]) == ("succeeded", "pending_rows")
    assert decision["seconds"] > 0
    assert len(house.rows()) == 2


def test_a_decision_that_waited_for_the_queue_is_sent_once_by_the_next_run(
    house: House, mailroom: Mailroom, command: Command
) -> None:
    house.append([{"id": 1, "v": "a"}])
    house.lake.table(TABLE).set_properties({"primary_keys": ["id"], "compact_when": {"pending_rows": 1}})
    places = ("--lake", str(house.folder / "lake"), "--state", str(house.folder / "state"))
    once = ("keeper", "run", "--once", *places, "--queue-url", mailroom.queue_url, "--region", REGION)
    away = command(*once, "--endpoint-url", "http://127.0.0.1:9")
    assert away.exit_code == 1
    assert "left to the next look: 1 decision: queue " in away.err
    for expected in ("1 instruction sent", "0 instructions sent"):
        answer = command(*once, "--endpoint-url", mailroom.endpoint_url)
        assert answer.exit_code == 0
        assert expected in answer.out
        assert mailroom.waiting() == 1
