"""A lake, a state, a queue and a dispatcher without sessions: what the keeper is tested against, in memory.

Deltas and rounds are entries of the real logs, and their files are objects of a few bytes. The dispatcher takes every
message that waits, and has each of its sessions commit a round, by the real formats of the job-run log.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from compactor.catalog.actions import DeltaAdded, StreamAction, StreamVersionCreated
from compactor.catalog.keys import CompactedFilePath, DeltaFilePath
from compactor.catalog.snapshot import ReadPoint
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import Table
from compactor.catalog.transaction import commit
from compactor.events.relay import EventSink, NoSink
from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog
from compactor.model.clock import Clock
from compactor.model.counts import Watermark
from compactor.model.errors import ErrorKind
from compactor.model.files import DataFile
from compactor.model.names import ContentType, LifecycleState, Operation
from compactor.planning.cluster_plan import Cost
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunSpec, SessionResult
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from dispatcher.keeper.decision_log import DECISION_LOG, DecisionLog, OpenDecision
from dispatcher.keeper.keeper import Keeper
from dispatcher.keeper.keys import DecisionLogFolder, lake_name
from dispatcher.keeper.table_keeper import KeeperServices, KeeperSettings
from dispatcher.records.job_run_log import (
    JobRunAccepted,
    JobRunAction,
    JobRunClaimed,
    JobRunEnded,
    JobRunOutcome,
    JobRunRejected,
)
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.sessions import SessionEnded, SessionPin
from launcher.outcomes import Failed, NothingToDo, SessionEnd, Succeeded
from launcher.plan import Room
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_glue import MemoryGlue
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_store import MemoryStore
from tests.rounds import a_round

ORDERS = "ACME.ORDERS.V1"
ROOM = Resources(task_memory_bytes=1 << 30, tasks=2)
ROW_BYTES = 100
ActionT = TypeVar("ActionT")


@dataclass(frozen=True)
class RunAtWork:
    """A job run that has begun and not ended. `files`: what each of its sessions has written, in their order."""

    job_run_id: str
    sessions: tuple[tuple[PartitionStream, SessionPin], ...]
    begun_at_ms: int
    files: tuple[str, ...]


@dataclass
class KeeperWorld:
    """
    remote   whether lake and state look as on S3: requests go in threads then
    commits  how often each delta was compacted by a job run, by table, stream and position
    shared_state, shared_queue  of dispatchers that live elsewhere; None: its own
    """

    remote: bool = True
    clock: Clock = field(default_factory=ManualClock)
    commits: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    job_runs: list[str] = field(default_factory=list)
    documents: list[dict[str, object]] = field(default_factory=list)
    shared_state: ObjectStore | None = None
    shared_queue: MemoryQueue | None = None

    def __post_init__(self) -> None:
        root = "s3://bucket" if self.remote else "file:///nowhere"
        self.lake_store: ObjectStore = MemoryStore(self.clock, StoreLocation(f"{root}/lake"))
        self.state = self.shared_state or MemoryStore(self.clock, StoreLocation(f"{root}/state"))
        self.queue = self.shared_queue or MemoryQueue(self.clock)
        self.lake = DeltaCatalog(self.lake_store, self.clock)
        self.records = JobRunStore(self.state, self.clock)

    def table(
        self, policy: object = "streaming", table_id: str = ORDERS, keys: tuple[str, ...] = (), **properties: object
    ) -> Table:
        given = {**properties, **({} if policy is None else {"compact_when": policy})}
        return self.lake.create_table(table_id, keys, primary_keys={"id"}, properties=given)

    def services(
        self,
        *,
        sink: EventSink | None = None,
        state: ObjectStore | None = None,
        lake: ObjectStore | None = None,
        queue: MemoryQueue | None = None,
        room: Room = ROOM,
        glue: MemoryGlue | None = None,
    ) -> KeeperServices:
        """`state`, `lake`, `queue`: the same, as one keeper reaches them."""
        return KeeperServices(
            DeltaCatalog(lake or self.lake_store, self.clock),
            JobRunStore(state or self.state, self.clock),
            queue or self.queue,
            room,
            sink or NoSink(),
            self.clock,
            open_glue=None if glue is None else lambda: glue,
        )

    def keeper(
        self,
        settings: KeeperSettings | None = None,
        *,
        sink: EventSink | None = None,
        state: ObjectStore | None = None,
        lake: ObjectStore | None = None,
        queue: MemoryQueue | None = None,
        room: Room = ROOM,
    ) -> Keeper:
        """Another one."""
        services = self.services(sink=sink, state=state, lake=lake, queue=queue, room=room)
        return Keeper(services, settings or KeeperSettings())

    def append(
        self, table_id: str = ORDERS, partition: Mapping[str, str] | None = None, rows: int = 10, times: int = 1
    ) -> None:
        stream = self.lake.table(table_id).stream(partition or {})
        for _ in range(times):
            active = stream.load().state.active
            position = 1 if active is None or active.last_position is None else active.last_position + 1
            created = StreamVersionCreated(stream_version=1, state=LifecycleState.ACTIVE)
            actions: list[StreamAction] = [] if active is not None else [created]
            actions.append(self._delta(stream, position, rows))
            stream.log.append(lambda _, actions=actions: actions)  # type: ignore[misc]

    def _delta(self, stream: PartitionStream, position: int, rows: int) -> DeltaAdded:
        path = DeltaFilePath(stream.folder, self.clock.new_id(), 1, ContentType.PARQUET).key
        self.lake_store.put_if_absent(path, b"rows")
        return DeltaAdded(
            stream_version=1,
            position=position,
            operation=Operation.UPSERT,
            delta_id=f"delta {position}",
            content_digest="",
            files=(_file(1, path, rows),),
            at_ms=self.clock.now_ms(),
        )

    # -- the keepers' logs

    def decision_log(self, table_id: str = ORDERS) -> DecisionLog:
        folder = DecisionLogFolder(lake_name(self.lake.location), table_id)
        return DurableLog(self.state, folder.key, DECISION_LOG, self.clock)

    def decisions(self, table_id: str, of: type[ActionT]) -> list[ActionT]:
        """The actions of this type of the table's decision log."""
        entries = self.decision_log(table_id).entries()
        return [action for entry in entries for action in entry.actions if isinstance(action, of)]

    def open_decisions(self, table_id: str) -> Mapping[str, OpenDecision]:
        return self.decision_log(table_id).load().state.open

    # -- the dispatcher

    def dispatch(self, fails: bool = False, seconds: float = 3.0) -> list[str]:
        """Takes every message, and runs each job run that it has not run. Returns the ids of those that it ran."""
        ran: list[str] = []
        while messages := self.queue.receive(10, 0, 3_600):
            for message in messages:
                run = self.accept(message.body, message.message_id)
                if run is not None:
                    self.clock.sleep(seconds)
                    self.finish(run, fails=fails)
                    ran.append(run.job_run_id)
                self.queue.delete(message)
        return ran

    def accept(self, body: str, message_id: str) -> RunAtWork | None:
        """A job run that has begun; None: it had begun before, or can never work."""
        document = json.loads(body)
        self.documents.append(document)
        table_id, job_run_id = document["source_table_id"], document["job_run_id"]
        log = self.records.log(job_run_id)
        if log.load().entry_number:
            return None
        if table_id not in self.lake.tables():
            reasons = (f"there is no table {table_id}",)
            rejected = JobRunRejected(
                message_id=message_id, reasons=reasons, requested_job_run_id=job_run_id, table=table_id
            )
            self.records.log(message_id).append(lambda _: [rejected])
            self.records.mark_rejected(job_run_id, message_id)
            return None
        partitions = document.get("partitions") or [{}]
        spec = JobRunSpec(
            job_run_id=job_run_id,
            source_table_id=table_id,
            primary_keys=("id",),
            lake=self.lake.location,
            destination_compacted_table_id=table_id,
            partitions=tuple(partitions),
        )
        streams = [self.lake.table(table_id).stream(partition) for partition in partitions]
        pins = tuple(_pin(f"{job_run_id}.{number}", stream) for number, stream in enumerate(streams, 1))
        accepted = JobRunAccepted(spec=spec, content_digest="", message_id=message_id, sessions=pins)
        log.append(lambda _: [accepted, JobRunClaimed(owner="d1", epoch=1)])
        self.job_runs.append(job_run_id)
        files = tuple(self.write_compacted_file(stream) for stream in streams)
        return RunAtWork(job_run_id, tuple(zip(streams, pins, strict=True)), self.clock.now_ms(), files)

    def write_compacted_file(self, stream: PartitionStream) -> str:
        """As an attempt does before its commit: no entry names it yet."""
        path = CompactedFilePath(stream.folder, 1, self.clock.new_id(), 1, ContentType.PARQUET, "0").key
        self.lake_store.put_if_absent(path, b"rows")
        return path

    def finish(self, run: RunAtWork, *, fails: bool = False) -> None:
        seconds = (self.clock.now_ms() - run.begun_at_ms) / 1000
        ends: list[SessionEnded] = []
        for (stream, pin), path in zip(run.sessions, run.files, strict=True):
            end: SessionEnd = NothingToDo()
            if fails:
                end = Failed(attempt=1, error_kind=ErrorKind.CRASHED, reasons=("it crashed",))
            elif self.compact(stream, pin.source_position, path):
                end = Succeeded(result=_result(pin))
            ends.append(SessionEnded(epoch=1, session_id=pin.session_id, end=end))
        self.records.log(run.job_run_id).append(lambda _: [*ends, _job_run_ended(ends, seconds)])

    def merged(self, stream: PartitionStream) -> Sequence[int] | None:
        """The compacted files that a round replaces; None: all, and none where no delta is left."""
        return None

    def compact(self, stream: PartitionStream, until: int | None = None, path: str | None = None) -> bool:
        """A round that leaves one file, of the deltas up to a position and of the files that it replaces. False: there
        was nothing to do."""
        merged = self.merged(stream)
        path = path or self.write_compacted_file(stream)
        snapshot = stream.load().state
        active, compacted = snapshot.active, snapshot.compacted
        if active is None or active.last_position is None:
            return False
        done = 0 if compacted is None else compacted.processed.position
        last = active.last_position if until is None else until
        pending = [delta for delta in active.deltas.above(done) if delta.position <= last]
        if not pending and not merged:
            return False
        for delta in pending:
            self.commits[stream.table_id, str(stream), delta.position] += 1
        files = {} if compacted is None else compacted.files
        removed = list(files) if merged is None else list(merged)
        rows = sum(delta.files[0].rows for delta in pending) + sum(files[number].rows for number in removed)
        number = 1 if compacted is None else compacted.next_file_number
        action = a_round(stream, self.clock.new_id(), [_file(number, path, rows)], removed)
        processed = Watermark(position=max(last, done))
        action = action.model_copy(update={"processed": processed, "at_ms": self.clock.now_ms()})
        commit(stream, action, ReadPoint.of(snapshot))
        if stream.news is not None:
            stream.news.clear(stream.load())
        return True


def cost_of(usd: float) -> Cost:
    parts = ("seconds", "surcharge_usd", "volumes_usd", "requests_usd", "storage_usd", "start_usd")
    return Cost(**dict.fromkeys(parts, 0.0), instances_usd=usd, total_usd=usd, priced_on="2026-01-01")


def _file(number: int, path: str, rows: int) -> DataFile:
    return DataFile(
        file_number=number,
        path=path,
        content_type=ContentType.PARQUET,
        rows=rows,
        size_bytes=rows * ROW_BYTES,
    )


def _pin(session_id: str, stream: PartitionStream) -> SessionPin:
    at = stream.load()
    return SessionPin(
        session_id=session_id,
        partition=stream.partition,
        source_stream_version=1,
        source_entry_number=at.entry_number,
        source_position=None if at.state.active is None else at.state.active.last_position,
        destination_entry_number=at.entry_number,
    )


def _result(pin: SessionPin) -> SessionResult:
    return SessionResult(
        session_id=pin.session_id,
        partition=pin.partition,
        rounds=1,
        rows_in=1,
        rows_out=1,
        rows_deduplicated=0,
        rows_deleted=0,
        seconds=1.0,
        expected_sla=1.0,
    )


def _job_run_ended(ends: list[SessionEnded], seconds: float) -> JobRunAction:
    failed = tuple(each.session_id for each in ends if isinstance(each.end, Failed))
    outcome = JobRunOutcome(
        status="failed" if failed else "succeeded",
        nothing_to_do=all(isinstance(each.end, NothingToDo) for each in ends),
        sessions=len(ends),
        rounds=sum(isinstance(each.end, Succeeded) for each in ends),
        failed_sessions=failed,
        reasons=("it crashed",) if failed else (),
        rows_in=0,
        rows_out=0,
        rows_deduplicated=0,
        rows_deleted=0,
    )
    return JobRunEnded(epoch=1, outcome=outcome, seconds=seconds)
