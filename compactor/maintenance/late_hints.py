"""Gives news hints to a table that was created without them, in steps that are days apart:

    1  `news_hints_begun`   an entry of the table's log: whoever reads it puts hints before its entries
    2  a wait               until no writer is at work that has not read it
    3  hints                of all streams that have news, whoever gave them that
    4  `news_hints` true    an entry of the table's log: readers rely on hints

A call does what is due. Calls may meet, be cut off anywhere, and be repeated.
"""

from collections.abc import Sequence

from compactor.catalog.definition import NewsHintsBegun, TableAction, TableDefinition, set_properties
from compactor.catalog.dropping import definition_log
from compactor.catalog.news import NewsHints
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import PROPERTIES_KNOWN_SECONDS, Table
from compactor.log.durable_log import LogState
from compactor.log_context import LOG
from compactor.model.clock import Clock
from compactor.storage.concurrently import run_concurrently
from compactor.storage.object_store import ObjectStore


def give_hints(store: ObjectStore, table: Table, clock: Clock, grace_seconds: float) -> None:
    """Does what is due of a table with partition keys whose property `news_hints` is not set.

    Args:
        table: as it was just read
        grace_seconds: the longest that a write may take. That of step 1 may, too, so step 2 takes two of them

    Raises errors of the table's logs and of the store; then a later call goes on."""
    begun_at_ms = table.definition.hints_begun_at_ms

    def begin(at: LogState[TableDefinition | None]) -> Sequence[TableAction]:
        waits = at.state is not None and _takes_hints(at.state) and at.state.hints_begun_at_ms is None
        return [NewsHintsBegun(at_ms=clock.now_ms())] if waits else []

    def rely(at: LogState[TableDefinition | None]) -> Sequence[TableAction]:
        if at.state is None or not _takes_hints(at.state) or at.state.hints_begun_at_ms != begun_at_ms:
            return []
        return set_properties(at.state, at.state.properties.changed({"news_hints": True}))

    if not _takes_hints(table.definition):
        return
    log = definition_log(store, table.table_id, clock)
    if begun_at_ms is None:
        table.refresh(log.append(begin).after.state)
        LOG.info("news_hints_begun", table=table.table_id)
    elif clock.now_ms() - begun_at_ms >= (2 * grace_seconds + PROPERTIES_KNOWN_SECONDS) * 1000:
        partitions = table.partitions()
        run_concurrently(store.location, lambda partition: _hint(store, table.stream(partition)), partitions)
        table.refresh(log.append(rely).after.state)
        LOG.info("news_hints_given", table=table.table_id, streams=len(partitions))


def _takes_hints(definition: TableDefinition) -> bool:
    is_there = definition.dropped_at_ms is None
    return is_there and bool(definition.partition_keys) and definition.properties.news_hints is None


def _hint(store: ObjectStore, stream: PartitionStream) -> None:
    NewsHints(store, stream.folder).put(stream.load())
