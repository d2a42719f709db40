"""The tables of a run, the deltas that were given to them, and what must be left of those.

A table is compacted either by real Spark sessions or by the stand-in, never by both: the stand-in writes no index. The
stand-in also forgets deletes, so its tables have no sort keys: there the later row wins, and a delete needs no memory.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from compactor.lake import DeltaCatalog
from compactor.model.names import Operation
from tests.oracle import OracleDelta, Row, surviving_rows

COLUMNS = ("id", "time", "value")
KEYS = 60
_SCHEMA = pa.schema([("id", pa.int64()), ("time", pa.int64()), ("value", pa.string())])

PartitionName = str
"""The one value of the partition key, "" in a table without."""


@dataclass(frozen=True)
class Table:
    """weight: how often it is chosen, against the others."""

    table_id: str
    partitions: tuple[PartitionName, ...]
    is_real: bool
    weight: int

    @property
    def partition_keys(self) -> tuple[str, ...]:
        return ("part",) if self.partitions != ("",) else ()

    @property
    def sort_keys(self) -> tuple[tuple[str, str], ...]:
        return (("time", "ascending"),) if self.is_real else ()

    def partition(self, name: PartitionName) -> Mapping[str, str]:
        return {"part": name} if name else {}

    def document(self, job_run_id: str, priority: int) -> dict[str, object]:
        """What asks for its compaction."""
        return {
            "schema_version": "1",
            "job_run_id": job_run_id,
            "source_table_id": self.table_id,
            "primary_keys": ["id"],
            **({"sort_keys": [list(each) for each in self.sort_keys]} if self.sort_keys else {}),
            "priority": priority,
        }


SMALL_TABLES = (
    Table("CHAOS.ONE.V1", ("",), is_real=False, weight=3),
    Table("CHAOS.TWO.V1", ("",), is_real=False, weight=3),
    Table("CHAOS.PARTS.V1", ("a", "b", "c"), is_real=False, weight=3),
)
PROOF_TABLES = (
    *(Table(f"PROOF.T{number}.V1", ("",), is_real=False, weight=1) for number in range(10)),
    Table("PROOF.PARTS.V1", ("a", "b", "c"), is_real=False, weight=2),
)
REAL_TABLE = Table("CHAOS.REAL.V1", ("",), is_real=True, weight=3)


@dataclass
class Fed:
    """What was appended, for the oracle. Only the run's own thread appends."""

    lake: DeltaCatalog
    deltas: dict[tuple[str, PartitionName], list[OracleDelta]] = field(default_factory=lambda: defaultdict(list))
    rows: Counter[tuple[str, PartitionName]] = field(default_factory=Counter)

    def append(self, table: Table, seed: int) -> None:
        """A delta for one or more of the table's partitions: upserts mostly, with some deletes of keys."""
        chance = random.Random(seed)
        made = self.lake.create_table(table.table_id, partition_keys=table.partition_keys)
        for name in chance.sample(table.partitions, chance.randint(1, len(table.partitions))):
            stands = self.deltas[table.table_id, name]
            operation = Operation.DELETE if stands and chance.random() < 0.25 else Operation.UPSERT
            tick = len(stands) * 10
            rows = [_row(chance, tick, operation) for _ in range(chance.randint(1, 30))]
            columns = [column for column in COLUMNS if column in rows[0]]
            data = pa.Table.from_pylist(rows, schema=pa.schema([_SCHEMA.field(column) for column in columns]))
            made.append(table.partition(name), data, operation, position=len(stands))
            stands.append((len(stands), operation, [rows]))
            self.rows[table.table_id, name] += len(rows)

    def expected(self, table: Table, name: PartitionName) -> list[Row]:
        return surviving_rows(self.deltas[table.table_id, name], ["id"], table.sort_keys)


def _row(chance: random.Random, tick: int, operation: Operation) -> Row:
    """Some rows are late: older than what came before them."""
    time = tick + chance.randint(0, 9) - chance.choice([0, 0, 0, 25])
    row: dict[str, object] = {"id": chance.randrange(KEYS), "time": time}
    return row if operation is Operation.DELETE else {**row, "value": f"{tick} {chance.getrandbits(24):x}"}
