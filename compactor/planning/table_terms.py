"""What a job run leaves out comes from its table's properties, and what contradicts them is refused. Pure.

Keys and destination say what a table is, so a job run may only repeat them. Content type and sizes of compacted files
say how it is written: there a job run's own values come first.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from compactor.catalog.properties import BYTES_PER_COMPACTED_FILE, TableProperties, TableState
from compactor.catalog.tables import Table
from compactor.model.counts import SortKey
from compactor.model.errors import Invalid, refuse_if
from compactor.planning.spec import DEFAULT_SORT_KEYS, JobRunSpec


def complete_by_table(run: JobRunSpec, given: Collection[str], table: Table) -> JobRunSpec:
    """The job run with what it left out. Raises `Invalid` with every reason why it cannot be run on this table.

    Args:
        given: the fields of `JobRunSpec` that the request names; others may be taken from the table"""
    properties = table.properties
    refuse_if(list(_contradictions(run, given, properties)))
    taken: dict[str, object] = {
        "bytes_per_compacted_file": properties.bytes_per_compacted_file or BYTES_PER_COMPACTED_FILE
    }
    for name in (
        "primary_keys",
        "sort_keys",
        "destination_compacted_table_id",
        "compacted_file_content_type",
        "rows_per_compacted_file",
    ):
        value = getattr(properties, name)
        if name not in given and value is not None:
            taken[name] = tuple(sorted(value)) if name == "primary_keys" else value
    return run.model_copy(update=taken)


def check_online(tables: Iterable[Table]) -> None:
    """Raises `Invalid` where a table takes no compaction."""
    offline = [table.table_id for table in tables if table.properties.state is TableState.OFFLINE]
    if offline:
        raise Invalid(
            *(
                f"table {table_id} is offline: it takes no compaction until `lithify table set {table_id} state=online`"
                for table_id in dict.fromkeys(offline)
            )
        )


def _contradictions(run: JobRunSpec, given: Collection[str], properties: TableProperties) -> Iterator[str]:
    where = f"table {run.source_table_id} has the property"
    if "primary_keys" not in given and properties.primary_keys is None:
        yield (
            f"primary_keys is missing: table {run.source_table_id} does not know its own, so name them here, or set "
            f"them with `lithify table set {run.source_table_id} primary_keys=COLUMN,...`"
        )
    primary_keys, sort_keys = properties.primary_keys, properties.sort_keys
    if primary_keys == ():
        about_keys = {
            "operation": run.operation == "rehash",
            "sort_keys": "sort_keys" in given,
            "hash_bucket_count": run.hash_bucket_count is not None,
            "tombstone_retention": run.tombstone_retention is not None,
        }
        unused = [name for name, is_given in about_keys.items() if is_given]
        yield from (f"{name} is about rows with a key, and {where} primary_keys=[]: leave it out" for name in unused)
    if "primary_keys" in given and primary_keys is not None and set(run.primary_keys) != set(primary_keys):
        yield (
            f"primary_keys are {','.join(run.primary_keys)}, but {where} primary_keys="
            f"{','.join(sorted(primary_keys))}: leave them out, or name these"
        )
    if "sort_keys" in given and sort_keys is not None and run.sort_keys != sort_keys:
        yield (
            f"sort_keys are {_shown(run.sort_keys)}, but {where} sort_keys={_shown(sort_keys)}: "
            "leave them out, or name these"
        )
    destination = properties.destination_compacted_table_id
    if "destination_compacted_table_id" in given and destination not in (None, run.destination_compacted_table_id):
        yield (
            f"destination_compacted_table_id is {run.destination_compacted_table_id}, but {where} "
            f"destination_compacted_table_id={destination}: leave it out, or name this one"
        )


def _shown(sort_keys: Sequence[SortKey]) -> str:
    return ",".join(f"{key.column}:{key.order}" for key in sort_keys or DEFAULT_SORT_KEYS)
