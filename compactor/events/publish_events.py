"""Events about the publication of a table in open table formats."""

from compactor.events.relay import Event, Subject, entryless_event
from compactor.events.types import TablePublishedEvent, TablePublishFailedEvent
from compactor.model.names import render_partition
from compactor.publishing.protocol import NothingToPublish, Outcome, Published, Refused
from compactor.publishing.publication import PublishFailed


def publish_event(about: Subject, table_id: str, outcome: Outcome | PublishFailed, at_ms: int) -> Event | None:
    """None: there is nothing to tell. The same commit is the same event."""
    log_id = f"tables/{table_id}/published"
    match outcome:
        case Published():
            return entryless_event(
                about,
                log_id,
                at_ms,
                f"{outcome.format}.{outcome.version}",
                TablePublishedEvent.from_facts(
                    outcome,
                    published_table_id=table_id,
                    entries=dict(outcome.entries),
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


def _failed(about: Subject, table_id: str, format_: str, reasons: tuple[str, ...] | list[str], at_ms: int) -> Event:
    data = TablePublishFailedEvent(published_table_id=table_id, format=format_, reasons=tuple(reasons))
    return entryless_event(about, f"tables/{table_id}/published", at_ms, f"{format_}.failed.{at_ms}", data)


def _sentences(refused: Refused) -> list[str]:
    return [f"{render_partition(refused.partition)}: {reason}" for reason in refused.reasons]
