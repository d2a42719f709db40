"""The guarantees for writers and readers of a lake , on every kind of store."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from compactor.lake import DeltaCatalog, Table
from compactor.log.durable_log import DurableLog
from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid, Unavailable
from compactor.model.names import ContentType, LifecycleState, Operation
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.tabular import TabularFile, read_table
from tests.fakes.faulty_store import FaultyStore, Stopped
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore

ORDERS = "ACME.ORDERS.V1"
PutFile = Callable[[str, pa.Table], str]
ROWS = pa.table({"order_id": [1, 2, 3], "status": ["new", None, "paid"]})


@pytest.fixture
def lake(store: ObjectStore) -> DeltaCatalog:
    return DeltaCatalog(store, SystemClock())


@pytest.fixture
def orders(lake: DeltaCatalog) -> Table:
    return lake.create_table(ORDERS)


@pytest.fixture
def put_file(store: ObjectStore, tmp_path: Path) -> PutFile:
    """Puts rows into a file that the lake's sessions can read, and returns its URI."""

    def put(name: str, rows: pa.Table) -> str:
        pq.write_table(rows, tmp_path / name)
        if not store.location.is_remote:
            return f"file://{tmp_path}/{name}"
        store.overwrite(f"landing/{name}", (tmp_path / name).read_bytes())
        return f"{store.location.root_uri}/landing/{name}"

    return put


@pytest.fixture
def memory_lake(tmp_path: Path) -> DeltaCatalog:
    """For behaviour that does not depend on the store: tested once."""
    return DeltaCatalog(MemoryStore(SystemClock(), StoreLocation(f"file://{tmp_path}/memory")), SystemClock())


@pytest.fixture
def memory_orders(memory_lake: DeltaCatalog) -> Table:
    return memory_lake.create_table(ORDERS)


def again(table: Table) -> Table:
    """The same table, opened by another process without a cache."""
    return DeltaCatalog(table._store, SystemClock()).table(table.table_id)


def rows_of(table: Table, path: str, content_type: ContentType = ContentType.PARQUET) -> pa.Table:
    stream = table.stream({})
    return read_table(stream.location, TabularFile(stream.uri_of(path), content_type))


def delta_ids(table: Table) -> list[str]:
    active = table.stream({}).load().state.active
    return [] if active is None else [delta.delta_id for delta in active.deltas]


# -- tables


def test_a_table_is_there_once_it_is_created(lake: DeltaCatalog, store: ObjectStore) -> None:
    schema = pa.schema([pa.field("day", pa.date32(), metadata={"unit": "day"})], metadata={"by": "us"})
    lake.create_table(ORDERS, ["region", "day"], schema)
    found = DeltaCatalog(store, SystemClock()).table(ORDERS)
    assert found.table_id == ORDERS
    assert found.partition_keys == ("region", "day")
    assert found.schema is not None
    assert found.schema.equals(schema, check_metadata=True)


def test_creating_the_same_table_again_answers_with_it(lake: DeltaCatalog) -> None:
    lake.create_table(ORDERS, ["day"], pa.schema([("a", pa.int8())]))
    assert lake.create_table(ORDERS, ("day",), pa.schema([("a", pa.int8())])).partition_keys == ("day",)
    assert lake.tables() == [ORDERS]


@pytest.mark.parametrize(
    ("partition_keys", "schema", "reason"),
    [
        (["day"], pa.schema([("a", pa.int16())]), "another schema"),
        (["day"], None, "with a schema"),
        ([], pa.schema([("a", pa.int8())]), "partition keys"),
    ],
)
def test_a_table_cannot_be_created_again_with_another_definition(
    memory_lake: DeltaCatalog, partition_keys: list[str], schema: pa.Schema, reason: str
) -> None:
    memory_lake.create_table(ORDERS, ["day"], pa.schema([("a", pa.int8())]))
    with pytest.raises(Invalid, match=reason):
        memory_lake.create_table(ORDERS, partition_keys, schema)


def test_every_fault_of_a_definition_is_told_at_once(memory_lake: DeltaCatalog) -> None:
    with pytest.raises(Invalid) as refused:
        memory_lake.create_table("orders", ["day", "day", ""], pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    assert len(refused.value.reasons) == 4
    assert memory_lake.tables() == []


def test_a_table_that_is_not_there_is_refused_by_name(lake: DeltaCatalog) -> None:
    with pytest.raises(Invalid, match=r"there is no table NO\.SUCH\.V1"):
        lake.table("NO.SUCH.V1")


@pytest.mark.parametrize("name", ["a/b", "..", "../../etc", "wide ünïcode 日本", "x" * 600, "%2E%2E", "~", "a.b.c"])
def test_any_text_can_name_a_table_and_comes_back(lake: DeltaCatalog, name: str) -> None:
    table_id = f"ACME.{name}.V1"
    lake.create_table(table_id)
    lake.create_table("ACME.OTHER.V1")
    assert lake.tables() == sorted([table_id, "ACME.OTHER.V1"])
    assert lake.table(table_id).table_id == table_id


def test_a_folder_that_is_not_ours_is_no_table_and_no_partition(lake: DeltaCatalog, store: ObjectStore) -> None:
    orders = lake.create_table(ORDERS, ["day"])
    orders.append({"day": "1"}, ROWS)
    store.put_if_absent("tables/not ours/x", b"")
    store.put_if_absent(f"tables/{ORDERS}/streams/not ours/x", b"")
    assert lake.tables() == [ORDERS]
    assert orders.partitions() == [{"day": "1"}]


# -- partitions


@pytest.mark.parametrize("value", ["", " ", "a/b", "..", "/", "日本", "a=b,c=d", "%", "~", "x" * 500, "North America"])
def test_any_text_can_be_a_partition_value_and_comes_back(lake: DeltaCatalog, value: str) -> None:
    table = lake.create_table(ORDERS, ["region", "day"])
    delta = table.append({"day": "1", "region": value}, ROWS)
    assert table.partitions() == [{"region": value, "day": "1"}]
    stream = again(table).stream({"region": value, "day": "1"})
    assert read_table(stream.location, TabularFile(stream.uri_of(delta.files[0].path), ContentType.PARQUET)) == ROWS


def test_a_partition_that_would_not_fit_into_keys_is_refused_before_anything_is_written(lake: DeltaCatalog) -> None:
    table = lake.create_table(ORDERS, ["region"])
    with pytest.raises(Invalid, match="use shorter partition values"):
        table.append({"region": "x" * 5_000}, ROWS)
    assert table.partitions() == []


def test_partitions_are_those_with_a_log_in_order(lake: DeltaCatalog) -> None:
    table = lake.create_table(ORDERS, ["region", "day"])
    for region, day in (("b", "1"), ("a", "2"), ("a", "1")):
        table.append({"region": region, "day": day}, ROWS)
    assert [tuple(partition.values()) for partition in table.partitions()] == [("a", "1"), ("a", "2"), ("b", "1")]


@pytest.mark.parametrize(
    ("partition", "reasons"),
    [
        ({}, ["lacks 'region'", "lacks 'day'"]),
        ({"region": "a", "day": "b", "hour": "c"}, ["'hour' is no partition key"]),
        ({"region": "a", "date": "b"}, ["lacks 'day'", "'date' is no partition key"]),
        ({"region": "a", "day": 3}, ["'day' is 3: give it as text"]),
        (["region"], ["not a list"]),
    ],
)
def test_partition_values_must_be_exactly_the_tables_keys(
    memory_lake: DeltaCatalog, partition: dict[str, str], reasons: list[str]
) -> None:
    table = memory_lake.create_table(ORDERS, ["region", "day"])
    with pytest.raises(Invalid) as refused:
        table.append(partition, ROWS)
    assert len(refused.value.reasons) == len(reasons)
    for reason, expected in zip(refused.value.reasons, reasons):
        assert expected in reason


# -- contents of a delta


def test_an_appended_table_is_read_back_from_its_file(orders: Table) -> None:
    delta = orders.append({}, ROWS, operation="upsert")
    (file,) = delta.files
    assert (file.file_number, file.rows, delta.rows) == (1, 3, 3)
    assert delta.operation is Operation.UPSERT
    assert file.columns["order_id"].min_value == 1
    assert file.columns["status"].null_count == 1
    assert rows_of(orders, file.path) == ROWS


def test_rows_are_split_into_files_in_order(orders: Table) -> None:
    rows = pa.table({"id": range(10)})
    delta = orders.append({}, rows, rows_per_file=4)
    assert [(file.file_number, file.rows) for file in delta.files] == [(1, 4), (2, 4), (3, 2)]
    assert pa.concat_tables([rows_of(orders, file.path) for file in delta.files]) == rows


def test_a_delta_without_rows_is_one_empty_file(orders: Table) -> None:
    delta = orders.append({}, ROWS.slice(0, 0))
    assert [file.rows for file in delta.files] == [0]
    assert rows_of(orders, delta.files[0].path).schema == ROWS.schema


def test_a_reader_is_streamed_into_files(orders: Table) -> None:
    taken = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            taken.append(number)
            yield pa.record_batch({"id": pa.array(range(number * 50_000, (number + 1) * 50_000))})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches())
    delta = orders.append({}, reader, rows_per_file=100_000)
    assert [file.rows for file in delta.files] == [100_000, 100_000, 50_000]
    everything = pa.concat_tables([rows_of(orders, file.path) for file in delta.files])
    assert everything.column("id").to_pylist() == list(range(250_000))


def test_a_reader_that_fails_adds_nothing(orders: Table) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": pa.array(range(100_000))})
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        orders.append({}, pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches()))
    assert orders.partitions() == []


def test_other_libraries_tables_are_taken_through_arrow(orders: Table) -> None:
    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return ROWS.__arrow_c_stream__(requested_schema)

    assert rows_of(orders, orders.append({}, Frame()).files[0].path) == ROWS


def test_files_are_registered_where_they_lie(
    memory_orders: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = memory_orders
    pq.write_table(ROWS, tmp_path / "one.parquet")
    pa.feather.write_feather(ROWS.slice(0, 2), tmp_path / "two.arrow")
    pq.write_table(ROWS.slice(0, 1), tmp_path / "no suffix")
    monkeypatch.chdir(tmp_path)
    delta = orders.append({}, [tmp_path / "one.parquet", f"file://{tmp_path}/two.arrow", "no suffix"])
    assert [(file.path, file.content_type, file.rows) for file in delta.files] == [
        (f"file://{tmp_path}/one.parquet", ContentType.PARQUET, 3),
        (f"file://{tmp_path}/two.arrow", ContentType.FEATHER, 2),
        (f"file://{tmp_path}/no suffix", ContentType.PARQUET, 1),
    ]
    assert delta.files[0].columns["order_id"].max_value == 3
    assert rows_of(orders, delta.files[0].path) == ROWS


def test_files_are_copied_into_the_lake_whatever_it_is(orders: Table, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    (tmp_path / "b.json").write_text('{"order_id": 4, "status": "new"}\n')
    delta = orders.append({}, [tmp_path / "a.parquet", tmp_path / "b.json"], copy=True, delta_id="one")
    assert [file.path.split("/")[0] for file in delta.files] == ["tables", "tables"]
    assert rows_of(orders, delta.files[0].path) == ROWS
    assert rows_of(orders, delta.files[1].path, ContentType.JSON).num_rows == 1
    assert again(orders).append({}, [tmp_path / "a.parquet", tmp_path / "b.json"], copy=True, delta_id="one") == delta


def test_a_broken_file_is_refused_by_name_and_nothing_is_added(memory_orders: Table, tmp_path: Path) -> None:
    orders = memory_orders
    pq.write_table(ROWS, tmp_path / "good.parquet")
    (tmp_path / "bad.parquet").write_bytes((tmp_path / "good.parquet").read_bytes()[:-10])
    with pytest.raises(Invalid, match=r"bad\.parquet"):
        orders.append({}, [tmp_path / "good.parquet", tmp_path / "bad.parquet"])
    assert orders.partitions() == []


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ([], "list is empty"),
        (["/nowhere/x.parquet"], "x.parquet does not exist"),
        (["/"], "is a folder"),
        (["/nowhere/x.parquet", "file:///nowhere/x.parquet"], "named twice"),
        ("/nowhere/x.parquet", "made of a str"),
        ({"a": [1]}, "made of a dict"),
        ([1, 2], "made of a list"),
        (pa.table({}), "no columns"),
        (pa.Table.from_arrays([[1], [2]], names=["a", "a"]), "more than one column named 'a'"),
    ],
)
def test_a_value_that_is_not_a_source_is_refused_in_one_sentence(
    memory_orders: Table, source: object, reason: str
) -> None:
    with pytest.raises(Invalid, match=reason):
        memory_orders.append({}, source)
    assert memory_orders.partitions() == []


def test_rows_that_the_declared_schema_cannot_take_are_refused_before_they_are_written(
    memory_lake: DeltaCatalog, tmp_path: Path
) -> None:
    table = memory_lake.create_table(ORDERS, schema=pa.schema([("order_id", pa.int64()), ("status", pa.string())]))
    table.append({}, ROWS)
    with pytest.raises(Invalid, match="order_id"):
        table.append({}, pa.table({"order_id": [b"x"]}))
    pq.write_table(pa.table({"order_id": [b"x"]}), tmp_path / "other.parquet")
    with pytest.raises(Invalid, match=r"other\.parquet"):
        table.append({}, [tmp_path / "other.parquet"])
    assert len(delta_ids(table)) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"operation": "insert"}, "'insert' is no operation: use upsert, delete"),
        ({"content_type": "xlsx"}, "'xlsx' is no content type: use parquet"),
        ({"rows_per_file": 0}, "at least one row"),
        ({"position": 2**63}, "64 bits"),
        ({"delta_id": ""}, "delta_id is empty"),
        ({"stream_version": 1}, "no stream version 1"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(
    memory_orders: Table, arguments: dict[str, int], reason: str
) -> None:
    with pytest.raises(Invalid, match=reason):
        memory_orders.append({}, ROWS, **arguments)  # type: ignore[arg-type]
    assert memory_orders.partitions() == []


# -- positions


def test_positions_are_the_clock_and_grow_though_it_goes_back(store: ObjectStore) -> None:
    clock = ManualClock(now_ms=5_000)
    table = DeltaCatalog(store, clock).create_table(ORDERS)
    positions = [table.append({}, ROWS).position]
    for now_ms in (5_000, 3_000, 9_000):
        clock.set_ms(now_ms)
        positions.append(table.append({}, ROWS).position)
    assert positions == [5_000, 5_001, 5_002, 9_000]


def test_a_position_may_be_given_and_must_grow(orders: Table) -> None:
    assert orders.append({}, ROWS, position=-7).position == -7
    assert orders.append({}, ROWS, position=3).position == 3
    for position in (3, 2):
        with pytest.raises(Invalid, match=f"position {position} is not above 3"):
            orders.append({}, ROWS, position=position)


# -- idempotence


def test_a_second_append_of_the_same_delta_id_is_a_no_op_with_the_same_answer(orders: Table, put_file: PutFile) -> None:
    uri = put_file("a.parquet", ROWS)
    first = orders.append({}, ROWS, delta_id="one")
    registered = orders.append({}, [uri], delta_id="two")
    chunked = pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)])
    assert again(orders).append({}, chunked, delta_id="one") == first
    assert again(orders).append({}, ROWS.to_reader(max_chunksize=1), delta_id="one") == first
    assert again(orders).append({}, ROWS, delta_id="one", position=first.position, rows_per_file=1) == first
    assert again(orders).append({}, [uri], delta_id="two") == registered
    assert delta_ids(orders) == ["one", "two"]


def test_a_repeated_append_writes_no_file(orders: Table, store: ObjectStore) -> None:
    orders.append({}, ROWS, delta_id="one")
    before = [entry.key for entry in store.list("")]
    again(orders).append({}, ROWS.to_reader(), delta_id="one")
    assert [entry.key for entry in store.list("")] == before


@pytest.mark.parametrize(
    ("rows", "arguments", "reason"),
    [
        (ROWS.slice(1), {}, "other content"),
        (ROWS, {"operation": "delete"}, "operation upsert, not delete"),
        (ROWS, {"position": 4}, "position 3, not 4"),
    ],
)
def test_the_same_delta_id_with_other_content_is_an_error(
    memory_orders: Table, rows: pa.Table, arguments: dict[str, str], reason: str
) -> None:
    memory_orders.append({}, ROWS, delta_id="one", position=3)
    with pytest.raises(Invalid, match=reason):
        memory_orders.append({}, rows, delta_id="one", **arguments)  # type: ignore[arg-type]


def test_a_registered_file_that_was_written_again_is_other_content(orders: Table, put_file: PutFile) -> None:
    uri = put_file("a.parquet", ROWS)
    orders.append({}, [uri], delta_id="one")
    put_file("a.parquet", ROWS.slice(1))
    with pytest.raises(Invalid, match="other content"):
        orders.append({}, [uri], delta_id="one")


# -- stream versions


def test_the_first_append_creates_stream_version_1_active_in_the_same_entry(orders: Table) -> None:
    delta = orders.append({}, ROWS)
    loaded = orders.stream({}).load()
    assert (delta.stream_version, loaded.entry_number) == (1, 1)
    assert loaded.state.sources[1].state is LifecycleState.ACTIVE


def test_an_unreleased_version_takes_deltas_by_name_until_it_is_released(orders: Table) -> None:
    orders.append({}, ROWS, delta_id="old")
    assert orders.create_stream_version({}) == 2
    backfilled = orders.append({}, ROWS, stream_version=2, delta_id="old")
    assert backfilled.stream_version == 2
    assert orders.append({}, ROWS).stream_version == 1
    orders.release_stream_version({}, 2)
    orders.release_stream_version({}, 2)
    assert orders.append({}, ROWS).stream_version == 2
    states = {number: stream.state for number, stream in orders.stream({}).load().state.sources.items()}
    assert states == {1: LifecycleState.DEPRECATED, 2: LifecycleState.ACTIVE}


def test_a_deprecated_version_takes_nothing_and_never_comes_back(memory_orders: Table) -> None:
    memory_orders.append({}, ROWS, delta_id="before")
    assert memory_orders.create_stream_version({}, state="active") == 2
    with pytest.raises(Invalid, match="deprecated: it takes no more"):
        memory_orders.append({}, ROWS, stream_version=1)
    with pytest.raises(Invalid, match="cannot come back"):
        memory_orders.release_stream_version({}, 1)
    # A retry finds its delta although another version is active by now.
    assert memory_orders.append({}, ROWS, delta_id="before").stream_version == 1


def test_without_an_active_version_a_writer_must_name_one(memory_orders: Table) -> None:
    assert memory_orders.create_stream_version({}) == 1
    with pytest.raises(Invalid, match="no stream version is active"):
        memory_orders.append({}, ROWS)
    with pytest.raises(Invalid, match="there is no stream version 7"):
        memory_orders.append({}, ROWS, stream_version=7)
    with pytest.raises(Invalid, match="cannot begin as deprecated"):
        memory_orders.create_stream_version({}, state="deprecated")
    assert memory_orders.append({}, ROWS, stream_version=1).stream_version == 1


# -- many writers


def test_all_threads_that_race_on_one_stream_succeed_and_none_is_lost(
    orders: Table, request: pytest.FixtureRequest
) -> None:
    if "moto" in request.node.name:
        pytest.skip("moto does not hold a key between its check and its put")
    writers, deltas_each = 6, 4

    def write(writer: int) -> None:
        table = again(orders)
        for number in range(deltas_each):
            table.append({}, ROWS, delta_id=f"{writer}.{number}")

    with ThreadPoolExecutor(writers) as threads:
        list(threads.map(write, range(writers)))
    expected = sorted(f"{writer}.{number}" for writer in range(writers) for number in range(deltas_each))
    assert sorted(delta_ids(again(orders))) == expected


def test_threads_that_append_one_delta_id_at_once_all_get_the_one_answer(
    orders: Table, request: pytest.FixtureRequest
) -> None:
    if "moto" in request.node.name:
        pytest.skip("moto does not hold a key between its check and its put")
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: again(orders).append({}, ROWS, delta_id="one"), range(6)))
    assert all(answer == answers[0] for answer in answers)
    assert delta_ids(again(orders)) == ["one"]


def _write_in_a_process(location: StoreLocation, writer: int) -> None:
    table = DeltaCatalog.open(location.root_uri, endpoint_url=location.endpoint_url, region=location.region).table(
        ORDERS
    )
    for number in range(4):
        table.append({}, ROWS, delta_id=f"{writer}.{number}")


def test_all_processes_that_race_on_one_stream_succeed_and_none_is_lost(
    orders: Table, store: ObjectStore, request: pytest.FixtureRequest
) -> None:
    if "memory" in request.node.name or "moto" in request.node.name:
        pytest.skip("memory is not shared between processes; moto does not hold a key between its check and its put")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_in_a_process, args=(store.location, writer)) for writer in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    expected = sorted(f"{writer}.{number}" for writer in range(4) for number in range(4))
    assert sorted(delta_ids(again(orders))) == expected


# -- a store that fails


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_append_gets_through_a_store_that_fails_for_a_moment(store: ObjectStore, when: str) -> None:
    faulty = FaultyStore(store)
    table = DeltaCatalog(faulty, ManualClock()).create_table(ORDERS)
    faulty.fail("put_if_absent", "/streams/", "before" if when == "before" else "after", times=2)
    table.append({}, ROWS, delta_id="one")
    assert delta_ids(again(table)) == ["one"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_append_whose_outcome_is_unknown_can_be_repeated_under_its_delta_id(store: ObjectStore, when: str) -> None:
    faulty = FaultyStore(store)
    table = DeltaCatalog(faulty, ManualClock()).create_table(ORDERS)
    table.append({}, ROWS, delta_id="zero")
    faulty.fail("put_if_absent", "/streams/", "before" if when == "before" else "after", times=None)
    faulty.fail("read", "00000000000000000002.json", "after", times=None)
    with pytest.raises(Unavailable):
        table.append({}, ROWS, delta_id="one")
    assert not [key for verb, key in faulty.requests if verb == "delete"]
    faulty.heal()
    delta = table.append({}, ROWS, delta_id="one")
    assert delta_ids(again(table)) == ["zero", "one"]
    assert rows_of(table, delta.files[0].path) == ROWS


def test_a_writer_that_stops_anywhere_and_starts_again_adds_its_delta_once(store: ObjectStore) -> None:
    unhindered = FaultyStore(store)
    DeltaCatalog(unhindered, SystemClock()).create_table("A.PROBE.V1").append({}, ROWS, delta_id="one")
    points = unhindered.points
    assert points
    for number, point in enumerate(points):
        table_id = f"A.T{number}.V1"
        faulty = FaultyStore(store)
        faulty.stop_at(number)
        with pytest.raises(Stopped):
            DeltaCatalog(faulty, SystemClock()).create_table(table_id).append({}, ROWS, delta_id="one")
        table = DeltaCatalog(store, SystemClock()).create_table(table_id)
        table.append({}, ROWS, delta_id="one")
        assert delta_ids(again(table)) == ["one"], point


# -- requests of an append


def test_a_writer_that_goes_on_reads_one_entry_and_writes_one_for_each_delta(store: ObjectStore) -> None:
    counted = FaultyStore(store)
    table = DeltaCatalog(counted, SystemClock()).create_table(ORDERS)
    for _ in range(3):
        table.append({}, ROWS)
    counted.requests.clear()
    table.append({}, ROWS)
    verbs = [verb for verb, _ in counted.requests]
    assert verbs.count("put_if_absent") == 1
    assert verbs.count("read") <= 2
    assert len(verbs) <= 3


def test_a_lake_that_is_asked_for_a_table_again_reads_only_what_was_added(store: ObjectStore) -> None:
    counted = FaultyStore(store)
    lake = DeltaCatalog(counted, SystemClock())
    other = DeltaCatalog(store, SystemClock()).create_table(ORDERS)
    for number in range(5):
        other.append({}, ROWS, delta_id=f"delta-{number}")
    assert delta_ids(lake.table(ORDERS)) == [f"delta-{number}" for number in range(5)]
    other.append({}, ROWS, delta_id="delta-5")
    counted.requests.clear()
    assert delta_ids(lake.table(ORDERS)) == [f"delta-{number}" for number in range(6)]
    of_stream = [request for request in counted.requests if "/streams/" in request[1]]
    assert of_stream == [("read", f"{other.stream({}).log.folder}/{number:020}.json") for number in (6, 7)]


def test_a_log_can_be_read_by_anybody_who_knows_its_folder(orders: Table, store: ObjectStore) -> None:
    orders.append({}, ROWS)
    stream = orders.stream({})
    assert isinstance(stream.log, DurableLog)
    assert store.read(f"{stream.folder.log}/00000000000000000001.json") is not None
