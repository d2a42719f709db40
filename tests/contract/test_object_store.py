"""The guarantees of every `ObjectStore`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor.catalog.delta_files import version_of_file
from compactor.model.clock import SystemClock
from compactor.model.errors import Corrupt, Invalid
from compactor.storage.object_store import ObjectStore


def keys(store: ObjectStore, prefix: str, start_after: str | None = None) -> list[str]:
    return [entry.key for entry in store.list(prefix, start_after)]


def test_a_written_object_is_read_back(store: ObjectStore) -> None:
    assert store.put_if_absent("a/b/c.json", b"body \x00\xff")
    assert store.read("a/b/c.json") == b"body \x00\xff"


def test_writes_that_have_ended_are_not_unfinished_whatever_came_of_them(store: ObjectStore) -> None:
    store.put_if_absent("a", b"1")
    store.put_if_absent("a", b"2")
    store.overwrite("b", b"3")
    assert list(store.unfinished()) == []


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert store.put_if_absent("empty", b"")
    assert store.read("empty") == b""
    assert not store.put_if_absent("empty", b"more")


def test_a_taken_key_stays_as_it_is(store: ObjectStore) -> None:
    store.put_if_absent("a", b"first")
    assert not store.put_if_absent("a", b"second")
    assert store.read("a") == b"first"


def test_overwriting_replaces_or_creates(store: ObjectStore) -> None:
    store.overwrite("hint", b"1")
    store.overwrite("hint", b"2")
    assert store.read("hint") == b"2"
    assert not store.put_if_absent("hint", b"3")


def test_nothing_is_read_where_there_is_nothing(store: ObjectStore) -> None:
    assert store.read("a/b") is None
    store.put_if_absent("a/b/c", b"x")
    assert store.read("a/b") is None
    assert store.read("a/b/c/d") is None


def test_a_range_is_read_without_the_rest(store: ObjectStore) -> None:
    store.put_if_absent("a", b"0123456789")
    assert store.read_range("a", 3, 4) == b"3456"
    assert store.read_range("a", 8, 10) == b"89"
    assert store.read_range("a", 0, 0) == b""


def test_a_range_of_a_missing_object_is_corrupt(store: ObjectStore) -> None:
    with pytest.raises(Corrupt, match="a/b"):
        store.read_range("a/b", 0, 1)


def test_a_listing_shows_each_object_once_with_its_size(store: ObjectStore) -> None:
    for key in ("p/b/1", "p/a", "p/b-1", "q"):
        store.put_if_absent(key, key.encode())
    listed = list(store.list("p/"))
    assert sorted((entry.key, entry.size_bytes) for entry in listed) == [("p/a", 3), ("p/b-1", 5), ("p/b/1", 5)]
    assert all(entry.modified_at_ms > 1_500_000_000_000 for entry in listed)
    if store.location.is_remote:
        uris = [f"{store.location.root_uri}/{entry.key}" for entry in listed]
        assert [entry.etag for entry in listed] == [version_of_file(store.location, uri).etag for uri in uris]


def test_a_prefix_need_not_end_at_a_slash(store: ObjectStore) -> None:
    for key in ("log/0001.json", "log/0002.json", "log/001", "logs/0001.json"):
        store.put_if_absent(key, b"")
    assert keys(store, "log/000") == ["log/0001.json", "log/0002.json"]
    assert keys(store, "log") == ["log/0001.json", "log/0002.json", "log/001", "logs/0001.json"]
    assert keys(store, "nothing/here") == []
    assert len(keys(store, "")) == 4


def test_a_listing_can_start_after_a_key(store: ObjectStore) -> None:
    for key in ("a/1", "a/2", "a/3", "b/1"):
        store.put_if_absent(key, b"")
    assert keys(store, "a/", start_after="a/2") == ["a/3"]
    assert keys(store, "a/", start_after="a/25") == ["a/3"]
    assert keys(store, "a/", start_after="a/") == ["a/1", "a/2", "a/3"]
    assert keys(store, "a/", start_after="a/3") == []


def test_folders_are_listed_once_each_and_objects_are_not(store: ObjectStore) -> None:
    for key in ("t/b/1", "t/b/2/x", "t/a/1", "t/leaf", "u/1"):
        store.put_if_absent(key, b"")
    assert list(store.list_folders("t/")) == ["a", "b"]
    assert list(store.list_folders("")) == ["t", "u"]
    assert list(store.list_folders("t/b/")) == ["2"]
    assert list(store.list_folders("missing/")) == []


def test_deleting_is_final_and_may_be_repeated(store: ObjectStore) -> None:
    store.put_if_absent("a/b", b"")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/was")
    assert store.read("a/b") is None
    assert keys(store, "") == []


def test_many_objects_are_deleted_together_and_missing_ones_are_no_failure(store: ObjectStore) -> None:
    names = ["a b+c&d=e?f#g", "grün/日本", "per%20cent", "x'y\"z<>&amp;"]
    for name in (*names, "kept"):
        store.put_if_absent(name, b"")
    assert store.delete_many([*names, "never/was"]) == {}
    assert store.delete_many(names) == {}
    assert store.delete_many([]) == {}
    assert keys(store, "") == ["kept"]


@pytest.mark.slow
def test_more_objects_are_listed_and_deleted_than_one_request_takes(store: ObjectStore) -> None:
    names = [f"many/{number:04d}" for number in range(1_005)]
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda name: store.put_if_absent(name, b""), names))
    assert keys(store, "many/") == names
    assert keys(store, "many/", start_after="many/0002") == names[3:]
    assert store.delete_many(names[1:]) == {}
    assert keys(store, "many/") == names[:1]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/./b", "a\0b", "a\\b"])
def test_no_key_leaves_the_root(store: ObjectStore, key: str) -> None:
    with pytest.raises(Invalid, match="not an object key"):
        store.put_if_absent(key, b"")
    with pytest.raises(Invalid, match="not an object key"):
        store.overwrite(key, b"")
    with pytest.raises(Invalid, match="not an object key"):
        store.read(key)
    with pytest.raises(Invalid, match="not an object key"):
        store.delete(key)
    with pytest.raises(Invalid, match="not an object key"):
        store.delete_many(["a", key])


def test_spaces_unicode_and_signs_are_part_of_a_key(store: ObjectStore) -> None:
    names = ["a b+c&d=e?f#g", "grün/日本", "per%20cent", "x'y\"z"]
    for name in names:
        assert store.put_if_absent(name, name.encode())
    assert keys(store, "") == sorted(names)
    assert [store.read(name) for name in names] == [name.encode() for name in names]


@pytest.fixture
def exclusive_store(store: ObjectStore, request: pytest.FixtureRequest) -> ObjectStore:
    """Every kind of store but moto's, which checks and then puts without a lock: it proves nothing about a race."""
    if "moto" in request.node.name:
        pytest.skip("moto does not hold a key between its check and its put")
    return store


def test_of_writers_that_race_exactly_one_wins(exclusive_store: ObjectStore) -> None:
    writers, rounds = 6, 5
    with ThreadPoolExecutor(writers) as threads:
        for number in range(rounds):
            bodies = [f"{number} by {writer}".encode() * 1_000 for writer in range(writers)]
            won = list(
                threads.map(lambda body: exclusive_store.put_if_absent(f"race/{number}", body), bodies)  # noqa: B023
            )
            assert sum(won) == 1
            assert exclusive_store.read(f"race/{number}") == bodies[won.index(True)]


_part = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=8
).filter(lambda part: part not in (".", ".."))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.lists(_part, min_size=1, max_size=3).map("/".join), max_size=6))
def test_any_set_of_keys_is_listed_whole(store: ObjectStore, wanted: set[str]) -> None:
    folder = f"set-{SystemClock().new_id()}"
    # A file system cannot hold an object and a folder of one name; Lithify's own keys never ask it to.
    wanted = {key for key in wanted if not any(other.startswith(key + "/") for other in wanted)}
    for key in wanted:
        store.put_if_absent(f"{folder}/{key}", b"")
    assert sorted(keys(store, f"{folder}/")) == sorted(f"{folder}/{key}" for key in wanted)
    assert sorted(store.list_folders(f"{folder}/")) == sorted({key.split("/")[0] for key in wanted if "/" in key})


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(_part, max_size=6), st.data())
def test_any_folder_is_listed_in_key_order(store: ObjectStore, wanted: set[str], data: st.DataObject) -> None:
    folder = f"folder-{SystemClock().new_id()}"
    in_order = sorted(f"{folder}/{key}" for key in wanted)
    for key in in_order:
        store.put_if_absent(key, b"")
    assert keys(store, f"{folder}/") == in_order
    start_after = data.draw(st.sampled_from([f"{folder}/", *in_order]))
    assert keys(store, f"{folder}/", start_after) == [key for key in in_order if key > start_after]
