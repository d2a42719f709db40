"""The lake or the state that a command names, as groups of options; its tables and partitions. Reports missing ones.

A parameter of one of these types is an option for each of its fields (`app.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compactor.catalog.stream import PartitionStream
from compactor.lake import DeltaCatalog, Table
from compactor.model.errors import REASONS_SHOWN_MAX, Invalid, refuse_if
from compactor.model.names import no_such_partition
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore
from dispatcher.cli.options import LakeOption, RegionOption, S3EndpointOption, StateOption
from dispatcher.cli.output import parse_partition
from dispatcher.clients import CommandDependencies

if TYPE_CHECKING:
    import pyarrow as pa

    from dispatcher.records.job_run_store import JobRunStore


@dataclass(frozen=True)
class LakePlace:
    lake: LakeOption
    s3_endpoint_url: S3EndpointOption = None
    region: RegionOption = None

    def reach(self) -> DeltaCatalog:
        """The lake, which need not exist yet."""
        return DeltaCatalog.open(self.lake, endpoint_url=self.s3_endpoint_url, region=self.region)

    def open(self) -> DeltaCatalog:
        """An existing lake. Raises `Invalid` if there is nothing at that location."""
        catalog = self.reach()
        check_exists(catalog.store, "lake")
        return catalog


@dataclass(frozen=True)
class StatePlace:
    state: StateOption
    s3_endpoint_url: S3EndpointOption = None
    region: RegionOption = None

    def store(self, dependencies: CommandDependencies) -> ObjectStore:
        """The state, which need not exist yet."""
        return dependencies.store(self.state, self.s3_endpoint_url, self.region)

    def open(self, dependencies: CommandDependencies) -> JobRunStore:
        """The job runs of a state that exists."""
        from dispatcher.records.job_run_store import JobRunStore

        records = JobRunStore(self.store(dependencies), dependencies.clock)
        check_exists(records.store, "state")
        return records


def check_exists(store: ObjectStore, noun: str) -> None:
    """Raises `Invalid` if a local folder does not exist, or no object has a key below a location on S3."""
    root_uri = store.location.root_uri
    if store.location.is_remote:
        is_there = next(iter(store.list_folders("")), None) is not None
    else:
        is_there = not store.location.is_missing_folder
    if not is_there:
        hint = "" if noun == "folder" else " (the first write to it creates it)"
        raise Invalid(f"there is no {noun} at {root_uri}: check the URI{hint}")


def partitioned_by(keys: Sequence[str]) -> str:
    return f"partitioned by {', '.join(keys)}" if keys else "unpartitioned"


def existing_stream(lake: DeltaCatalog, table_id: str, pairs: Sequence[str] | None) -> tuple[Table, PartitionStream]:
    """A table, and the stream of the named partition; without pairs, that of a table without partition keys.

    Raises `Invalid` if there is none.
    """
    table, partition = named_partition(lake, table_id, pairs)
    partitions_of(table, pairs)
    return table, table.stream(partition)


def named_partition(lake: DeltaCatalog, table_id: str, pairs: Sequence[str] | None) -> tuple[Table, dict[str, str]]:
    """A table, and the partition that the pairs name, whether it has a stream or not.

    Raises `Invalid` if there is no such table, or if it has partition keys and no partition is named.
    """
    partition = parse_partition(pairs)
    table = lake.table(table_id)
    if table.partition_keys and not partition:
        keys = " ".join(f"--partition '{key}=VALUE'" for key in table.partition_keys)
        raise Invalid(f"which partition of {table_id}? Add {keys}")
    return table, partition


def partitions_of(table: Table, pairs: Sequence[str] | None) -> list[dict[str, str]]:
    """The named partition, or all. Raises `Invalid` for one without a stream, and names some that exist."""
    if not pairs:
        return table.partitions()
    streams, reasons = table.look_up([parse_partition(pairs)])
    refuse_if(reasons)
    return [stream.partition for stream in streams]


def partitions_even_dropped(lake: DeltaCatalog, table_id: str, pairs: Sequence[str] | None) -> list[dict[str, str]]:
    """The named partition of a table, or all; all of it may be dropped. Raises `Invalid` if there is none."""
    from compactor.reading.scan import partitions_of_table

    table = lake.table_even_dropped(table_id)
    if not pairs and (existing := partitions_of_table(lake.store, table, even_dropped=True)):
        return existing
    stream = table.stream(parse_partition(pairs))
    partition, existing = stream.partition, table.partitions_even_dropped()
    if partition not in existing:
        stream.load()  # `Corrupt` if it lost its log
        raise Invalid(no_such_partition(table_id, partition, existing))
    return [partition]


def parse_key(pairs: Sequence[str], key_columns: Sequence[str], schema: pa.Schema) -> dict[str, object]:
    """Key values from text, by the types of their columns. Raises `Invalid` unless each is COLUMN=VALUE, once."""
    key: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in key_columns:
            raise Invalid(f"--key {pair!r}: write COLUMN=VALUE with a column of {', '.join(key_columns)}")
        if name in key:
            raise Invalid(f"--key names {name!r} twice: a row has one value of each key column")
        key[name] = _key_value(text, schema.field(name), f"--key {pair!r}")
    return key


def parse_keys(text: str, key_columns: Sequence[str], schema: pa.Schema) -> list[dict[str, object]]:
    """Keys from JSON lines: an object with the key columns each. Raises `Invalid` with every reason, by line."""
    keys: list[dict[str, object]] = []
    reasons: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                keys.append(_key_of_line(line, f"line {number} of the keys", key_columns, schema))
            except Invalid as error:
                reasons += error.reasons
    if not keys and not reasons:
        reasons.append("the file of keys has no line")
    refuse_if(reasons, REASONS_SHOWN_MAX)
    return keys


def _key_of_line(line: str, where: str, key_columns: Sequence[str], schema: pa.Schema) -> dict[str, object]:
    try:
        found = json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{where} is not JSON: {error}") from error
    if not isinstance(found, dict) or not found or not set(found) <= set(key_columns):
        raise Invalid(f"{where}: write a JSON object with the columns {', '.join(key_columns)}")
    nested = [name for name, value in found.items() if isinstance(value, dict | list)]
    if nested:
        raise Invalid(f"{where}: the value of {nested[0]!r} is no text, number, true, false or null")
    return {
        name: None if value is None else _key_value(str(value), schema.field(name), f"{where}, {name!r}")
        for name, value in found.items()
    }


def _key_value(text: str, column: pa.Field, where: str) -> object:
    import pyarrow as pa

    from compactor.model.arrow_types import decoded_type

    arrow_type = decoded_type(column.type)
    try:
        return pa.scalar(text).cast(arrow_type).as_py()
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise Invalid(f"{where}: {text!r} is no {arrow_type}") from error


def tables_of(catalog: DeltaCatalog) -> tuple[list[Table], list[str]]:
    """All tables, and a sentence for each folder that is none, as a copy of one."""

    def opened(table_id: str) -> Table | str:
        try:
            return catalog.table(table_id)
        except Invalid as error:
            return str(error)

    found = list(run_concurrently(catalog.location, opened, catalog.tables()))
    return [each for each in found if isinstance(each, Table)], [each for each in found if isinstance(each, str)]
