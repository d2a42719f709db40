"""Commits a round or a rehash if the compacted side is unchanged since its plan read it: the fence of commits.

Deltas that writers appended in the meantime are no conflict. If another round or rehash was committed, the outcome is
`Conflicted`, and nothing is written. The number of an attempt does not count: one that was replaced may still commit if
it is first, and the later one finds a conflict, unless the table has `session_plans`: then a plan that is no longer in
force commits nothing. Nothing is deleted after any outcome: garbage collection deletes unreferenced
files later, when no writer can still be waiting for the outcome of a commit.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compactor.catalog.actions import IndexRehashed, RoundCommitted, StreamAction
from compactor.catalog.appending import taken_back
from compactor.catalog.snapshot import ReadPoint, StreamSnapshot
from compactor.catalog.stream import PartitionStream
from compactor.log.durable_log import LogState


@dataclass(frozen=True)
class Committed:
    """The action is entry `entry_number`; `snapshot` is the stream at that entry."""

    entry_number: int
    snapshot: StreamSnapshot


@dataclass(frozen=True)
class Conflicted:
    """The compacted side has changed since the plan read it. `entry_number` is the last entry that was read.

    Attributes:
        sentence: for whoever ran the session; `reason` is for the operator's log"""

    sentence: str
    reason: str
    entry_number: int


CommitOutcome: TypeAlias = Committed | Conflicted


def commit(
    stream: PartitionStream,
    action: RoundCommitted | IndexRehashed,
    read_point: ReadPoint,
    read_positions: Collection[int] = (),
    plan_id: str | None = None,
) -> CommitOutcome:
    """Appends the action, unless the compacted side has changed. It may be repeated after any failure.

    Args:
        read_point: the compacted side that the plan read
        read_positions: positions of the deltas that the plan read, if they are in this stream: none may be retracted
            since
        plan_id: the session's plan in the log, which must be in force; None: it has none

    An action whose commit id is already in the log is `Committed`: its first answer was lost. Raises `Unavailable` if
    the outcome is unknown; another call settles it."""

    def decide(log_state: LogState[StreamSnapshot]) -> Sequence[StreamAction]:
        if ReadPoint.of(log_state.state) != read_point or not _in_force(log_state.state, plan_id):
            return []
        return [] if _taken_back(log_state.state, action, read_positions) else [action]

    # The plan has read the log. If the log has grown since, the entry's number is taken and the log is read again.
    read = stream.log.newest
    appended = stream.log.append(decide, read if read.entry_number else None)
    if appended.entry is not None:
        return Committed(appended.after.entry_number, appended.after.state)
    existing = _find(stream, action.commit_id, appended.after.entry_number, read_point.round_commit_id)
    if existing is not None:
        return Committed(existing, stream.load(as_of=existing).state)
    retracted = _taken_back(appended.after.state, action, read_positions) or _was_reset(
        appended.after.state, read_point
    )
    if retracted is not None:
        return Conflicted(retracted, retracted, appended.after.entry_number)
    if ReadPoint.of(appended.after.state) == read_point:
        sentence = overtaken(stream, "has begun in its place")
        return Conflicted(sentence, "its plan was replaced or ended", appended.after.entry_number)
    reason = f"the plan read {read_point}; the stream is at {ReadPoint.of(appended.after.state)}"
    return Conflicted(overtaken(stream), reason, appended.after.entry_number)


def overtaken(stream: PartitionStream, what: str = "committed first") -> str:
    """For whoever ran the loser of two compactions."""
    return f"another compaction of {stream} {what}: nothing is lost, run it again to compact what is left"


def _in_force(snapshot: StreamSnapshot, plan_id: str | None) -> bool:
    return plan_id is None or (snapshot.in_flight is not None and snapshot.in_flight.plan_id == plan_id)


def _taken_back(
    snapshot: StreamSnapshot, action: RoundCommitted | IndexRehashed, positions: Collection[int]
) -> str | None:
    """Names the deltas that the round read and that were retracted since, in a sentence; None: there are none."""
    source = snapshot.sources.get(action.source_stream_version) if isinstance(action, RoundCommitted) else None
    if source is None or not source.retracted_positions.intersection(positions):
        return None
    return taken_back(source, positions)


def _was_reset(snapshot: StreamSnapshot, read_point: ReadPoint) -> str | None:
    """Says in a sentence that the partition was dropped or restored since the plan read it; None: it was not."""
    reset = snapshot.reset
    if reset is None or reset.reset_id == read_point.reset_id:
        return None
    verb, done = ("drop", "dropped") if reset.as_of_entry is None else ("restore", "restored")
    return f"the partition was {done} (lithify table {verb}) since the session read it"


def _find(stream: PartitionStream, commit_id: str, newest: int, read_round_commit_id: str | None) -> int | None:
    """The entry of this commit, searched from the newest back to the round that its plan read."""
    for number in range(newest, 0, -1):
        commit_ids = {
            action.commit_id
            for action in stream.log.entry(number).actions
            if isinstance(action, RoundCommitted | IndexRehashed)
        }
        if commit_id in commit_ids:
            return number
        if read_round_commit_id in commit_ids:
            return None
    return None
