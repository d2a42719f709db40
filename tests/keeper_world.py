"""A lake, a state, a queue and a dispatcher without sessions: what the keeper is tested against, in memory.

Deltas and rounds are entries of the real logs, without files. The dispatcher takes every message that waits, and has
each of its sessions commit a round, by the real formats of the job-run log.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from compactor.catalog.actions import DeltaAdded, StreamAction, StreamVersionCreated
from compactor.catalog.snapshot import ReadPoint
from compactor.catalog.stream import PartitionStream
from compactor.catalog.tables import Table
from compactor.catalog.transaction import commit
from compactor.events.relay import EventSink, NoSink
from compactor.lake import DeltaCatalog
from compactor.model.counts import Watermark
from compactor.model.errors import ErrorKind
from compactor.model.files import DataFile
from compactor.model.names import ContentType, LifecycleState, Operation
from compactor.planning.sizing import Resources
from compactor.planning.spec import JobRunSpec, SessionResult
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from dispatcher.keeper.keeper import Keeper
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
from tests.fakes.memory_queue import MemoryQueue
from tests.fakes.memory_store import MemoryStore
from tests.rounds import a_round

ORDERS = "ACME.ORDERS.V1"
ROOM = Resources(task_memory_bytes=1 << 30, tasks=2)
ROW_BYTES = 100


@dataclass
class KeeperWorld:
    """`commits`: by table and stream, the positions that each of its rounds has compacted."""

    clock: ManualClock = field(default_factory=ManualClock)
    commits: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    job_runs: list[str] = field(default_factory=list)
    documents: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lake_store: ObjectStore = MemoryStore(self.clock, StoreLocation("s3://bucket/lake"))
        self.state: ObjectStore = MemoryStore(self.clock, StoreLocation("s3://bucket/state"))
        self.queue = MemoryQueue(self.clock)
        self.lake = DeltaCatalog(self.lake_store, self.clock)
        self.records = JobRunStore(self.state, self.clock)

    def table(
        self, policy: object = "streaming", table_id: str = ORDERS, keys: tuple[str, ...] = (), **properties: object
    ) -> Table:
        given = {**properties, **({} if policy is None else {"compact_when": policy})}
        return self.lake.create_table(table_id, keys, primary_keys={"id"}, properties=given)

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
        """Another one. `state`, `lake`, `queue`: the same, as this keeper reaches them."""
        services = KeeperServices(
            DeltaCatalog(lake or self.lake_store, self.clock),
            JobRunStore(state or self.state, self.clock),
            queue or self.queue,
            room,
            sink or NoSink(),
            self.clock,
        )
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
            actions.append(self._delta(position, rows))
            stream.log.append(lambda _, actions=actions: actions)  # type: ignore[misc]

    def _delta(self, position: int, rows: int) -> DeltaAdded:
        return DeltaAdded(
            stream_version=1,
            position=position,
            operation=Operation.UPSERT,
            delta_id=f"delta {position}",
            content_digest="",
            files=(_file(1, rows),),
            at_ms=self.clock.now_ms(),
        )

    # -- the dispatcher

    def dispatch(self, fails: bool = False, seconds: float = 3.0) -> list[str]:
        """Takes every message, and runs each job run that it has not run. Returns the ids of those that it ran."""
        ran: list[str] = []
        while messages := self.queue.receive(10, 0, 3_600):
            for message in messages:
                if self._take(message.body, message.message_id, fails=fails, seconds=seconds):
                    ran.append(json.loads(message.body)["job_run_id"])
                self.queue.delete(message)
        self.job_runs += ran
        return ran

    def _take(self, body: str, message_id: str, *, fails: bool, seconds: float) -> bool:
        document = json.loads(body)
        self.documents.append(document)
        table_id, job_run_id = document["source_table_id"], document["job_run_id"]
        log = self.records.log(job_run_id)
        if log.load().entry_number:
            return False
        if table_id not in self.lake.tables():
            reasons = (f"there is no table {table_id}",)
            rejected = JobRunRejected(
                message_id=message_id, reasons=reasons, requested_job_run_id=job_run_id, table=table_id
            )
            self.records.log(message_id).append(lambda _: [rejected])
            self.records.mark_rejected(job_run_id, message_id)
            return False
        table = self.lake.table(table_id)
        partitions = document.get("partitions") or [{}]
        spec = JobRunSpec(
            job_run_id=job_run_id,
            source_table_id=table_id,
            primary_keys=("id",),
            lake=self.lake.location,
            destination_compacted_table_id=table_id,
            partitions=tuple(partitions),
        )
        streams = [table.stream(partition) for partition in partitions]
        pins = tuple(_pin(f"{job_run_id}.{number}", stream) for number, stream in enumerate(streams, 1))
        accepted = JobRunAccepted(spec=spec, content_digest="", message_id=message_id, sessions=pins)
        log.append(lambda _: [accepted, JobRunClaimed(owner="d1", epoch=1)])
        self.clock.sleep(seconds)
        ends = [self._run(stream, pin, fails=fails) for stream, pin in zip(streams, pins, strict=True)]
        log.append(lambda _: [*ends, _job_run_ended(ends, seconds)])
        return True

    def _run(self, stream: PartitionStream, pin: SessionPin, *, fails: bool) -> SessionEnded:
        end: SessionEnd = NothingToDo()
        if fails:
            end = Failed(attempt=1, error_kind=ErrorKind.CRASHED, reasons=("it crashed",))
        elif self.compact(stream):
            end = Succeeded(result=_result(pin))
        return SessionEnded(epoch=1, session_id=pin.session_id, end=end)

    def compact(self, stream: PartitionStream) -> bool:
        """A round that leaves one file. False: there was nothing to do."""
        snapshot = stream.load().state
        active, compacted = snapshot.active, snapshot.compacted
        if active is None or active.last_position is None:
            return False
        done = 0 if compacted is None else compacted.processed.position
        pending = list(active.deltas.above(done))
        if not pending:
            return False
        for delta in pending:
            self.commits[stream.table_id, str(stream), delta.position] += 1
        rows = sum(delta.files[0].rows for delta in pending) + (0 if compacted is None else compacted.rows)
        number = 1 if compacted is None else compacted.next_file_number
        action = a_round(stream, self.clock.new_id(), [_file(number, rows)], list(compacted.files) if compacted else [])
        processed = Watermark(position=active.last_position)
        action = action.model_copy(update={"processed": processed, "at_ms": self.clock.now_ms()})
        commit(stream, action, ReadPoint.of(snapshot))
        if stream.news is not None:
            stream.news.clear(stream.load())
        return True


def _file(number: int, rows: int) -> DataFile:
    return DataFile(
        file_number=number,
        path=f"file {number}",
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
        source_position=None,
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
