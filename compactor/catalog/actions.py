"""The actions of a partition stream's log: one frozen document per kind of fact.

An entry of the log holds one or more of these, and is visible whole or not at all. `snapshot.py` folds them;
`FORMAT.md` specifies their JSON. A field is never renamed and its meaning never changes; new fields have a default.
"""

from typing import Annotated, Literal

from pydantic import Field

from compactor.model.counts import RowCounts, SortKey, StepFigures, Watermark
from compactor.model.document import Document
from compactor.model.files import DataFile, DeletionVector, IndexFile
from compactor.model.names import LifecycleState, Operation


class StreamVersionCreated(Document):
    action: Literal["stream_version_created"] = "stream_version_created"
    stream_version: int = Field(ge=1)
    state: LifecycleState


class StreamVersionReleased(Document):
    """The version becomes the active one; the active one before it is deprecated."""

    action: Literal["stream_version_released"] = "stream_version_released"
    stream_version: int = Field(ge=1)


class StreamVersionDeprecated(Document):
    """The version takes no more deltas. If it was active, no version is active until another one is released."""

    action: Literal["stream_version_deprecated"] = "stream_version_deprecated"
    stream_version: int = Field(ge=1)


class JoinedDelta(Document):
    """A small append whose rows are in the files of a delta with those of others.

    Attributes:
        delta_id, content_digest: those that its delta would have by itself
        rows: its rows follow those of the one before
        sequencer: orders the versions of one object, as text; None: not known"""

    delta_id: str
    content_digest: str
    rows: int = Field(ge=0)
    sequencer: str | None = None


class DeltaAdded(Document):
    """A delta, durable with this entry.

    Attributes:
        content_digest: of the appended data; the same delta id with another digest is refused
        at_ms: the writer's clock; None: not recorded
        joined: the appends that the delta consists of; empty: it is one"""

    action: Literal["delta_added"] = "delta_added"
    stream_version: int = Field(ge=1)
    position: int
    operation: Operation
    delta_id: str
    content_digest: str
    files: tuple[DataFile, ...]
    at_ms: int | None = None
    joined: tuple[JoinedDelta, ...] = ()

    @property
    def append_ids(self) -> tuple[str, ...]:
        """Of the appends that the delta consists of."""
        return tuple(each.delta_id for each in self.joined) or (self.delta_id,)

    @property
    def ids(self) -> tuple[str, ...]:
        """None of which is given again."""
        return tuple(dict.fromkeys((self.delta_id, *self.append_ids)))

    def digest_of(self, delta_id: str) -> str:
        """The content digest of the append with one of its ids."""
        own = (each.content_digest for each in self.joined if each.delta_id == delta_id)
        return next(own, self.content_digest)


class DeltaRetracted(Document):
    """The delta is retracted before any compaction has read it. Its id and its position are never used again."""

    action: Literal["delta_retracted"] = "delta_retracted"
    stream_version: int = Field(ge=1)
    position: int
    delta_id: str


class DeltasTaken(Document):
    """A compaction into another table is about to commit the deltas up to and including this position."""

    action: Literal["deltas_taken"] = "deltas_taken"
    stream_version: int = Field(ge=1)
    position: int
    compacted_table_id: str


class DeltasRetired(Document):
    """The deltas up to and including this position are removed from the stream version: every compaction has read them.

    Attributes:
        at_ms: the writer's clock; ids whose time of refusal ended before it may be dropped
        ids_refused_until_ms: an append with one of their ids is refused at least until this time"""

    action: Literal["deltas_retired"] = "deltas_retired"
    stream_version: int = Field(ge=1)
    position: int
    at_ms: int
    ids_refused_until_ms: int


class SessionTiming(Document):
    """A session of the table, compared with its prediction. For planning later ones.

    Attributes:
        place: "process", "spark" or "cluster"
        predicted_seconds: of its rounds, without the start of a Spark or a cluster
        seconds: that they took, likewise
        is_corrected: the prediction was corrected, step by step, by the table's earlier rounds; None: not recorded"""

    place: str
    predicted_seconds: float = Field(gt=0)
    seconds: float = Field(ge=0)
    is_corrected: bool | None = None


TIMINGS_KEPT = 24
"""Sessions whose timings a round passes on."""


class RoundCommitted(Document):
    """A round: the files that it makes visible, the index that points to them, and its completion.

    Attributes:
        commit_id: unique to the attempt; a writer recognises its own entry by it after a lost answer
        source_*: the source: table, stream version, and the high watermark
        bytes_at_rest: size of all compacted files after the round
        files_removed: file numbers that are no longer part of the stream
        deletion_vectors: new ones, each replacing its file's earlier one
        index_files: the whole index of `index_version`, including the runs that it keeps of earlier versions
        digest_encoding: the number of the digests' key encoding (FORMAT.md)
        compacted_schema: Arrow schema of the rows, as a base64 IPC message; later rounds may widen it
        tombstone_retention: for how many stream positions the round has remembered deleted keys; None: for ever
        at_ms: the compactor's clock; None: not recorded
        timings: of the last sessions, this one included, the oldest first"""

    action: Literal["round_committed"] = "round_committed"
    commit_id: str
    job_run_id: str
    session_id: str
    round_number: int = Field(ge=1)
    rounds: int = Field(ge=1)
    source_table_id: str
    source_stream_version: int = Field(ge=1)
    processed: Watermark
    compacted_table_id: str
    compacted_stream_version: int = Field(ge=1)
    primary_keys: tuple[str, ...]
    sort_keys: tuple[SortKey, ...]
    digest_encoding: int
    compacted_schema: str
    hash_bucket_count: int = Field(ge=1)
    index_version: int = Field(ge=1)
    bytes_at_rest: int = Field(ge=0)
    files_added: tuple[DataFile, ...]
    files_removed: tuple[int, ...]
    deletion_vectors: tuple[DeletionVector, ...] = ()
    index_files: tuple[IndexFile, ...]
    counts: RowCounts
    steps: dict[str, StepFigures]
    tombstone_retention: int | None = Field(default=None, ge=0)
    at_ms: int | None = None
    timings: tuple[SessionTiming, ...] = ()


class IndexRehashed(Document):
    """The index has another bucket count now; the rows that it points to did not move."""

    action: Literal["index_rehashed"] = "index_rehashed"
    commit_id: str
    job_run_id: str
    session_id: str
    compacted_stream_version: int = Field(ge=1)
    from_index_version: int = Field(ge=1)
    index_version: int = Field(ge=1)
    hash_bucket_count: int = Field(ge=1)
    index_files: tuple[IndexFile, ...]


class PlannedRound(Document):
    """A round that a session will run.

    Attributes:
        processed: how far the source is compacted after it; None: the round reads no delta"""

    files: int = Field(ge=0)
    rows: int = Field(ge=0)
    processed: Watermark | None = None


class SessionPlanAnnounced(Document):
    """What a session will do to the compacted side, before it does it. It is in force until its last commit, its end,
    another plan, or a commit of another session.

    Attributes:
        plan_id: unique to the attempt
        source_entry_number: the source is read as of this entry
        from_*: the compacted side that was read; None: nothing is compacted yet
        rounds: those to run; none: the index is rehashed, and nothing else
        at_ms: the writer's clock
        lasts_seconds: so long after `at_ms` another session may replace it"""

    action: Literal["session_planned"] = "session_planned"
    plan_id: str
    job_run_id: str
    session_id: str
    attempt: int = Field(ge=1)
    source_table_id: str
    source_stream_version: int = Field(ge=1)
    source_entry_number: int = Field(ge=1)
    from_index_version: int | None
    from_commit_id: str | None
    compacted_schema: str
    hash_bucket_count: int = Field(ge=1)
    rounds: tuple[PlannedRound, ...]
    at_ms: int
    lasts_seconds: int = Field(ge=1)

    def is_of(self, job_run_id: str, session_id: str) -> bool:
        return (self.job_run_id, self.session_id) == (job_run_id, session_id)


class SessionPlanEnded(Document):
    """The attempt that wrote the plan has failed and commits nothing more."""

    action: Literal["session_plan_ended"] = "session_plan_ended"
    plan_id: str


class StreamDropped(Document):
    """Every row leaves the stream: its stream versions are deprecated, their deltas and the compacted side are gone.

    Attributes:
        at_ms: the writer's clock
        ids_refused_until_ms: an append with the id of a dropped delta is refused at least until this time"""

    action: Literal["stream_dropped"] = "stream_dropped"
    drop_id: str
    at_ms: int
    ids_refused_until_ms: int


class SkippedPositions(Document):
    """Positions of a source stream version that no compaction reads: above `after`, up to and including `until`."""

    stream_version: int = Field(ge=1)
    after: int
    until: int


class RestoredSide(Document):
    """The compacted side that a restore puts in force again (`snapshot.CompactedStream`)."""

    stream_version: int = Field(ge=1)
    source_table_id: str
    source_stream_version: int = Field(ge=1)
    processed: Watermark
    primary_keys: tuple[str, ...]
    sort_keys: tuple[SortKey, ...]
    digest_encoding: int
    hash_bucket_count: int = Field(ge=1)
    index_version: int = Field(ge=1)
    files: tuple[DataFile, ...]
    index_files: tuple[IndexFile, ...]
    deletion_vectors: tuple[DeletionVector, ...] = ()
    next_file_number: int = Field(ge=1)
    last_round: RoundCommitted


class StreamRestored(Document):
    """The compacted side is again what it was at an earlier entry; None: there was none.

    Attributes:
        skipped: what was appended since, which no compaction reads"""

    action: Literal["stream_restored"] = "stream_restored"
    restore_id: str
    as_of_entry: int = Field(ge=0)
    compacted: RestoredSide | None = None
    skipped: tuple[SkippedPositions, ...] = ()


StreamAction = Annotated[
    StreamVersionCreated
    | StreamVersionReleased
    | StreamVersionDeprecated
    | DeltaAdded
    | DeltaRetracted
    | DeltasTaken
    | DeltasRetired
    | RoundCommitted
    | IndexRehashed
    | SessionPlanAnnounced
    | SessionPlanEnded
    | StreamDropped
    | StreamRestored,
    Field(discriminator="action"),
]


def data_files_of(action: StreamAction) -> tuple[DataFile, ...]:
    """The delta files and compacted files that an action describes, with their bounds."""
    match action:
        case DeltaAdded():
            return action.files
        case RoundCommitted():
            return action.files_added
        case StreamRestored(compacted=RestoredSide(files=files)):
            return files
        case _:
            return ()
