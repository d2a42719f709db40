"""`privacy prove`: every object that may hold a deleted key's values is named with its time, and the last byte goes."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor import DeltaCatalog, compact
from compactor.catalog.keys import TableFolder
from compactor.index.files import IndexTarget
from compactor.kernels.canonical import canonical_column
from compactor.kernels.digest import digest_keys
from compactor.lake import Table
from compactor.log.keys import EntryObject, ListsObject
from compactor.maintenance.collection import Collection, GracePeriods
from compactor.maintenance.privacy import PrivacyProof, prove_partitions
from compactor.model.errors import Corrupt, Invalid
from compactor.planning import round_planner
from compactor.planning.session_planner import pin_sessions
from compactor.planning.spec import JobRunSpec
from compactor.publishing.protocol import NothingToPublish, Published
from compactor.publishing.publication import publish, publishers_of
from tests.builders import CompactedSide
from tests.conftest import Command
from tests.crashes import RESOURCES
from tests.fakes.attempts import plan_session, run_attempt
from tests.fakes.manual_clock import ManualClock
from tests.fakes.unruly_engine import UnrulyEngine
from tests.proofs import prove_many

PEOPLE, COMPACTED = "ACME.PEOPLE.V1", "ACME.PEOPLE_COMPACTED.V1"
ANN, BOB = "ann.of.the.seventh.street@example", "bob@example"
DAY_SECONDS = 24 * 3600
GRACE, RETENTION = 7 * DAY_SECONDS, 30 * DAY_SECONDS
PRIVATE = {
    "primary_keys": ["email"],
    "private_columns": ["email", "name"],
    "retention_seconds": RETENTION,
    "gc_grace_seconds": GRACE,
}
SECRETS = (ANN.encode(), b"Ann Elizabeth Quillfeather")


def people(*emails: str) -> pa.Table:
    names = {ANN: SECRETS[1].decode(), BOB: "Bob"}
    return pa.table(
        {"email": list(emails), "name": [names.get(each, "Nobody") for each in emails], "visits": [3] * len(emails)}
    )


def run(lake: DeltaCatalog, **arguments: object) -> None:
    compact(PEOPLE, delta_catalog_client=lake, hash_bucket_count=1, engine=UnrulyEngine(), **arguments)  # type: ignore[arg-type]


def proof_of(lake: DeltaCatalog, clock: ManualClock, email: str = ANN, table_id: str = PEOPLE) -> PrivacyProof:
    return prove_many(lake, table_id, {}, [{"email": email}], clock)[0]


def kinds(proof: PrivacyProof) -> dict[str, int]:
    return dict(Counter(holder.kind for holder in proof.holders))


def collect(lake: DeltaCatalog, clock: ManualClock) -> None:
    """As `lithify gc --delete` does for every table."""
    collection = Collection(lake, clock, GracePeriods(), deletes=True)
    collection.collect_tables(lake.tables(), [])
    assert collection.failed == []


def objects_with(root: Path, *secrets: bytes) -> set[str]:
    """Every object of the store that has one of these bytes, as it lies there or in its rows."""
    found = set()
    for path in root.rglob("*"):
        if path.is_file():
            texts = [path.read_bytes()]
            if path.suffix == ".parquet":
                texts.append(repr(pq.read_table(path).to_pylist()).encode())
            if path.suffix == ".avro":
                texts += avro_blocks(texts[0])
            if any(secret in text for text in texts for secret in secrets):
                found.add(str(path.relative_to(root)))
    return found


def avro_blocks(body: bytes) -> list[bytes]:
    """A deflated file, whose blocks begin after two numbers of at most ten bytes each."""
    _, *blocks = body.split(body[-16:])
    found = []
    for block in blocks:
        for begin in range(2, min(20, len(block))):
            with suppress(zlib.error):
                inflated = zlib.decompressobj(-15)
                found.append(inflated.decompress(block[begin:]))
    return found


def digest(email: str) -> bytes:
    return digest_keys([canonical_column("email", pa.chunked_array([[email]]))], 1).byteswap().tobytes()


@pytest.fixture
def table(lake: DeltaCatalog) -> Table:
    """Ann and Bob, compacted; then Ann again, and compacted again, so that files were replaced."""
    table = lake.create_table(PEOPLE, properties=PRIVATE)
    table.append({}, people(ANN, BOB))
    run(lake)
    table.append({}, people(ANN))
    run(lake)
    return table


@pytest.mark.parametrize("destination", [None, COMPACTED], ids=["in place", "into another table"])
def test_after_a_delete_and_the_retention_no_object_of_the_whole_store_has_the_value(
    lake: DeltaCatalog, clock: ManualClock, tmp_path: Path, destination: str | None
) -> None:
    table = lake.create_table(PEOPLE, properties={**PRIVATE, "destination_compacted_table_id": destination})
    table.append({}, people(ANN, BOB))
    run(lake)
    table.append({}, people(ANN))
    run(lake)
    table.append({}, people(ANN).select(["email"]), operation="delete")
    run(lake)
    root = tmp_path / "lake"
    secrets = (*SECRETS, digest(ANN))
    proof = proof_of(lake, clock)
    holders = {holder.key for holder in proof.holders}
    assert {"delta file", "compacted file", "index file"} == set(kinds(proof))
    assert objects_with(root, *secrets), "the search finds what there is"
    assert objects_with(root, *secrets) <= holders
    for _ in range(10):
        times = [holder.goes_at_ms for holder in proof.holders if holder.goes_at_ms is not None]
        assert len(times) == len(proof.holders), "each object has its time"
        clock.sleep(max(0, (min(times) - clock.now_ms()) / 1_000) + 1)
        collect(lake, clock)
        proof = proof_of(lake, clock)
        assert objects_with(root, *secrets) <= {holder.key for holder in proof.holders}
        if not proof.holders:
            break
    assert proof.holders == ()
    assert objects_with(root, *secrets) == set()
    assert proof_of(lake, clock, BOB).holders, "other keys stay"
    assert objects_with(root, BOB.encode())


def test_each_object_goes_at_the_time_that_was_said_and_not_before(
    lake: DeltaCatalog, table: Table, clock: ManualClock
) -> None:
    table.append({}, people(ANN).select(["email"]), operation="delete")
    run(lake)
    replaced = {
        holder.key: holder.goes_at_ms for holder in proof_of(lake, clock).holders if holder.kind != "delta file"
    }
    assert replaced
    at_ms = max(time for time in replaced.values() if time is not None)
    clock.sleep((at_ms - clock.now_ms()) / 1_000 - DAY_SECONDS)
    collect(lake, clock)
    assert replaced.keys() <= {holder.key for holder in proof_of(lake, clock).holders}
    clock.sleep(DAY_SECONDS + 1)
    collect(lake, clock)
    assert not replaced.keys() & {holder.key for holder in proof_of(lake, clock).holders}


def test_a_live_row_is_named_with_what_to_do(lake: DeltaCatalog, table: Table, clock: ManualClock) -> None:
    live = [holder for holder in proof_of(lake, clock).holders if holder.goes_at_ms is None]
    assert {holder.kind for holder in live} == {"compacted file", "index file"}
    assert any("append a delete of the key" in holder.how for holder in live)


def test_an_index_with_packed_pointers_is_searched_too(
    lake: DeltaCatalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_planner, "IndexTarget", partial(IndexTarget, packed_rows_min=0))
    table = lake.create_table(PEOPLE, primary_keys=["email"], properties=PRIVATE)
    table.append({}, people(ANN, BOB))
    run(lake)
    index = [file for file in CompactedSide.of(lake, PEOPLE).stream.index_files if file.are_packed]
    assert index
    holders = [holder.key for holder in proof_of(lake, clock).holders if holder.kind == "index file"]
    assert len(holders) == 1
    assert set(holders) <= {file.path for file in index}


def test_a_tombstone_is_named_with_what_to_do_until_a_round_forgets_it(lake: DeltaCatalog, clock: ManualClock) -> None:
    table = lake.create_table(PEOPLE, sort_keys=[("visits", "ascending")], properties=PRIVATE)
    table.append({}, people(ANN, BOB))
    run(lake)
    table.append({}, people(ANN), operation="delete")
    run(lake)
    for _ in range(10):
        clock.sleep(RETENTION)
        collect(lake, clock)
    (holder,) = proof_of(lake, clock).holders
    assert (holder.kind, holder.goes_at_ms) == ("index file", None)
    assert "that it is deleted, for late rows" in holder.why
    assert "`tombstone_retention`" in holder.how
    table.append({}, people(BOB))
    compact(PEOPLE, delta_catalog_client=lake, tombstone_retention=0, engine=UnrulyEngine())
    for _ in range(10):
        clock.sleep(RETENTION)
        collect(lake, clock)
    assert proof_of(lake, clock).holders == ()


def test_a_dead_row_beside_a_deletion_vector_is_named(lake: DeltaCatalog, clock: ManualClock) -> None:
    table = lake.create_table(PEOPLE, properties=PRIVATE)
    table.append({}, people(ANN, *(f"{n}@example" for n in range(20))))
    run(lake)
    table.append({}, people(ANN).select(["email"]), operation="delete")
    run(lake, max_dead_row_share=0.5)
    dead = [holder for holder in proof_of(lake, clock).holders if "is dead" in holder.why]
    assert [holder.kind for holder in dead] == ["compacted file"]
    assert "--max-dead-row-share 0" in dead[0].how
    run(lake, max_dead_row_share=0.0)
    assert not [holder for holder in proof_of(lake, clock).holders if "is dead" in holder.why]


@pytest.mark.parametrize("are_beside", [False, True])
def test_bounds_of_a_column_that_is_not_private_are_named_for_ever(
    lake: DeltaCatalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, are_beside: bool
) -> None:
    if are_beside:
        monkeypatch.setattr("compactor.log.entries.ENTRY_BYTES_MAX", 0)
    table = lake.create_table(PEOPLE, properties={"primary_keys": ["email"]})
    table.append({}, people(ANN, BOB))
    for n in range(40):
        table.append({}, people(f"m{n}@example"))
    proof = proof_of(lake, clock)
    entries = [holder for holder in proof.holders if holder.kind == "log entry"]
    log = table.stream({}).log
    lists = ListsObject(log.folder, 1, log.entry(1).entry_id)
    assert entries[0].key == (lists.key if are_beside else EntryObject(log.folder, 1).key)
    assert entries[0].why == "a bound of column 'email' is the key's value"
    assert (entries[0].goes_at_ms, entries[0].how) == (None, "never: an entry of a log is not deleted")
    assert kinds(proof)["checkpoint"] >= 1
    assert proof.columns is None
    table.set_properties({"private_columns": ["name"]})
    lake.store.overwrite(ListsObject(log.folder, 99, "0a").key, b"of an entry that never came")
    proof = proof_of(lake, clock)
    before, stray = [holder for holder in proof.holders if holder.kind == "log entry"][:: len(entries)]
    assert before == entries[0], "what was written before stays written"
    assert stray.goes_at_ms is not None
    assert stray.why == "it has lists of an entry that was not written"


def test_files_of_writers_that_died_and_registered_files_are_named(
    lake: DeltaCatalog, table: Table, clock: ManualClock, tmp_path: Path
) -> None:
    pq.write_table(people(ANN), tmp_path / "registered.parquet")
    table.append({}, [tmp_path / "registered.parquet"])
    committed = next(path for path in (tmp_path / "lake").rglob("*.parquet") if "/delta/" in str(path))
    orphan = committed.parent.parent / "0123456789abcdef0123456789abcdef" / "1.parquet"
    orphan.parent.mkdir()
    pq.write_table(people(ANN), orphan)
    other = orphan.with_name("notes.txt")
    other.write_text("by hand")
    found = {holder.key.rpartition("/")[2]: holder for holder in proof_of(lake, clock).holders}
    assert found["registered.parquet"].goes_at_ms is None
    assert "its owner must" in found["registered.parquet"].how
    assert found["notes.txt"].kind == "unknown object"
    unnamed = [holder for holder in proof_of(lake, clock).holders if holder.why == "no entry names it"]
    assert [holder.key for holder in unnamed] == [str(orphan.relative_to(tmp_path / "lake"))]
    clock.sleep(GRACE + 60)
    collect(lake, clock)
    (tmp_path / "registered.parquet").unlink()
    names = {holder.key.rpartition("/")[2] for holder in proof_of(lake, clock).holders}
    assert not orphan.exists()
    assert "registered.parquet" not in names


def test_a_key_that_was_never_there_is_held_by_nothing(lake: DeltaCatalog, table: Table, clock: ManualClock) -> None:
    proof = proof_of(lake, clock, "nobody@example")
    assert proof.holders == ()
    assert proof.searched_objects > 5
    with pytest.raises(Invalid, match="the key has columns"):
        prove_many(lake, PEOPLE, {}, [{"name": "Ann"}], clock)


def test_the_verb_says_what_is_left_and_ends_with_1(
    lake: DeltaCatalog, table: Table, command: Command, tmp_path: Path
) -> None:
    where = ("--lake", str(tmp_path / "lake"))
    result = command("privacy", "prove", PEOPLE, *where, "--key", f"email={ANN}", "-o", "json")
    assert result.exit_code == 1
    answer = json.loads(result.out)
    assert answer["columns"] == ["email", "name"]
    assert (answer["key"], answer["proved_at_ms"] > 0) == ({"email": ANN}, True)
    assert {holder["kind"] for holder in answer["holders"]} >= {"delta file", "compacted file", "index file"}
    nobody = command("privacy", "prove", PEOPLE, *where, "--key", "email=nobody@example")
    assert (nobody.exit_code, "holds a value of the key" in nobody.out) == (0, True)
    wrong = command("privacy", "prove", PEOPLE, *where, "--key", "name=Ann")
    assert (wrong.exit_code, "write COLUMN=VALUE with a column of email" in " ".join(wrong.err.split())) == (2, True)


PUBLISHED = ("_delta_log/", "/iceberg/metadata/")


def session(lake: DeltaCatalog, clock: ManualClock) -> None:
    """A compaction of the table that nothing publishes, as a Spark job's."""
    job_run = JobRunSpec(
        job_run_id=clock.new_id(),
        source_table_id=PEOPLE,
        destination_compacted_table_id=PEOPLE,
        primary_keys=("email",),
        sort_keys=(),
        lake=lake.location,
        hash_bucket_count=1,
    )
    (pinned,) = pin_sessions(job_run, lake)
    run_attempt(plan_session(pinned.spec, lake, RESOURCES), lake, lake.store, UnrulyEngine(), 1, clock)


def publish_now(lake: DeltaCatalog, clock: ManualClock) -> None:
    table = lake.table(PEOPLE)
    for outcome in publish(publishers_of(lake.store, table, clock), [table.stream({})]):
        assert isinstance(outcome, Published | NothingToPublish)


def published(keys: Iterable[str]) -> set[str]:
    return {key for key in keys if any(part in key for part in PUBLISHED)}


def test_after_the_retention_no_object_of_a_published_table_has_the_value_also_if_its_publication_was_late(
    lake: DeltaCatalog, clock: ManualClock, tmp_path: Path
) -> None:
    table = lake.create_table(PEOPLE, properties={**PRIVATE, "publish": ["delta", "iceberg"]})
    table.append({}, people(ANN, BOB))
    run(lake)
    table.append({}, people(ANN).select(["email"]), operation="delete")
    session(lake, clock)
    root, secrets = tmp_path / "lake", (*SECRETS, digest(ANN))
    with_secrets = objects_with(root, *secrets)
    assert any("/compacted/" in key for key in with_secrets), "the rows are in an open file"
    assert not published(with_secrets), "published metadata have no bounds of private columns"
    assert published(str(path.relative_to(root)) for path in root.rglob("*.json"))
    clock.sleep(RETENTION + DAY_SECONDS)
    collect(lake, clock)
    proof = proof_of(lake, clock)
    assert objects_with(root, *secrets) <= {holder.key for holder in proof.holders}
    (shown,) = [holder for holder in proof.holders if "published table still names it" in holder.why]
    assert (shown.kind, shown.goes_at_ms) == ("compacted file", None)
    assert "`lithify publish" in shown.how
    publish_now(lake, clock)
    held_until_ms = {holder.key: holder.goes_at_ms for holder in proof_of(lake, clock).holders}
    assert held_until_ms[shown.key] == pytest.approx(clock.now_ms() + GRACE * 1_000, abs=DAY_SECONDS * 1_000)
    for _ in range(10):
        proof = proof_of(lake, clock)
        assert objects_with(root, *secrets) <= {holder.key for holder in proof.holders}
        if not proof.holders:
            break
        times = [holder.goes_at_ms for holder in proof.holders if holder.goes_at_ms is not None]
        assert len(times) == len(proof.holders), "each object has its time"
        clock.sleep(max(0, (min(times) - clock.now_ms()) / 1_000) + 1)
        collect(lake, clock)
    assert objects_with(root, *secrets) == set()
    assert published(objects_with(root, b"PEOPLE")), "readers still have the table"


def test_bounds_in_published_metadata_are_named_and_go_at_the_time_that_was_said(
    lake: DeltaCatalog, clock: ManualClock, tmp_path: Path
) -> None:
    properties = {"primary_keys": ["email"], "gc_grace_seconds": GRACE, "publish": ["delta", "iceberg"]}
    table = lake.create_table(PEOPLE, properties=properties)
    table.append({}, people(ANN))
    run(lake)
    root = tmp_path / "lake"
    held = published(objects_with(root, ANN.encode()))
    assert {"json", "avro"} == {key.rpartition(".")[2] for key in held}
    first = {holder.key: holder for holder in proof_of(lake, clock).holders}
    assert held <= first.keys()
    assert {first[key].goes_at_ms for key in held} == {None}, "the newest version needs each"
    table.append({}, people(ANN).select(["email"]), operation="delete")
    for visit in range(11):
        table.append({}, people(f"m{visit}@example"))
        run(lake)
    named = {holder.key: holder for holder in proof_of(lake, clock).holders}
    held = published(objects_with(root, ANN.encode()))
    assert held <= named.keys()
    for part in PUBLISHED:
        times = {key: named[key].goes_at_ms or 0 for key in held if part in key}
        assert min(times.values()) > clock.now_ms()
        clock.sleep((min(times.values()) - clock.now_ms()) / 1_000 - DAY_SECONDS)
        collect(lake, clock)
        assert times.keys() <= {holder.key for holder in proof_of(lake, clock).holders}
        clock.sleep((max(times.values()) - clock.now_ms()) / 1_000 + 1)
        collect(lake, clock)
        assert not times.keys() & objects_with(root, ANN.encode())
    assert not published(objects_with(root, ANN.encode()))
    left = proof_of(lake, clock).holders
    assert not held & {holder.key for holder in left}
    assert any(holder.kind == "log entry" for holder in left), "a log's entry stays for ever"


@pytest.mark.parametrize("published_as", ["delta", "iceberg"])
def test_a_column_that_becomes_private_has_no_bounds_in_what_is_published_from_then_on(
    lake: DeltaCatalog, clock: ManualClock, tmp_path: Path, published_as: str
) -> None:
    table = lake.create_table(PEOPLE, properties={"primary_keys": ["email"], "publish": [published_as]})
    table.append({}, people(ANN))
    session(lake, clock)
    table.set_properties({"private_columns": ["email", "name"]})
    publish_now(lake, clock)
    root = tmp_path / "lake"
    assert published(str(path.relative_to(root)) for path in root.rglob("*"))
    assert not published(objects_with(root, *SECRETS))
    assert objects_with(root, ANN.encode()), "the log's entries have them"


def test_published_metadata_that_cannot_be_read_is_named(
    lake: DeltaCatalog, clock: ManualClock, tmp_path: Path
) -> None:
    table = lake.create_table(PEOPLE, properties={**PRIVATE, "publish": ["delta", "iceberg"]})
    for visit in range(11):
        table.append({}, people(ANN, f"m{visit}@example"))
        run(lake)
    folder = tmp_path / "lake" / "tables" / PEOPLE
    oldest, *_, newest = sorted(
        (folder / "iceberg" / "metadata").glob("*-data.avro"), key=lambda path: path.stat().st_mtime_ns
    )
    damaged = [
        next((folder / "compacted" / "_delta_log").glob("*.checkpoint.parquet")),
        oldest,
        folder / "iceberg" / "metadata" / "notes.txt",
        folder / "compacted" / "_delta_log" / "notes.txt",
    ]
    for path in damaged:
        path.write_bytes(b"rubbish")
    named = {holder.key: holder for holder in proof_of(lake, clock).holders}
    for path in damaged:
        assert "it cannot be read" in named[str(path.relative_to(tmp_path / "lake"))].why
    assert "by hand" in named[str(damaged[3].relative_to(tmp_path / "lake"))].how
    newest.write_bytes(b"rubbish")
    with pytest.raises(Corrupt, match=f"{newest.name}.*delete the table's folder iceberg/, and publish it again"):
        proof_of(lake, clock)


def test_each_of_many_keys_has_the_proof_that_it_has_alone(lake: DeltaCatalog, clock: ManualClock) -> None:
    table = lake.create_table(PEOPLE, properties=PRIVATE)
    emails = [f"{number}@example" for number in range(40)]
    for first in range(0, 40, 10):
        table.append({}, people(*emails[first : first + 10]))
    run(lake)
    table.append({}, people(emails[3]).select(["email"]), operation="delete")
    wanted = [{"email": each} for each in [*emails[:20], "nobody@example"]]
    alone = [prove_many(lake, PEOPLE, {}, [key], clock)[0] for key in wanted]
    assert prove_many(lake, PEOPLE, {}, wanted, clock) == alone
    assert not alone[-1].holders
    assert all(each.holders for each in alone[:-1])
    with pytest.raises(Invalid, match="the key has columns"):
        prove_many(lake, PEOPLE, {}, [{"email": "a"}, {"name": "b"}], clock)


def test_a_file_of_keys_is_answered_with_a_line_for_each(lake: DeltaCatalog, command: Command, tmp_path: Path) -> None:
    lake.create_table(PEOPLE, properties=PRIVATE).append({}, people(ANN, BOB))
    file = tmp_path / "keys.jsonl"
    prove_file = ("privacy", "prove", PEOPLE, "--lake", lake.location.root_uri, "--keys", str(file))
    file.write_text(f'{{"email": "{ANN}"}}\n\n{{"email": "nobody@example"}}\n')
    result = command(*prove_file, "-o", "json")
    answer = json.loads(result.out)
    assert result.exit_code == 1
    assert [(each["key"], each["proved"], each["objects"]) for each in answer["keys"]] == [
        ({"email": ANN}, False, len(answer["keys"][0]["holders"])),
        ({"email": "nobody@example"}, True, 0),
    ]
    assert len(command(*prove_file, "-o", "jsonl").out.splitlines()) == 2
    assert "1 key of 2 proved gone." in command(*prove_file).out
    file.write_text('{"email": "nobody@example"}\n')
    assert command(*prove_file).exit_code == 0
    lines = ('{"email": "a"', '{"name": "b"}', "[1]", '{"email": []}', "[" * 100_000, '{"email": "\\udcff"}')
    file.write_text("\n".join(lines))
    refused = command(*prove_file)
    assert refused.exit_code == 2
    for reason in (
        "line 1 of the keys is not JSON",
        "line 2 of the keys: write a JSON object with",
        "line 3",
        "line 4",
        "line 5 of the keys is not JSON",
        r"line 6 of the keys, 'email': '\udcff' is no string",
    ):
        assert reason in refused.err
    file.write_text("\n")
    assert "the file of keys has no line" in command(*prove_file).err
    assert "Give --key COLUMN=VALUE" in command(*prove_file[:-2]).err


def test_without_a_partition_all_are_searched_dropped_ones_too(
    lake: DeltaCatalog, clock: ManualClock, command: Command, tmp_path: Path
) -> None:
    table = lake.create_table(PEOPLE, ["day"], properties={**PRIVATE, "publish": ["delta"]})
    days = [{"day": each} for each in ("1", "2", "3", "4")]
    for day, emails in zip(days, ((ANN,), (BOB,), (ANN, BOB)), strict=False):
        table.append(day, people(*emails))
    run(lake)
    table.append(days[3], people(ANN).slice(0, 0))
    table.drop_partitions(days[2], dry_run=False)

    def together(email: str) -> PrivacyProof:
        wanted = table.partitions_even_dropped()
        return prove_partitions(lake, PEOPLE, wanted, lambda _: [{"email": email}], clock)[0][1]

    alone = [prove_many(lake, PEOPLE, day, [{"email": ANN}], clock)[0] for day in days]
    found = together(ANN)
    assert (found.partition, found.tables) == (None, (PEOPLE,))
    assert set(found.holders) == {holder for proof in alone for holder in proof.holders}
    assert len(found.holders) == len(set(found.holders))
    of_the_table = len(list(lake.store.list(f"{TableFolder(PEOPLE).open_files}/_delta_log/")))
    assert found.searched_objects == sum(proof.searched_objects for proof in alone) - 3 * of_the_table
    named = [re.search(r"/data/day=(\d)/", holder.key) for holder in found.holders]
    assert {each[1] for each in named if each is not None} == {"1", "3"}
    assert not together("nobody@example").holders

    prove = ("privacy", "prove", PEOPLE, "--lake", lake.location.root_uri, "--key")
    assert command(*prove, f"email={ANN}").exit_code == 1
    nobody = command(*prove, "email=nobody@example")
    assert nobody.exit_code == 0
    assert "in any of 4 partitions of" in " ".join(nobody.out.split())
    lines = tmp_path / "keys.jsonl"
    lines.write_text(f'{{"email": "{ANN}"}}\n{{"email": "nobody@example"}}\n')
    assert "1 key of 2 proved gone." in command(*prove[:-1], "--keys", str(lines)).out


def test_the_command_that_the_proof_names_rids_the_live_index_of_a_quiet_table_of_the_key(
    lake: DeltaCatalog, table: Table, clock: ManualClock, command: Command
) -> None:
    """So few rows are not merged into the index by the delete's own round, and no other round comes."""
    table.append({}, people(ANN, BOB, "c@example"))
    run(lake)
    table.append({}, people(ANN).select(["email"]), operation="delete")
    run(lake)
    live = {holder.how for holder in proof_of(lake, clock).holders if "live index" in holder.why}
    assert len(live) == 1
    rehash = re.search(r"`lithify (.*?)`", live.pop())
    assert rehash is not None

    done = command(*rehash[1].split(), "--lake", lake.location.root_uri)

    assert done.exit_code == 0
    assert not any("live index" in holder.why for holder in proof_of(lake, clock).holders)
