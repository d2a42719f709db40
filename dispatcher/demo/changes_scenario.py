"""The demo of change feeds: a shop's changes land as files, `lithify ingest` takes them in, and the keeper and a
dispatcher compact: two tables of the lake stay equal to those of the shop.

The shop is in SQLite: triggers log every change of a row, as a database does, and `take_feed` gives what they have
logged as JSON lines of Debezium.

main thread      lets the shop trade, lands its feed, and compares, until the shop has closed and nothing is pending
ingest           a process, as users run it
keeper           a thread with the loop of `lithify keeper`
dispatcher       a thread with the dispatcher of `lithify dispatch`; its workers are processes
"""

import json
import shlex
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from compactor.lake import Table
from compactor.model.clock import Clock
from compactor.model.errors import Unavailable
from compactor.model.names import counted
from compactor.planning.stream_figures import StreamFigures, total
from compactor.planning.table_figures import read_figures
from dispatcher.demo.environment import DemoEnvironment
from dispatcher.demo.keeper_scenario import DRAIN_SECONDS, POLICY, SAMPLE_SECONDS, SHOWN_EVERY, keeper_and_dispatcher
from dispatcher.demo.screen import Screen
from dispatcher.demo.stand_ins import REGION

Row = tuple[str | int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class ShopTable:
    """`columns`: the primary key first, then the partition key."""

    columns: tuple[str, ...]
    types: str
    partitions: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.columns[0]

    @property
    def partition_key(self) -> str:
        return self.columns[1]


TABLES: Mapping[str, ShopTable] = MappingProxyType(
    {
        "customers": ShopTable(
            ("customer_id", "country", "name", "orders"),
            "customer_id INTEGER PRIMARY KEY, country TEXT, name TEXT, orders INTEGER",
            ("DE", "FR", "JP"),
        ),
        "orders": ShopTable(
            ("order_id", "status", "customer_id", "cents"),
            "order_id INTEGER PRIMARY KEY, status TEXT, customer_id INTEGER, cents INTEGER",
            ("NEW", "PAID", "SENT"),
        ),
    }
)
ORDER_COLUMN = "__source_lsn"
"""The order of the changes, as a sort key of a table is called."""

FIRST_CUSTOMERS = 200
PURCHASES_PER_CUSTOMER = 4
_NAMES = ("Ada", "Bea", "Cem", "Dora", "Emil", "Fay")

_IMAGES = {"c": "'', {new}", "u": "{old}, {new}", "d": "{old}, ''"}
_STATEMENTS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}


class Shop:
    """Belongs to the thread that made it."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = np.random.default_rng(seed)
        self._database = sqlite3.connect(":memory:")
        self._next_id = dict.fromkeys(TABLES, 1)
        self._database.execute(
            "CREATE TABLE log (lsn INTEGER PRIMARY KEY AUTOINCREMENT, of_table TEXT, op TEXT, before TEXT, after TEXT)"
        )
        for name, table in TABLES.items():
            self._database.execute(f"CREATE TABLE {name} ({table.types})")
            for op, images in _IMAGES.items():
                both = images.format(old=_as_json(table, "OLD"), new=_as_json(table, "NEW"))
                self._database.execute(
                    f"CREATE TRIGGER {name}_{op} AFTER {_STATEMENTS[op]} ON {name} BEGIN "
                    f"INSERT INTO log (of_table, op, before, after) VALUES ('{name}', '{op}', {both}); END"
                )
        for _ in range(FIRST_CUSTOMERS):
            self._add_customer()

    def close(self) -> None:
        self._database.close()

    def trade(self, times: int) -> None:
        """So many times somebody buys, pays, moves, gets another number, or leaves."""
        for _ in range(times):
            self._one_of((self._buy, self._buy, self._buy, self._go_on, self._move, self._renumber, self._remove))()

    def take_feed(self) -> dict[str, bytes]:
        """By table, the changes since the last call. A changed key is a delete and an insert, as Debezium has it."""
        lines: dict[str, list[str]] = {}
        logged = self._database.execute("SELECT of_table, lsn, op, before, after FROM log ORDER BY lsn").fetchall()
        for name, lsn, op, before, after in logged:
            source = json.dumps({"table": name, "lsn": lsn})
            key = TABLES[name].key
            ops = [(op, before, after)]
            if op == "u" and json.loads(before)[key] != json.loads(after)[key]:
                ops = [("d", before, ""), ("c", "", after)]
            lines.setdefault(name, []).extend(
                f'{{"before": {old or "null"}, "after": {new or "null"}, "op": "{each}", "source": {source}}}'
                for each, old, new in ops
            )
        self._database.execute("DELETE FROM log")
        return {name: "\n".join(each).encode() + b"\n" for name, each in lines.items()}

    def rows(self, name: str) -> Sequence[Row]:
        """Of one of `TABLES`, sorted by key."""
        columns = ", ".join(TABLES[name].columns)
        found: list[Row] = self._database.execute(f"SELECT {columns} FROM {name} ORDER BY 1").fetchall()
        return found

    def _below(self, number: int) -> int:
        return int(self._chance.integers(number))

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[self._below(len(choices))]

    def _new_id(self, name: str) -> int:
        self._next_id[name] += 1
        return self._next_id[name] - 1

    def _any_of(self, name: str) -> int | None:
        """The key of one of its rows."""
        table, wanted = TABLES[name], self._below(self._next_id[name])
        found = self._database.execute(
            f"SELECT {table.key} FROM {name} WHERE {table.key} >= ? ORDER BY 1 LIMIT 1", (wanted,)
        ).fetchone()
        return None if found is None else int(found[0])

    def _add_customer(self) -> None:
        country, name = self._one_of(TABLES["customers"].partitions), self._one_of(_NAMES)
        row = (self._new_id("customers"), country, name)
        self._database.execute("INSERT INTO customers VALUES (?, ?, ?, 0)", row)

    def _buy(self) -> None:
        if self._below(PURCHASES_PER_CUSTOMER) == 0:
            self._add_customer()
        customer = self._any_of("customers")
        row = (self._new_id("orders"), customer, 100 + self._below(9_900))
        self._database.execute("INSERT INTO orders VALUES (?, 'NEW', ?, ?)", row)
        self._database.execute("UPDATE customers SET orders = orders + 1 WHERE customer_id = ?", (customer,))

    def _go_on(self) -> None:
        """An order is paid, or sent: it moves to another partition."""
        after, where = "CASE status WHEN 'NEW' THEN 'PAID' ELSE 'SENT' END", "order_id = ? AND status <> 'SENT'"
        self._database.execute(f"UPDATE orders SET status = {after} WHERE {where}", (self._any_of("orders"),))

    def _move(self) -> None:
        country = self._one_of(TABLES["customers"].partitions)
        where = (country, self._any_of("customers"))
        self._database.execute("UPDATE customers SET country = ? WHERE customer_id = ?", where)

    def _renumber(self) -> None:
        name = self._one_of(list(TABLES))
        key = TABLES[name].key
        where = (self._new_id(name), self._any_of(name))
        self._database.execute(f"UPDATE {name} SET {key} = ? WHERE {key} = ?", where)

    def _remove(self) -> None:
        name = self._one_of(list(TABLES))
        self._database.execute(f"DELETE FROM {name} WHERE {TABLES[name].key} = ?", (self._any_of(name),))


def _as_json(table: ShopTable, image: str) -> str:
    pairs = (f"'{each}', {image}.{each}" for each in table.columns)
    return f"json_object({', '.join(pairs)})"


TRADES_PER_SAMPLE = 50
ANNOUNCED_TIMES = 2
"""Announcements of a file: S3 announces it at least once."""

_STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Compared:
    """A table of the shop beside that of the lake. `differing`: keys whose rows differ."""

    name: str
    shop_rows: int
    lake_rows: int
    differing: int
    lag_seconds: float = 0.0
    pending_deltas: int = 0
    files: int = 0

    def __str__(self) -> str:
        equal = "yes" if not self.differing else f"not {counted(self.differing, 'row')} yet"
        return (
            f"{self.name}: shop rows {self.shop_rows:,}, lake rows {self.lake_rows:,}, equal? {equal}, "
            f"lag {self.lag_seconds:.0f} s, deltas {self.pending_deltas:,}, files {self.files:,}"
        )


@dataclass(frozen=True)
class PlayedFeed:
    """`tables`: as their compacted rows are at the end."""

    seconds: float
    files: int
    changes: int
    tables: tuple[Compared, ...]

    @property
    def holds(self) -> bool:
        return all(each.lake_rows and not each.differing and not each.pending_deltas for each in self.tables)

    @property
    def claim(self) -> str:
        tables = " and ".join(f"{each.name} of {each.lake_rows:,} rows" for each in self.tables)
        return (
            f"{self.changes:,} changes in {counted(self.files, 'file')}, each announced {ANNOUNCED_TIMES} times, in "
            f"{self.seconds:.0f} s: the compacted tables, {tables}, are equal to the shop's"
        )


class ChangesScenario:
    """Runs once. `program`: the name of the `lithify` command in a shell."""

    def __init__(
        self, environment: DemoEnvironment, program: str, screen: Screen, clock: Clock, seconds: float
    ) -> None:
        self._environment = environment
        self._screen = screen
        self._program = program
        self._clock = clock
        self._seconds = seconds
        self._files = self._changes = 0

    def run(self, dispatch: Callable[[threading.Event], object], stops: threading.Event) -> PlayedFeed:
        """Raises what the dispatcher raised, and `Unavailable` if ingest has ended."""
        begun = self._clock.monotonic_seconds()
        tables = {name: self._create_table(name) for name in TABLES}
        self._screen.show_step(
            f"files that land in {self._environment.landing.location.root_uri} are changes of the shop"
        )
        with closing(Shop()) as shop:
            with self._ingest() as ingest, keeper_and_dispatcher(self._environment, self._clock, dispatch, stops):
                self._watch(shop, tables, ingest, stops, begun + self._seconds)
            whole = tuple(self._compared(shop, name, table, "compacted") for name, table in tables.items())
        return PlayedFeed(self._clock.monotonic_seconds() - begun, self._files, self._changes, whole)

    def _create_table(self, name: str) -> Table:
        properties: dict[str, object] = {
            "landing": self._folder(name),
            "changes": "debezium",
            "compact_when": POLICY,
        }
        return self._environment.lake.create_table(
            f"SHOP.{name.upper()}.V1",
            [TABLES[name].partition_key],
            primary_keys=[TABLES[name].key],
            sort_keys=[(ORDER_COLUMN, "ascending")],
            properties=properties,
        )

    def _folder(self, name: str) -> str:
        return f"{self._environment.landing.location.root_uri}/{name}/"

    @contextmanager
    def _ingest(self) -> Iterator[subprocess.Popen[bytes]]:
        environment = self._environment
        arguments = [
            *("ingest", "--lake", environment.lake.location.root_uri, "--queue-url", environment.announced.name),
            *("--endpoint-url", environment.endpoint_url, "--region", REGION, "--collect-seconds", "1"),
            *(() if environment.s3 is None else ("--s3-endpoint-url", environment.s3.endpoint_url)),
        ]
        with self._environment.folder.ingest_log.open("wb") as log:
            # In its own process group: Ctrl-C interrupts only this process, which stops it at the end.
            process = subprocess.Popen(
                [*shlex.split(self._program), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(
        self,
        shop: Shop,
        tables: dict[str, Table],
        ingest: subprocess.Popen[bytes],
        stops: threading.Event,
        closes_seconds: float,
    ) -> None:
        samples, is_open = 0, True
        while not stops.wait(SAMPLE_SECONDS) and self._clock.monotonic_seconds() < closes_seconds + DRAIN_SECONDS:
            if ingest.poll() is not None:
                raise Unavailable(f"ingest has ended: see {self._environment.folder.ingest_log}")
            if is_open:
                shop.trade(TRADES_PER_SAMPLE)
                self._land(shop.take_feed())
                is_open = self._clock.monotonic_seconds() < closes_seconds
                if not is_open:
                    self._screen.show_step(f"the shop closes: {self._changes:,} changes in {self._files:,} files")
            compared = [self._compared(shop, name, table, "merged") for name, table in tables.items()]
            if samples % SHOWN_EVERY == 0:
                for each in compared:
                    self._screen.show_step(str(each))
            samples += 1
            if not is_open and not any(each.differing or each.pending_deltas for each in compared):
                return

    def _land(self, feed: dict[str, bytes]) -> None:
        for name, lines in feed.items():
            self._files += 1
            self._changes += lines.count(b"\n")
            file = f"{self._files:06}.json"
            self._environment.landing.put_if_absent(f"{name}/{file}", lines)
            for _ in range(ANNOUNCED_TIMES):
                self._environment.announced.send(json.dumps({"register": {"files": [f"{self._folder(name)}{file}"]}}))

    def _compared(self, shop: Shop, name: str, table: Table, view: str) -> Compared:
        ours, theirs = _rows_of(table, TABLES[name].columns, view), shop.rows(name)
        differing = {row[0] for row in {*ours}.symmetric_difference(theirs)}
        now_ms = self._clock.now_ms()
        figures: StreamFigures = total(read_figures(table))
        lag_seconds = figures.lag_seconds(now_ms)
        # A key that is there twice is in no set of rows twice.
        wrong = len(differing) + max(len(ours) - len({*ours}), 0)
        return Compared(name, len(theirs), len(ours), wrong, lag_seconds, figures.pending_deltas, figures.files)


def _rows_of(table: Table, columns: Sequence[str], view: str) -> list[Row]:
    """A table without a delta has no columns yet."""
    if not table.partitions():
        return []
    found = table.scan(columns=columns, view=view).to_table()
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))
