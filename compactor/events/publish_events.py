"""Events about the publication of a table in open table formats."""

import json
from collections.abc import Mapping

from compactor.events.relay import Event, Subject, entryless_event
from compactor.events.types import TablePublishedEvent, TablePublishFailedEvent
from compactor.model.names import render_partition
from compactor.publishing.protocol import NothingToPublish, Outcome, Published, Refused
from compactor.publishing.publication import PublishFailed

ENTRIES_BYTES_MAX = 100_000
"""Of the entries of an event: SNS takes 256 KiB."""

ENTRY_BYTES = 20
"""Of an entry beside its partition, at most."""


def publish_event(about: Subject, table_id: str, outcome: Outcome | PublishFailed, at_ms: int) -> Event | None:
    """None: there is nothing to tell. The same commit is the same event."""
    log_id = f"tables/{table_id}/published"
    match outcome:
        case Published():
            entries = _first_entries(outcome.entries)
            return entryless_event(
                about,
                log_id,
                at_ms,
                f"{outcome.format}.{outcome.version}",
                TablePublishedEvent.from_facts(
                    outcome,
                    published_table_id=table_id,
                    entries=entries,
                    entries_left_out=len(outcome.entries) - len(entries),
                    lag_seconds=outcome.lag_ms / 1_000,
                    refused=tuple(sentence for each in outcome.refused for sentence in _sentences(each)),
                ),
            )
        case NothingToPublish(refused=()):
            return None
        case NothingToPublish():
            reasons = [sentence for each in outcome.refused for sentence in _sentences(each)]
            return _failed(about, table_id, outcome.format, reasons, at_ms)
        case PublishFailed():
            return _failed(about, table_id, outcome.format, outcome.reasons, at_ms)


def _first_entries(entries: Mapping[str, int]) -> dict[str, int]:
    """As many as an event has room for, by the order of their partitions."""
    found = {}
    size_bytes = 0
    for partition, entry_number in sorted(entries.items()):
        size_bytes += len(json.dumps(partition)) + ENTRY_BYTES
        if size_bytes > ENTRIES_BYTES_MAX:
            break
        found[partition] = entry_number
    return found


def _failed(about: Subject, table_id: str, format_: str, reasons: tuple[str, ...] | list[str], at_ms: int) -> Event:
    data = TablePublishFailedEvent(published_table_id=table_id, format=format_, reasons=tuple(reasons))
    return entryless_event(about, f"tables/{table_id}/published", at_ms, f"{format_}.failed.{at_ms}", data)


def _sentences(refused: Refused) -> list[str]:
    return [f"{render_partition(refused.partition)}: {reason}" for reason in refused.reasons]
