"""The answer to a workflow about an ended job run: a result document, or an error and its cause. Pure.

A success is the whole document if it fits, otherwise the document without its sessions and with the URI of the whole.
The cause of a failure is a document too, so that a workflow can parse it (`States.StringToJson`); it has as many
reasons as fit.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from compactor.model.document import Document
from compactor.model.errors import Corrupt
from compactor.planning.spec import Partition
from dispatcher.records.job_run_log import JobRunState
from dispatcher.records.sessions import SessionState
from dispatcher.workflow.callbacks import CAUSE_CHARACTERS_MAX, OUTPUT_BYTES_MAX
from launcher.outcomes import Failed, Succeeded

JOB_RUN_FAILED = "Lithify.JobRunFailed"
JOB_RUN_CANCELLED = "Lithify.JobRunCancelled"
JOB_RUN_REJECTED = "Lithify.JobRunRejected"
"""Names of the errors, for the `Catch` and `Retry` of a workflow."""


class SessionSummary(Document):
    """One session. Rows and rounds are 0 unless it succeeded. `seconds` None: it launched nothing."""

    session_id: str
    partition: Partition
    status: str
    rounds: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_deduplicated: int = 0
    rows_deleted: int = 0
    seconds: float | None = None
    reasons: tuple[str, ...] = ()


class ResultDocument(Document):
    """The result of a job run. Rows over all sessions that succeeded, as in `RowCounts`.

    Attributes:
        seconds: from its acceptance to its end, of which it was paused for `paused_seconds`
        sessions: one for each partition stream that had work; left out if `result_uri` is given
        result_uri: of the whole document, if it is too large for an answer"""

    schema_version: Literal["1"] = "1"
    job_run_id: str
    table: str | None
    destination: str | None
    status: str
    nothing_to_do: bool = False
    rounds: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_deduplicated: int = 0
    rows_deleted: int = 0
    seconds: float = 0.0
    expected_sla: float | None = None
    desired_sla: int | None = None
    reasons: tuple[str, ...] = ()
    sessions: tuple[SessionSummary, ...] | None = Field(default=None)
    result_uri: str | None = None
    paused_seconds: float = 0.0


@dataclass(frozen=True)
class Success:
    output: str


@dataclass(frozen=True)
class Failure:
    error: str
    cause: str


def result_document(job_run_id: str, state: JobRunState) -> ResultDocument:
    """The result of an ended job run or a rejected document. Raises `Corrupt` for any other."""
    if state.rejected is not None:
        name = state.rejected.requested_job_run_id or job_run_id
        return ResultDocument(
            job_run_id=name,
            table=state.rejected.table,
            destination=None,
            status=state.status,
            reasons=state.rejected.reasons,
        )
    if state.accepted is None or state.ended is None:
        raise Corrupt(f"job run {job_run_id} has no result: it is {state.status}")
    spec, outcome = state.accepted.spec, state.ended.outcome
    return ResultDocument.from_facts(
        outcome,
        state.ended,
        spec,
        table=spec.source_table_id,
        destination=spec.destination_compacted_table_id,
        job_run_id=job_run_id,
        sessions=tuple(_session(session) for session in state.sessions.values()),
    )


def fits_a_success(document: ResultDocument) -> bool:
    return len(document.render()) <= OUTPUT_BYTES_MAX


def answer_of(document: ResultDocument, uri: str) -> Success | Failure:
    """
    Args:
        uri: of the stored whole document, used if it is too large for an answer"""
    if document.status == "succeeded":
        without_sessions = {} if fits_a_success(document) else {"sessions": None, "result_uri": uri}
        return Success(document.model_copy(update=without_sessions).render().decode())
    error = {"cancelled": JOB_RUN_CANCELLED, "rejected": JOB_RUN_REJECTED}.get(document.status, JOB_RUN_FAILED)
    return Failure(error, _cause(document))


def _cause(document: ResultDocument) -> str:
    """The cause in ASCII, so that its length in characters is its length in bytes."""
    cause: dict[str, object] = {
        "job_run_id": document.job_run_id,
        "table": document.table,
        "status": document.status,
        "reasons": [],
    }
    room = CAUSE_CHARACTERS_MAX - len(json.dumps(cause)) - len(', "and 1,000,000 more"')
    kept = fitting_reasons(document.reasons, room)
    left_out = len(document.reasons) - len(kept)
    cause["reasons"] = [*kept, f"and {left_out:,} more"] if left_out else kept
    return json.dumps(cause)


def fitting_reasons(reasons: Sequence[str], bytes_max: int) -> list[str]:
    """As many reasons as fit as a JSON list in ASCII, the last one cut if it must be; none if not even one fits."""
    kept: list[str] = []
    for reason in reasons:
        size_bytes = len(json.dumps(reason)) + len(", ")
        if size_bytes > bytes_max:
            # A character takes at most 12 bytes as JSON in ASCII: a pair of \uXXXX.
            return [*kept, reason[: bytes_max // 12 - 4] + " ..."] if bytes_max >= 60 else kept
        kept.append(reason)
        bytes_max -= size_bytes
    return kept


def _session(session: SessionState) -> SessionSummary:
    end = session.end
    result = end.result if isinstance(end, Succeeded) else None
    status, reasons = end.end if end is not None else "open", end.reasons if isinstance(end, Failed) else ()
    return SessionSummary.from_facts(session.pin, result, status=status, reasons=reasons)
