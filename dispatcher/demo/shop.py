"""A shop in SQLite: customers and orders that come, change, move, and go. Triggers log every change of a row, as a
database does, and `take_feed` gives what they have logged as JSON lines of Debezium."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np

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
