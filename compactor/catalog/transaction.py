"""Makes a round or a rehash durable, if the compacted side of the stream is still where its plan read it.

Deltas that writers appended in the meantime never matter. Another committed round or rehash does: then the outcome is
`Conflicted`, and nothing is written. After any answer but `Committed` nothing is deleted either: files that no entry
refers to are for garbage collection, which knows when nobody can still be waiting for an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from compactor.catalog.actions import IndexRehashed, RoundCommitted, StreamAction
from compactor.catalog.log import LogState
from compactor.catalog.snapshot import StreamSnapshot
from compactor.catalog.stream import PartitionStream


@dataclass(frozen=True)
class Committed:
    """The action stands as entry `entry_number`; `snapshot` is the stream at that entry."""

    entry_number: int
    snapshot: StreamSnapshot


@dataclass(frozen=True)
class Conflicted:
    """The compacted side is no longer where the plan read it. `entry_number` is the entry at which this was seen."""

    reason: str
    entry_number: int


CommitOutcome: TypeAlias = Committed | Conflicted


def commit(
    stream: PartitionStream,
    action: RoundCommitted | IndexRehashed,
    read_index_version: int | None,
    read_round_commit_id: str | None,
) -> CommitOutcome:
    """Append the action, unless the stream moved on. May be called again with the same action after any failure.

    read_*  the compacted side that the plan read; both None where there was none

    An action whose commit id is already in the log is `Committed`: its first answer was lost. Raises `Unavailable`
    where the outcome is unknown, which another call settles.
    """

    def decide(log_state: LogState[StreamSnapshot]) -> Sequence[StreamAction]:
        return [action] if _position(log_state.state) == (read_index_version, read_round_commit_id) else []

    appended = stream.log.append(decide)
    if appended.entry is not None:
        return Committed(appended.after.entry_number, appended.after.state)
    standing = _find(stream, action.commit_id, appended.after.entry_number, read_round_commit_id)
    if standing is not None:
        return Committed(standing, stream.load(as_of=standing).state)
    index_version, round_commit_id = _position(appended.after.state)
    return Conflicted(
        f"the plan read index version {read_index_version} of round {read_round_commit_id}; "
        f"the stream is at index version {index_version} of round {round_commit_id}",
        appended.after.entry_number,
    )


def _position(snapshot: StreamSnapshot) -> tuple[int | None, str | None]:
    """Where the compacted side is: every round and every rehash moves it."""
    if snapshot.compacted is None:
        return None, None
    return snapshot.compacted.index_version, snapshot.compacted.last_round.commit_id


def _find(stream: PartitionStream, commit_id: str, newest: int, read_round_commit_id: str | None) -> int | None:
    """The entry that holds this commit, looked for from the newest back to the round that its plan read."""
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
