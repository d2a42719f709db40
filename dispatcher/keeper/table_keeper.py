"""Keeps one table: looks at its streams, decides, sends instructions, and notes what became of them.

The order of durable writes, from a decision to its end:

    1  `decided`                the table's decision log, by put-if-absent: of two keepers one decides
    2  the instruction          the queue
    3  `sent`                   the decision log; `waits` if the queue did not take it
    4  the job run              the job-run log, by whichever dispatcher takes the message
    5  `ended`                  the decision log

A keeper that ends after 1 or 2, or gets no answer, leaves a decision that is not sent: a later look of any keeper
sends it (the next one, if it is noted to wait), with the same job run id, under which dispatchers start one job run
however often it comes. The same is done where 3 is there and 4 is not for a long time: the queue has lost the message,
or was emptied. A message that comes after 5 finds the job run ended, and starts nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic_core import to_json

from compactor.catalog.compact_when import CompactWhen, Preset
from compactor.catalog.properties import TableState
from compactor.catalog.tables import Table
from compactor.events.relay import EventSink, Relay
from compactor.events.types import bounded
from compactor.lake import DeltaCatalog
from compactor.log.durable_log import DurableLog, LogState
from compactor.log_context import LOG
from compactor.model.clock import Clock, seconds_since
from compactor.model.errors import Denied, Invalid, LithifyError, Unavailable
from compactor.planning.due import Due, Expected, has_work
from compactor.planning.sizing import SessionSize, size_session
from compactor.planning.stream_figures import StreamFigures
from compactor.planning.where_to_run import WorkerPool, choose_place, in_one_process
from compactor.publishing.glue import GlueService
from compactor.storage.keys import encode_partition
from dispatcher.keeper.deciding import Seen, StreamOutlook, decisions_on, outlooks, rank
from dispatcher.keeper.decision_log import (
    DECISION_LOG,
    DecisionAction,
    DecisionEnded,
    DecisionMade,
    DecisionSent,
    DecisionState,
    DecisionWaits,
    OpenDecision,
    TableSetAside,
    UnsettledStream,
    decision_events,
)
from dispatcher.keeper.decision_queue import TakesInstructions
from dispatcher.keeper.keys import DecisionLogFolder, PublishedDecisions, StreamsSeenObject, lake_name
from dispatcher.keeper.watching import TableWatch, WatchedStream
from dispatcher.operations.table_lag import TableLag, lag_of, with_published
from dispatcher.records.claims import JobRunLog
from dispatcher.records.history import day_of, ended_job_run
from dispatcher.records.job_run_log import JobRunState, JobRunStatus
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.pauses import Pause
from dispatcher.scheduling.lease_log import Demand, LeaseState, QuotaExceeded, over_budget
from dispatcher.scheduling.limits import DispatcherLimits, Limits
from launcher.outcomes import Succeeded
from launcher.plan import Room
from launcher.sizing.cluster_choice import ClusterRoom, choose_cluster


def expected_cost(figures: StreamFigures, room: Room, pool: WorkerPool | None, *, is_remote: bool) -> Expected:
    """An upper estimate: every compacted row counts as touched, and the session as alone on its cluster. Nothing is
    paid for one that a dispatcher's worker runs.

    What a session costs that no cluster within the keeper's limits can run is not known: a dispatcher with the same
    limits refuses it.

    Args:
        pool: the workers of dispatchers whose other sessions run on clusters; None: they have none"""
    size = SessionSize(
        index_rows=figures.rows + figures.dead_rows,
        delta_rows=figures.pending_rows,
        delta_bytes=figures.pending_bytes,
        sort_values_bytes=0,
        inherited_hash_bucket_count=None,
        delta_files=figures.pending_deltas,
        largest_delta_file_rows=-(-figures.pending_rows // max(figures.pending_deltas, 1)),
        compacted_files=figures.files,
        compacted_bytes=figures.file_bytes,
        lake_is_remote=is_remote,
    )
    try:
        if isinstance(room, ClusterRoom):
            if pool is not None and choose_place(here := in_one_process(size, None, pool.memory_bytes), pool).in_worker:
                return Expected(here.seconds)
            plan = choose_cluster(size, room, None).plan
            return Expected(plan.expected_sla, plan.cost.total_usd)
        alone = in_one_process(size, None, room.task_memory_bytes)
        if not alone.reasons_for_spark:
            return Expected(alone.seconds)
        return Expected(size_session(size, room, None, None, 1.0).expected_sla)
    except Invalid as error:
        return Expected(0.0, unknown=str(error) if isinstance(room, ClusterRoom) else None)


@dataclass(frozen=True)
class KeeperSettings:
    """
    Attributes:
        look_seconds: between two looks at all tables
        default_policy: of tables that have none of their own; None: they are left alone
        read_again_seconds: after which a table's definition and its decision log are read again though nothing is due
        read_again_idle_seconds: likewise where there is nothing to do, whatever the policy says by now
        left_by_another_seconds: after which a decision that another keeper has not sent is sent here
        resend_seconds: after which an instruction is sent again that no dispatcher has taken; then after twice as long
        upkeep_seconds: between two collections of garbage
        grace_seconds: of garbage of tables that set none; None: the default"""

    look_seconds: float = 60.0
    default_policy: CompactWhen | None = None
    read_again_seconds: float = 300.0
    read_again_idle_seconds: float = 3_600.0
    left_by_another_seconds: float = 60.0
    resend_seconds: float = 900.0
    upkeep_seconds: float = 86_400.0
    grace_seconds: float | None = None


@dataclass(frozen=True)
class KeeperServices:
    """What all tables share.

    Attributes:
        queue: None: nothing is sent, as in a plan
        room, pool: where sessions run, from which their time and money are predicted: see `expected_cost`
        open_glue: opens the Glue Data Catalog, which is led to what is published; None: nothing is, as in a plan"""

    lake: DeltaCatalog
    records: JobRunStore
    queue: TakesInstructions | None
    room: Room
    sink: EventSink
    clock: Clock
    pool: WorkerPool | None = None
    open_glue: Callable[[], GlueService] | None = None


@dataclass(frozen=True)
class TableOutlook:
    """
    Attributes:
        at_work: of streams with an open decision, how far that has come, by the stream's key
        why_not: why the table is not kept; None: it is"""

    table_id: str
    policy: CompactWhen | None
    streams: Sequence[StreamOutlook] = ()
    at_work: Mapping[str, str] = field(default_factory=dict)
    why_not: str | None = None


@dataclass(frozen=True)
class TableLook:
    """What one look has done. `waiting`: open decisions that are not sent. `queue_away`: why the queue did not take
    one. `lag` None: the table is not kept."""

    decided: int = 0
    sent: int = 0
    ended: int = 0
    open: int = 0
    waiting: int = 0
    queue_away: str | None = None
    lag: TableLag | None = None


class TableKeeper:
    """One table, as one keeper sees it. Not thread-safe."""

    def __init__(self, services: KeeperServices, table_id: str, settings: KeeperSettings) -> None:
        self._services = services
        self._settings = settings
        self._clock = services.clock
        self._table_id = table_id
        self._lake = lake_name(services.lake.location)
        names = (self._lake, table_id)
        store = services.records.store
        self.log = DurableLog(store, DecisionLogFolder(*names).key, DECISION_LOG, self._clock)
        build = decision_events(table_id, self.log.folder)
        self._relay = Relay(self.log, store, PublishedDecisions(*names).key, build, services.sink, is_complete=True)
        self._watch = TableWatch(services.lake.store, self._clock, store, StreamsSeenObject(*names).key)
        self._table: Table | None = None
        self._read_at_seconds: float | None = None
        self._published_at: tuple[Sequence[str], Mapping[str, int]] = (), {}
        self._unpublished = 0
        self._made_here: set[str] = set()
        self._job_run_logs: dict[str, JobRunLog] = {}
        self._costs: dict[str, tuple[StreamFigures, Expected]] = {}

    # -- looking

    def look(self, pauses: Callable[[], Sequence[Pause]]) -> TableLook:
        """Raises errors of table and state; the next look goes on from what is durable by then."""
        is_read_again = self._read_again_when_due()
        table, policy = self._table, self._policy()
        if table is None:
            return TableLook()
        if policy is None:  # what was decided before is still open
            return TableLook(ended=self._note_ends(), open=len(self.log.newest.state.open))
        if not is_read_again and self.log.newest.state.open:
            self.log.load()
        ended = self._note_ends()  # first: what is read of a stream then has all that its job run did
        self._watch.look(table, policy)
        if is_read_again:
            self._watch.note()
        decided = self._decide(table, policy, pauses)
        sends = policy.preset is not Preset.MANUAL  # what is not sent yet waits for another policy
        sent, queue_away = self._send_what_is_open(table) if sends else (0, None)
        if self.log.newest.state.set_aside is not None:
            self.set_aside(None)
        still_open = self.log.newest.state.open.values()
        unsent = [each for each in still_open if each.sent_at_ms is None]
        watched = {each.key for each in self._watch.streams}
        self._costs = {key: cost for key, cost in self._costs.items() if key in watched}
        lag = replace(self._lag(table), unsent_decisions=sum(each.waits is not None for each in unsent))
        return TableLook(decided, sent, ended, len(still_open), len(unsent), queue_away, lag)

    def _lag(self, table: Table) -> TableLag:
        """What is published is read only if a stream has grown since, or something was behind."""
        streams, services = self._watch.streams, self._services
        found = lag_of(table, [each.figures for each in streams], self._clock, self._settings.default_policy)
        ends = {each.key: each.entry_number for each in streams}
        as_of = table.properties.publish, ends
        if as_of == self._published_at and not self._unpublished:
            return replace(found, is_published=bool(table.properties.publish))
        try:
            partitions = [each.partition for each in streams]
            found = with_published(found, services.lake.store, table, self._clock, partitions, ends)
        except LithifyError as error:
            LOG.warning("published_lag_unknown", table=self._table_id, reason=str(error))
            return found  # the next look asks again
        self._published_at, self._unpublished = as_of, found.figures.unpublished_files
        return found

    def publish(self) -> None:
        """Publishes the events of the entries that were read. Raises the errors of the topic and of the state."""
        self._relay.publish()

    def outlook(self, pauses: Sequence[Pause]) -> TableOutlook:
        """What a look would decide. Writes nothing."""
        self._read_again_when_due()
        table, policy = self._table, self._policy()
        if table is None or policy is None:
            return TableOutlook(self._table_id, policy, why_not=self._why_not(table))
        self._watch.look(table, policy)
        seen = self._seen(table, policy, pauses)
        state = self.log.newest.state
        found = outlooks(seen, state, self._clock.now_ms())
        streams = [replace(each, cost=self._cost_of(each.stream)) for each in found]
        at_work = {stream.key: self._where(each) for each in state.open.values() for stream in each.made.streams}
        return TableOutlook(self._table_id, policy, streams, at_work)

    def _why_not(self, table: Table | None) -> str:
        if table is not None and table.properties.state is TableState.OFFLINE:
            return "the table is offline"
        if table is not None and table.properties.primary_keys is None and self._settings.default_policy:
            return "the table has no primary_keys"
        return "it has no compact_when, and the keeper no default"

    def _where(self, decision: OpenDecision) -> str:
        """How far a decision has come that has not ended."""
        job_run_id = decision.made.job_run_id
        status = self._services.records.state(job_run_id).status
        if status.is_open:
            return f"it is being compacted by job run {job_run_id}"
        if status is not JobRunStatus.ABSENT:
            return f"job run {job_run_id} has {status}: the next look notes it"
        if decision.sent_at_ms is None:
            waits = "is not sent yet" if decision.waits is None else f"waits for the queue: {decision.waits.reason}"
            return f"its instruction {waits}: job run {job_run_id}"
        seconds = max(self._clock.now_ms() - decision.sent_at_ms, 0) / 1000
        return f"its instruction was sent {seconds:,.0f} s ago, and no dispatcher has taken it: job run {job_run_id}"

    def set_aside(self, reason: str | None) -> None:
        """Notes why the table cannot be kept; None: it can again. Raises the state's errors."""

        def decide(before: LogState[DecisionState]) -> Sequence[DecisionAction]:
            changes = before.state.set_aside != reason
            return [TableSetAside(reason=reason, at_ms=self._clock.now_ms())] if changes else []

        self.log.append(decide)

    def _policy(self) -> CompactWhen | None:
        return None if self._table is None else self._table.properties.kept_by(self._settings.default_policy)

    def _read_again_when_due(self) -> bool:
        now_seconds = self._clock.monotonic_seconds()
        last, settings = self._read_at_seconds, self._settings
        after = settings.read_again_idle_seconds if self._is_idle() else settings.read_again_seconds
        if last is not None and now_seconds - last < after:
            return False
        self._table = self._services.lake.table(self._table_id)
        if self._policy() is not None:
            self._watch.begin(self._table)
        self.log.load()
        self._read_at_seconds = now_seconds
        return True

    def _is_idle(self) -> bool:
        """Whether another policy would change nothing before a stream has news."""
        policy = self._policy()
        if policy is None or self.log.newest.state.open:
            return False
        return not any(has_work(each.figures) for each in self._watch.streams)

    def _seen(self, table: Table, policy: CompactWhen, pauses: Sequence[Pause]) -> Seen:
        names = {table.table_id, table.properties.destination_compacted_table_id}
        stops = (each for each in pauses if each.job_run_id is None and (each.table is None or each.table in names))
        pause = next((f"{each.scope}: {each.reason}" for each in stops), None)
        return Seen(self._lake, self._table_id, policy, self._watch.streams, self._cost_of, pause)

    def _cost_of(self, stream: WatchedStream) -> Expected:
        """Calculated once for the same figures: a choice among all clusters takes milliseconds."""
        known = self._costs.get(stream.key)
        if known is None or known[0] != stream.figures:
            services = self._services
            is_remote = services.lake.location.is_remote
            known = stream.figures, expected_cost(stream.figures, services.room, services.pool, is_remote=is_remote)
            self._costs[stream.key] = known
        return known[1]

    # -- deciding

    def _decide(self, table: Table, policy: CompactWhen, pauses: Callable[[], Sequence[Pause]]) -> int:
        """Step 1; the number of decisions. Log and pauses are read only where something is due by what is known."""
        known = self.log.newest.state
        seen = self._seen(table, policy, ())
        found = decisions_on(seen, known, self._clock.now_ms())
        if not found:
            return 0
        chosen = {each.key for action in found if isinstance(action, DecisionMade) for each in action.streams}
        if self._watch.have_grown(table, chosen):
            return 0  # such as one that was dropped: the next look knows
        self._table = self._services.lake.table(self._table_id)
        if seen.policy != self._policy():
            return 0  # the next look has the streams' figures for it
        seen = self._seen(table, policy, pauses())
        # Those at work by what was known before they were read: if that ends only now, they were read too early.
        seen = replace(seen, streams=[each for each in seen.streams if each.key not in known.streams_at_work])
        made: list[str] = []

        def decide(before: LogState[DecisionState]) -> Sequence[DecisionAction]:
            actions = decisions_on(seen, before.state, self._clock.now_ms())
            made[:] = [action.job_run_id for action in actions if isinstance(action, DecisionMade)]
            return actions

        self.log.append(decide)
        self._made_here.update(made)
        return len(made)

    # -- sending

    def _send_what_is_open(self, table: Table) -> tuple[int, str | None]:
        """Steps 2 and 3: the number of instructions, and why the queue did not take another."""
        number, queue = 0, self._services.queue
        failed: dict[str, LithifyError] = {}
        for job_run_id, decision in sorted(self.log.newest.state.open.items()):
            if queue is None or not self._is_to_be_sent(job_run_id, decision):
                continue
            try:
                queue.send(self._document(table, decision.made))
            except (Unavailable, Denied, Invalid) as error:
                LOG.warning("decision_waits_for_queue", table=self._table_id, job_run=job_run_id, reason=str(error))
                failed[job_run_id] = error
                continue
            sent = DecisionSent(job_run_id=job_run_id, at_ms=self._clock.now_ms())
            self.log.append(partial(_while_open, job_run_id, sent))
            number += 1
        if failed:
            self.log.append(partial(self._waits, failed))
        return number, next((str(error) for error in failed.values()), None)

    def _waits(self, failed: Mapping[str, LithifyError], before: LogState[DecisionState]) -> Sequence[DecisionAction]:
        """What is new of the failures: an entry for each look would say the same again and again."""
        open_now = ((each, before.state.open.get(each), error) for each, error in failed.items())
        return [
            DecisionWaits(
                job_run_id=job_run_id,
                streams=len(decision.made.streams),
                kind=error.kind,
                reason=bounded((str(error),))[0],
                at_ms=self._clock.now_ms(),
            )
            for job_run_id, decision, error in open_now
            if decision is not None
            and decision.sent_at_ms is None
            and (decision.waits is None or decision.waits.kind is not error.kind)
        ]

    def _is_to_be_sent(self, job_run_id: str, decision: OpenDecision) -> bool:
        now_ms = self._clock.now_ms()
        if decision.sent_at_ms is None:
            is_next = decision.waits is not None or job_run_id in self._made_here
            return is_next or seconds_since(decision.made.at_ms, now_ms) >= self._settings.left_by_another_seconds
        log = self._job_run_logs.get(job_run_id)
        is_taken = log is not None and log.newest.entry_number > 0
        waited_seconds = max(decision.sent_at_ms - decision.made.at_ms, 0) / 1000
        wait_seconds = max(self._settings.resend_seconds, waited_seconds)
        return not is_taken and seconds_since(decision.sent_at_ms, now_ms) >= wait_seconds

    def _document(self, table: Table, made: DecisionMade) -> str:
        document: dict[str, object] = {
            "schema_version": "1",
            "source_table_id": self._table_id,
            "delta_catalog": self._services.lake.location.root_uri,
            "job_run_id": made.job_run_id,
        }
        if table.partition_keys:
            document["partitions"] = [stream.partition for stream in made.streams]
        return to_json(document).decode()

    # -- what became of it

    def _note_ends(self) -> int:
        """Step 5; the number of decisions that have ended."""
        number, state = 0, self.log.newest.state
        for job_run_id, decision in sorted(state.open.items()):
            ended = self._end_of(job_run_id, decision, state)
            if ended is not None:
                self.log.append(partial(_while_open, job_run_id, ended))
                self._job_run_logs.pop(job_run_id, None)
                self._made_here.discard(job_run_id)
                number += 1
        return number

    def _end_of(self, job_run_id: str, decision: OpenDecision, state: DecisionState) -> DecisionEnded | None:
        """None: it has not ended."""
        records, now_ms = self._services.records, self._clock.now_ms()
        log = self._job_run_logs.setdefault(job_run_id, records.log(job_run_id))
        run = log.load().state
        if run.status is JobRunStatus.ABSENT:
            return self._rejection_of(job_run_id, decision, state)
        if run.ended is None or run.accepted is None:
            return None
        ended = ended_job_run(job_run_id, run, run.accepted.accepted_at_ms(log.entry(1).at_ms))
        if ended is None:
            return None
        unsettled = tuple(_unsettled(decision, run, state, now_ms))
        return DecisionEnded.from_facts(ended, reasons=bounded(ended.reasons), unsettled=unsettled, at_ms=now_ms)

    def _rejection_of(self, job_run_id: str, decision: OpenDecision, state: DecisionState) -> DecisionEnded | None:
        """Looked for only once it has been sent for long enough that a dispatcher could have judged it."""
        now_ms, sent_at_ms = self._clock.now_ms(), decision.sent_at_ms
        if sent_at_ms is None or seconds_since(sent_at_ms, now_ms) < self._settings.left_by_another_seconds:
            return None
        records = self._services.records
        for message_id in records.rejected_message_ids(job_run_id)[:1]:
            rejected = records.state(message_id).rejected
            return DecisionEnded(
                job_run_id=job_run_id,
                status=JobRunStatus.REJECTED,
                seconds=0.0,
                usd=0.0,
                reasons=bounded(() if rejected is None else rejected.reasons),
                unsettled=tuple(_unsettled(decision, None, state, now_ms)),
                at_ms=now_ms,
            )
        return None


def _while_open(job_run_id: str, action: DecisionAction, before: LogState[DecisionState]) -> Sequence[DecisionAction]:
    return [action] if job_run_id in before.state.open else []


def _unsettled(
    decision: OpenDecision, run: JobRunState | None, state: DecisionState, now_ms: int
) -> Iterator[UnsettledStream]:
    """The streams that the job run has left as they were: there was nothing to do, or it failed."""
    sessions = {} if run is None else {encode_partition(each.pin.partition): each for each in run.sessions.values()}
    for stream in decision.made.streams:
        session = sessions.get(stream.key)
        end = None if session is None else session.end
        if isinstance(end, Succeeded) and end.result.rounds:
            continue
        has_failed = run is None or run.status is not JobRunStatus.SUCCEEDED
        before = state.unsettled.get(stream.key)
        failures = (before.failures if before is not None else 0) + 1 if has_failed else 0
        yield UnsettledStream(key=stream.key, entry_number=stream.entry_number, failures=failures, at_ms=now_ms)


_NOBODY = ""
"""The owner of a plan: which dispatcher runs a session is not known before, so the budget of one is left out."""


def over_budgets(
    found: Sequence[TableOutlook], limits: Limits, leases: LeaseState, now_ms: int
) -> Mapping[tuple[str, str], QuotaExceeded]:
    """By table and stream. What saves most for its money is paid for first, after what is spent or runs today.

    Worked: of $10 a day, $9 are spent, and three sessions are expected to cost $0.60, $0.60 and $0.30: the first and
    the third are paid for, the second waits.
    """
    due: list[tuple[str, StreamOutlook, float]] = [
        (table.table_id, each, each.cost.usd)
        for table in found
        for each in table.streams
        if isinstance(each.decision, Due) and each.cost is not None and each.cost.usd
    ]
    due.sort(key=lambda each: (rank(each[1]), each[0]))
    day, shared = day_of(now_ms), limits.model_copy(update={"dispatcher": DispatcherLimits()})
    exceeded: dict[tuple[str, str], QuotaExceeded] = {}
    for table_id, each, usd in due:
        over = over_budget(leases, Demand(_NOBODY, table_id, usd=usd), shared, day)
        if over is None:
            leases = leases.with_spent(day, table_id, _NOBODY, usd)
        else:
            exceeded[table_id, each.stream.key] = over
    return exceeded
