"""A store that keeps its writes to itself."""

from __future__ import annotations

from dispatcher.dry_run import DryRunStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore


def stores() -> tuple[MemoryStore, DryRunStore]:
    clock = ManualClock()
    beneath = MemoryStore(clock)
    beneath.put_if_absent("a/1", b"one")
    beneath.put_if_absent("b/1", b"other")
    return beneath, DryRunStore(beneath, clock)


def test_what_is_written_is_read_back_and_nothing_beneath_changes() -> None:
    beneath, dry = stores()
    assert dry.put_if_absent("a/2", b"two")
    assert not dry.put_if_absent("a/2", b"again")
    assert not dry.put_if_absent("a/1", b"taken beneath")
    dry.overwrite("b/1", b"changed")
    dry.overwrite("c/d/1", b"deep")
    assert dry.read("a/2") == b"two"
    assert dry.read("a/1") == b"one"
    assert dry.read("b/1") == b"changed"
    assert dry.read_range("b/1", 2, 3) == b"ang"
    assert dry.read_range("a/1", 1, 2) == b"ne"
    assert [entry.key for entry in dry.list("")] == ["a/1", "a/2", "b/1", "c/d/1"]
    assert [entry.key for entry in dry.list("a/", start_after="a/1")] == ["a/2"]
    assert list(dry.list_folders("")) == ["a", "b", "c"]
    assert [entry.key for entry in beneath.list("")] == ["a/1", "b/1"]
    assert beneath.read("b/1") == b"other"


def test_what_is_deleted_is_gone_and_stays_beneath() -> None:
    beneath, dry = stores()
    dry.delete("a/1")
    assert dry.read("a/1") is None
    assert [entry.key for entry in dry.list("")] == ["b/1"]
    assert beneath.read("a/1") == b"one"
    assert dry.put_if_absent("a/1", b"new")
    assert dry.read("a/1") == b"new"
