"""Garbage collection deletes what no reader and no commit can need any more, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from compactor import DeltaCatalog, compact
from compactor.lake import Table
from compactor.log.checkpoints import CHECKPOINT_ENTRIES
from compactor.log.keys import ListsObject
from compactor.maintenance.garbage import StreamGarbage, delete_garbage, find_garbage
from compactor.maintenance.verify import verify
from compactor.model.errors import Corrupt, Denied, Invalid
from compactor.storage.local import WRITING_FOLDER, LocalStore
from dispatcher.cli import gc
from dispatcher.main import run
from tests.conftest import Command
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine

ORDERS = "ACME.ORDERS.V1"
DAY_SECONDS = 24 * 3600
GRACE_SECONDS = 7 * DAY_SECONDS


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    """Two rounds: the second has rewritten what the first one left."""
    orders = lake.create_table(ORDERS)
    for value in ("first", "second"):
        append_and_compact(lake, orders, value)
    return orders


def append_and_compact(lake: DeltaCatalog, orders: Table, value: str) -> None:
    orders.append({}, pa.table({"id": range(10), "value": [value] * 10}))
    compact(ORDERS, {"id"}, delta_catalog_client=lake, hash_bucket_count=2, engine=UnrulyEngine())


def pass_days(clock: ManualClock, days: float) -> None:
    clock.sleep(days * DAY_SECONDS)


def found(lake: DeltaCatalog, clock: ManualClock) -> StreamGarbage:
    (garbage,) = find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS)
    return garbage


def kinds(garbage: StreamGarbage) -> set[str]:
    """The folders of what can go: delta, compacted, index, dead."""
    return {file.key.split("/")[4] for file in garbage.garbage}


def write(lake: DeltaCatalog, key: str) -> None:
    lake.store.overwrite(key, b"left over")


def test_replaced_files_are_deleted_after_the_grace_period(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    assert found(lake, clock).garbage == ()
    pass_days(clock, 8)
    garbage = found(lake, clock)
    assert kinds(garbage) == {"compacted", "index"}
    delete_garbage(lake.store, garbage)
    assert found(lake, clock).garbage == ()
    assert found(lake, clock).kept_files == garbage.kept_files
    assert orders.scan().to_table()["value"].to_pylist() == ["second"] * 10
    assert verify(orders.stream({})).problems == ()
    append_and_compact(lake, orders, "third")
    assert orders.scan().to_table()["value"].to_pylist() == ["third"] * 10


def test_files_replaced_within_the_grace_period_stay_at_any_age(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    """A reader may have pinned the snapshot just before."""
    pass_days(clock, 20)
    second_round = orders.stream({}).load().entry_number
    append_and_compact(lake, orders, "third")
    pass_days(clock, 6)
    delete_garbage(lake.store, found(lake, clock))
    assert orders.scan(as_of=second_round).to_table()["value"].to_pylist() == ["second"] * 10
    pass_days(clock, 2)
    delete_garbage(lake.store, found(lake, clock))
    assert orders.scan().to_table()["value"].to_pylist() == ["third"] * 10
    with pytest.raises(Corrupt, match="does not exist"):
        orders.scan(as_of=second_round).to_table()


def test_checkpoints_that_their_writer_may_not_delete_go_after_the_grace_period(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    """As a Spark job in AWS, which may write to a lake and delete nothing."""
    denied = FaultyStore(lake.store)
    denied.fail("delete", times=None, error=Denied)
    writer = DeltaCatalog(denied, clock).table(ORDERS)
    for number in range(4 * CHECKPOINT_ENTRIES):
        writer.append({}, pa.table({"id": [number], "value": ["many"]}))
    assert found(lake, clock).garbage == ()
    pass_days(clock, 8)
    old = {file.key for file in found(lake, clock).garbage if "/checkpoints/" in file.key}
    assert old
    delete_garbage(lake.store, found(lake, clock))
    assert not [file for file in found(lake, clock).garbage if "/checkpoints/" in file.key]
    assert not old & {entry.key for entry in lake.store.list(f"tables/{ORDERS}/")}
    reader = DeltaCatalog(lake.store, clock).table(ORDERS)
    assert reader.stream({}).load().state == writer.stream({}).load().state
    assert verify(reader.stream({})).problems == ()


def test_uncommitted_files_are_deleted_once_no_attempt_can_commit_them(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    data = f"tables/{ORDERS}/data/_"
    left = {
        f"{data}/delta/{'a' * 32}/1.parquet",
        f"{data}/compacted/1/{'b' * 32}/.8.parquet.4711-3.partial",
        f"{data}/compacted/1/{'b' * 32}/7-0123456789abcdef.parquet",
        f"{data}/dead/{'b' * 32}/1-0123456789abcdef.arrow",
        f"{data}/index/9-{'b' * 32}/0-0-0123456789abcdef.arrow",
    }
    for key in left:
        write(lake, key)
    pass_days(clock, 6)
    assert not left & {file.key for file in found(lake, clock).garbage}
    pass_days(clock, 2)
    assert left <= {file.key for file in found(lake, clock).garbage}


def test_data_of_a_stream_whose_first_entry_never_came_goes(lake: DeltaCatalog, clock: ManualClock) -> None:
    days = lake.create_table(ORDERS, partition_keys=["day"])
    days.append({"day": "sunday"}, pa.table({"id": [1]}))
    write(lake, f"tables/{ORDERS}/data/day=monday/delta/{'a' * 32}/1.parquet")
    pass_days(clock, 8)
    sunday, monday = find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS)
    assert (len(sunday.garbage), len(monday.garbage)) == (0, 1)
    assert monday.stream == f"{ORDERS} day=monday"


# -------------------------------------------------------------------------------------- logs that cannot be seen


@pytest.fixture
def root(lake: DeltaCatalog) -> Path:
    return Path(lake.location.root_uri.removeprefix("file://"))


def test_a_table_whose_logs_cannot_be_seen_is_named_and_nothing_is_garbage(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, root: Path
) -> None:
    """As after a restore, or a copy, in the wrong order."""
    pass_days(clock, 8)
    streams = root / "tables" / ORDERS / "streams"
    streams.rename(root / "elsewhere")
    with pytest.raises(Corrupt, match=rf"{root}/tables/{ORDERS}/data/_ has 6 files of a compaction.*/streams/_/log/"):
        list(find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS))
    (root / "elsewhere").rename(streams)
    assert found(lake, clock).garbage


def test_deltas_stay_while_no_log_of_their_table_can_be_seen(
    lake: DeltaCatalog, clock: ManualClock, root: Path
) -> None:
    orders = lake.create_table(ORDERS, primary_keys={"id"})
    orders.append({}, pa.table({"id": [1]}))
    pass_days(clock, 8)
    streams = root / "tables" / ORDERS / "streams"
    streams.rename(root / "elsewhere")
    assert (found(lake, clock).kept_files, found(lake, clock).garbage) == (1, ())
    (root / "elsewhere").rename(streams)
    assert orders.scan(view="merged").to_table()["id"].to_pylist() == [1]


def test_one_stream_without_its_log_keeps_the_deltas_of_the_others_too(
    lake: DeltaCatalog, clock: ManualClock, root: Path
) -> None:
    days = lake.create_table(ORDERS, partition_keys=["day"])
    for day in ("friday", "monday", "sunday"):
        days.append({"day": day}, pa.table({"id": [1]}))
    compact(
        ORDERS,
        {"id"},
        delta_catalog_client=lake,
        hash_bucket_count=1,
        engine=UnrulyEngine(),
        partitions=[{"day": "monday"}],
    )
    pass_days(clock, 8)
    for day in ("friday", "monday"):
        shutil.rmtree(root / "tables" / ORDERS / "streams" / f"day={day}")
    seen: list[StreamGarbage] = []
    with pytest.raises(Corrupt, match="data/day=monday has"):
        seen.extend(find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS))
    assert [(each.stream, each.garbage) for each in seen] == [(f"{ORDERS} day=sunday", ())]


@pytest.mark.parametrize("number", [1, 3])
def test_a_log_that_lacks_an_entry_is_named_and_nothing_is_garbage(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, root: Path, number: int
) -> None:
    pass_days(clock, 8)
    (root / "tables" / ORDERS / "streams" / "_" / "log" / f"{number:020d}.json").unlink()
    with pytest.raises(Corrupt, match=f"entry {number} of log tables/{ORDERS}/streams/_/log is missing"):
        list(find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS))


def test_a_log_whose_first_entry_is_missing_is_named_though_a_checkpoint_holds_its_state(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, root: Path
) -> None:
    for number in range(2 * CHECKPOINT_ENTRIES):
        orders.append({}, pa.table({"id": [number], "value": ["many"]}))
    pass_days(clock, 8)
    (root / "tables" / ORDERS / "streams" / "_" / "log" / f"{1:020d}.json").unlink()
    with pytest.raises(Corrupt, match=r"entry 1 of log .* is missing"):
        list(find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS))


def test_open_files_of_a_table_whose_logs_cannot_be_seen_are_named(
    lake: DeltaCatalog, clock: ManualClock, root: Path
) -> None:
    orders = lake.create_table(ORDERS, properties={"primary_keys": ["id"], "publish": ["delta"]})
    append_and_compact(lake, orders, "first")
    pass_days(clock, 8)
    shutil.rmtree(root / "tables" / ORDERS / "streams")
    shutil.rmtree(root / "tables" / ORDERS / "data")
    with pytest.raises(Corrupt, match=rf"{root}/tables/{ORDERS}/compacted/[0-9a-f]+ has 1 file of a compaction"):
        list(find_garbage(lake.store, ORDERS, clock, GRACE_SECONDS))


def test_what_lies_behind_a_link_is_not_garbage(
    lake: DeltaCatalog, orders: Table, clock: ManualClock, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside" / ("a" * 32)
    outside.mkdir(parents=True)
    (outside / "1.parquet").write_bytes(b"somebody's")
    (root / "tables" / ORDERS / "data" / "_" / "delta" / "linked").symlink_to(tmp_path / "outside")
    pass_days(clock, 365)
    assert found(lake, clock).unknown == (f"tables/{ORDERS}/data/_/delta/linked",)
    delete_garbage(lake.store, found(lake, clock))
    assert (outside / "1.parquet").read_bytes() == b"somebody's"
    (root / "tables" / ORDERS / "data").rename(tmp_path / "data")
    (root / "tables" / ORDERS / "data").symlink_to(tmp_path / "data")
    with pytest.raises(Invalid, match="is a symbolic link"):
        found(lake, clock)


# ----------------------------------------------------------------------------------------- more than one at a time


def test_two_collections_at_the_same_time_delete_the_same_and_nothing_that_came_since(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    """The slower one deletes what it has found long before."""
    pass_days(clock, 8)
    slow = found(lake, clock)
    delete_garbage(lake.store, found(lake, clock))
    append_and_compact(lake, orders, "third")
    pass_days(clock, 8)
    append_and_compact(lake, orders, "fourth")
    assert slow.garbage
    assert delete_garbage(lake.store, slow) == {}
    assert orders.scan().to_table()["value"].to_pylist() == ["fourth"] * 10
    assert verify(orders.stream({})).problems == ()


def test_files_that_may_not_be_deleted_are_returned_with_the_reason(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    pass_days(clock, 8)
    garbage, store = found(lake, clock), FaultyStore(lake.store)
    store.fail("delete", garbage.garbage[0].key, times=None, error=Denied)
    failed = delete_garbage(store, garbage)
    assert list(failed) == [garbage.garbage[0].key]
    assert [each.key for each in found(lake, clock).garbage] == list(failed)


def test_files_without_a_name_of_lithify_stay_and_are_reported(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    stranger = f"tables/{ORDERS}/data/_/compacted/notes.txt"
    write(lake, stranger)
    pass_days(clock, 30)
    assert found(lake, clock).unknown == (stranger,)
    assert stranger not in {file.key for file in found(lake, clock).garbage}


def test_deltas_stay_with_those_that_were_registered_where_they_lie(
    lake: DeltaCatalog, orders: Table, clock: ManualClock
) -> None:
    key = f"tables/{ORDERS}/data/_/delta/{'c' * 32}/1.parquet"
    write(lake, key)
    file = Path(lake.location.root_uri.removeprefix("file://")) / key
    pa.parquet.write_table(pa.table({"id": [99], "value": ["registered"]}), file)
    orders.append({}, [file.as_uri()])
    pass_days(clock, 30)
    assert "delta" not in kinds(found(lake, clock))


# ---------------------------------------------------------------------------------------------------------- lithify gc


@pytest.fixture
def old_file(lake: DeltaCatalog, orders: Table) -> Path:
    """What an append of a month ago has left, and never committed."""
    key = f"tables/{ORDERS}/data/_/delta/{'a' * 32}/1.parquet"
    write(lake, key)
    file = Path(lake.location.root_uri.removeprefix("file://")) / key
    month_ago = time.time() - 30 * DAY_SECONDS
    os.utime(file, (month_ago, month_ago))
    return file


def test_nothing_is_deleted_unless_it_is_asked_for(lake: DeltaCatalog, old_file: Path, command: Command) -> None:
    gc = partial(command, "gc", "--lake", lake.location.root_uri)
    assert "add --delete" in gc().out
    assert old_file.exists()
    answer = json.loads(gc(ORDERS, "--delete", "--output", "json").out)
    assert answer["deleted"] is True
    assert [file["key"].rpartition("/")[2] for each in answer["streams"] for file in each["garbage"]] == ["1.parquet"]
    assert not old_file.exists()
    assert "nothing to delete" in gc("--delete").out


def test_writes_that_never_ended_go_by_their_age(lake: DeltaCatalog, orders: Table, command: Command) -> None:
    folder = Path(lake.location.root_uri.removeprefix("file://")) / WRITING_FOLDER
    month_ago = time.time() - 30 * DAY_SECONDS
    for name in ("1-2-3", "4-5-6"):
        (folder / name).write_bytes(b"half")
    os.utime(folder / "1-2-3", (month_ago, month_ago))
    gc = partial(command, "gc", "--lake", lake.location.root_uri)
    assert f"{WRITING_FOLDER}/1-2-3 (never finished)" in gc().out
    assert WRITING_FOLDER not in gc(ORDERS, "--delete").out
    assert len(list(folder.iterdir())) == 2
    answer = json.loads(gc("--delete", "--output", "json").out)
    assert [write["name"] for write in answer["unfinished"]] == [f"{WRITING_FOLDER}/1-2-3"]
    assert [path.name for path in folder.iterdir()] == ["4-5-6"]


def test_writes_that_never_ended_go_from_the_state_too(
    lake: DeltaCatalog, orders: Table, command: Command, tmp_path: Path
) -> None:
    """A dispatcher that is killed leaves its small files there."""
    state = tmp_path / "state"
    (state / "job_runs").mkdir(parents=True)
    (state / "job_runs" / "kept.json").write_text("{}")
    month_ago = time.time() - 30 * DAY_SECONDS
    for folder in (state / WRITING_FOLDER, tmp_path / "lake" / WRITING_FOLDER):
        folder.mkdir(exist_ok=True)
        for name in ("1-2-3", "4-5-6"):
            (folder / name).write_bytes(b"half")
        os.utime(folder / "1-2-3", (month_ago, month_ago))
    gc = partial(command, "gc", "--lake", lake.location.root_uri, "--state", str(state))
    assert f"file://{state}/{WRITING_FOLDER}/1-2-3 (never finished)" in gc().out
    assert "nothing to delete" in gc(ORDERS, "--delete").out
    answer = json.loads(gc("--delete", "--output", "json").out)
    assert [write["root_uri"] for write in answer["unfinished"]] == [lake.location.root_uri, f"file://{state}"]
    for place in (state, tmp_path / "lake"):
        assert [path.name for path in (place / WRITING_FOLDER).iterdir()] == ["4-5-6"]
    assert (state / "job_runs" / "kept.json").exists()


def test_gc_takes_the_state_from_the_environment_and_names_one_that_is_not_there(
    lake: DeltaCatalog, orders: Table, capsys: pytest.CaptureFixture[str], command: Command, tmp_path: Path
) -> None:
    places = {"LITHIFY_LAKE": lake.location.root_uri, "LITHIFY_STATE": str(tmp_path / "nowhere")}
    assert run(["gc", "--delete"], places) == 2
    assert "there is no state at" in capsys.readouterr().err


def test_without_the_right_to_list_unfinished_writes_the_rest_is_listed_with_a_note(
    lake: DeltaCatalog, old_file: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalStore) -> None:
        raise Denied("unfinished uploads to s3://lake/ cannot be listed: no right (AccessDenied)")

    monkeypatch.setattr(LocalStore, "unfinished", refuse)
    result = command("gc", "--lake", lake.location.root_uri, "--delete", "--output", "json")
    assert result.exit_code == 0
    assert "Unfinished uploads are not shown" in result.err
    assert json.loads(result.out)["unfinished"] == []
    assert not old_file.exists()


def test_a_table_that_cannot_be_collected_stops_no_other_and_is_named_with_the_reason(
    lake: DeltaCatalog, old_file: Path, root: Path, command: Command
) -> None:
    for name in ("ACME.AAA.V1", "ACME.ZZZ.V1"):
        lake.create_table(name).append({}, pa.table({"id": [1]}))
        (root / "tables" / name / "streams" / "_" / "log" / f"{1:020d}.json").write_text("{damaged")
    gc = partial(command, "gc", "--lake", lake.location.root_uri)
    shown = gc()
    assert shown.exit_code == 1
    assert "To delete 1 file, add --delete" in shown.out
    assert "ACME.AAA.V1: " in shown.err
    answer = gc("--delete", "--output", "json")
    assert answer.exit_code == 1
    failed = json.loads(answer.out)["failed"]
    assert {each["table_id"] for each in failed} == {"ACME.AAA.V1", "ACME.ZZZ.V1"}
    assert all("log/00000000000000000001.json" in each["reason"] for each in failed)
    assert not old_file.exists()
    assert gc(ORDERS).exit_code == 0
    assert gc("ACME.ZZZ.V1", ORDERS).exit_code == 1


def test_a_table_whose_definition_is_lost_is_named_and_its_files_and_unfinished_writes_stay(
    lake: DeltaCatalog, old_file: Path, root: Path, command: Command
) -> None:
    """Nothing says then for how long they are to be kept."""
    shutil.rmtree(root / "tables" / ORDERS / "log")
    unfinished = root / WRITING_FOLDER / "1-2-3"
    unfinished.write_bytes(b"half")
    os.utime(unfinished, (1, 1))
    result = command("gc", "--lake", lake.location.root_uri, "--delete")
    assert result.exit_code == 1
    assert f"there is no definition of {ORDERS}" in " ".join(result.err.split())
    assert old_file.exists()
    assert unfinished.exists()


def test_a_table_whose_deltas_may_not_be_retired_is_collected_all_the_same(
    lake: DeltaCatalog, old_file: Path, clock: ManualClock, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a role that may delete files of a lake and write none."""

    def refuse(_: LocalStore, key: str, body: bytes) -> bool:
        raise Denied(f"s3://lake/{key} cannot be created: no right (AccessDenied)")

    clock.set_ms(1)  # the command has the machine's clock: years have passed since
    old = lake.create_table("ACME.OLD.V1")
    old.append({}, pa.table({"id": [1]}))
    compact("ACME.OLD.V1", {"id"}, delta_catalog_client=lake, hash_bucket_count=1, engine=UnrulyEngine())
    monkeypatch.setattr(LocalStore, "put_if_absent", refuse)
    result = command("gc", "--lake", lake.location.root_uri, "--delete", "--output", "json")
    assert result.exit_code == 1
    assert [each["table_id"] for each in json.loads(result.out)["failed"]] == ["ACME.OLD.V1"]
    assert "AccessDenied" in result.err
    assert not old_file.exists()


def test_a_long_run_without_a_terminal_says_now_and_then_where_it_is(
    lake: DeltaCatalog, old_file: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("gc", "--lake", lake.location.root_uri)
    assert "collecting_garbage" not in command(*arguments).err
    monkeypatch.setattr(gc, "_SECONDS_BETWEEN_LINES", 0.0)
    lines = [json.loads(line) for line in command(*arguments).err.splitlines() if "collecting_garbage" in line]
    first, last = lines
    assert (first["at"], first["streams"], first["files"], first["garbage"]) == (ORDERS, 0, 0, 0)
    assert (last["at"], last["streams"]) == (f"{ORDERS} (unpartitioned)", 1)
    assert last["files"] >= last["garbage"] >= 1


def test_files_that_may_not_be_deleted_are_counted_and_named(
    lake: DeltaCatalog, old_file: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalStore, key: str) -> None:
        raise Denied(f"{key} cannot be deleted: no right (AccessDenied)")

    monkeypatch.setattr(LocalStore, "delete", refuse)
    result = command("gc", "--lake", lake.location.root_uri, "--delete")
    assert result.exit_code == 1
    assert "Deleted 0 files." in result.out
    assert "1 of 1 file of ACME.ORDERS.V1 (unpartitioned) could not be deleted" in " ".join(result.err.split())
    answer = json.loads(command("gc", "--lake", lake.location.root_uri, "--delete", "--output", "json").out)
    assert [len(each["not_deleted"]) for each in answer["streams"]] == [1]


def test_the_list_of_tables_says_what_gc_could_free_if_it_is_asked_to(
    lake: DeltaCatalog, old_file: Path, command: Command
) -> None:
    size_bytes = old_file.stat().st_size
    tables = partial(command, "table", "list", "--lake", lake.location.root_uri, "--output", "json")
    assert "garbage_bytes" not in json.loads(tables().out)["tables"][0]
    (listed,) = json.loads(tables("--garbage").out)["tables"]
    assert (listed["garbage_files"], listed["garbage_bytes"]) == (1, size_bytes)
    assert command("gc", "--lake", lake.location.root_uri, "--delete").exit_code == 0
    (listed,) = json.loads(tables("--garbage").out)["tables"]
    assert (listed["garbage_files"], listed["garbage_bytes"]) == (0, 0)
    assert "garbage bytes" in command("table", "list", "--lake", lake.location.root_uri, "--garbage").out


def test_every_verb_takes_the_lake_from_the_environment(
    lake: DeltaCatalog, orders: Table, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    for verb in (["gc"], ["table", "show", ORDERS], ["table", "verify", ORDERS]):
        assert run(verb, {"LITHIFY_LAKE": lake.location.root_uri}) == 0, capsys.readouterr().err


def test_a_table_that_is_not_there_is_one_sentence_and_exit_code_2(lake: DeltaCatalog, command: Command) -> None:
    lake.create_table("ACME.SOMETHING.V1")
    result = command("gc", "--lake", lake.location.root_uri, "ACME.NOTHING.V1")
    assert result.exit_code == 2
    assert "there is no table ACME.NOTHING.V1" in " ".join(result.err.split())


def test_lists_beside_an_entry_stay_and_those_of_an_entry_that_was_not_written_go(
    lake: DeltaCatalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.log.entries.ENTRY_BYTES_MAX", 0)
    orders = lake.create_table(ORDERS)
    for value in ("first", "second"):
        append_and_compact(lake, orders, value)
    as_of = orders.stream({}).load().entry_number
    append_and_compact(lake, orders, "third")
    orders.restore(as_of, dry_run=False)
    log = orders.stream({}).log
    entries = list(log.entries())
    assert sum(1 for _ in lake.store.list(f"{log.folder}/lists/")) == 3 + 3 + 1  # appends, rounds and the restore
    stray = ListsObject(log.folder, 7, "0a").key
    write(lake, stray)
    assert verify(orders.stream({})).problems == ()
    pass_days(clock, 8)
    garbage = found(lake, clock)
    assert {each.key for each in garbage.garbage if "/log/" in each.key} == {stray}
    delete_garbage(lake.store, garbage)
    assert list(orders.stream({}).log.entries()) == entries
    assert orders.scan().to_table()["value"].to_pylist() == ["second"] * 10
