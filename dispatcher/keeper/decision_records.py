"""The keeper's decisions on a table for people: each with what became of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from compactor.log.durable_log import Entry
from dispatcher.keeper.decision_log import (
    DecisionAction,
    DecisionEnded,
    DecisionMade,
    StreamsPostponed,
    TableSetAside,
)


def decision_records(table_id: str, entries: Iterable[Entry[DecisionAction]], limit: int) -> list[dict[str, object]]:
    """The latest ones, in their order. `what`: decided, the status of the job run, postponed, or set aside.

    entries  of the table's log: of a decision that was made before them nothing is shown
    """
    found: dict[object, dict[str, object]] = {}
    for entry in entries:
        for ordinal, action in enumerate(entry.actions):
            key: object = (entry.number, ordinal)
            record: dict[str, object] = {"at_ms": entry.at_ms, "table": table_id}
            match action:
                case DecisionMade():
                    rules = ", ".join(dict.fromkeys(stream.rule for stream in action.streams))
                    found[action.job_run_id] = {
                        **record,
                        "what": "decided",
                        "job_run_id": action.job_run_id,
                        "streams": len(action.streams),
                        "partitions": [stream.partition for stream in action.streams],
                        "figures": [stream.figures for stream in action.streams],
                        "by": rules,
                        "why": action.streams[0].why,
                        "expected_seconds": action.expected_seconds,
                        "expected_usd": action.expected_usd,
                    }
                case DecisionEnded() if action.job_run_id in found:
                    joined = {"what": action.status, "seconds": action.seconds, "usd": action.usd}
                    figures = {"rows_in": action.rows_in, "rows_out": action.rows_out, "reasons": action.reasons}
                    found[action.job_run_id] |= joined | figures
                case StreamsPostponed() if action.streams:
                    why, by = "; ".join(action.reasons), action.postponed_by
                    found[key] = {**record, "what": "postponed", "streams": action.streams, "by": by, "why": why}
                case TableSetAside() if action.reason is not None:
                    found[key] = {**record, "what": "set aside", "why": action.reason}
                case _:
                    pass
    return list(islice(found.values(), max(len(found) - limit, 0), None))
