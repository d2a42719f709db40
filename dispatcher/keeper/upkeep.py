"""What time demands of a lake and a state, whatever tables say: by the functions that the verbs call.

    hints                 every `upkeep_seconds`: tables that got a policy after their creation get news hints
    retirement, garbage   every `upkeep_seconds`: `lithify gc --delete` of all tables
    the state             every `upkeep_seconds`: days of the history are closed, old plans deleted
    publication           every `PUBLISH_SECONDS`: published tables that lag

Each step is idempotent, and several keepers may do it at the same time; an object says when it was done last, or has
begun, which spares them the work. A step that fails, or a table, keeps none of the others from being done.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compactor.lake import Table
from compactor.log_context import LOG, Logged
from compactor.maintenance.collection import Collection, GracePeriods
from compactor.maintenance.late_hints import give_hints
from compactor.model.background import BackgroundLoop
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Denied, LithifyError, Outdated
from compactor.publishing.publication import PublishFailed, publish, publishers_of, with_gone_streams
from dispatcher.keeper.keys import UpkeepDone, lake_name
from dispatcher.keeper.table_keeper import KeeperServices, KeeperSettings
from dispatcher.operations.lag_board import LagBoard
from dispatcher.records.history_upkeep import HistoryUpkeep

LOOK_SECONDS = 300.0
"""Interval between two questions whether something is to be done."""

AT_WORK_SECONDS = 3_600.0
"""After which a step is begun again that has begun and not ended: its keeper was killed."""

PUBLISH_SECONDS = 3_600.0
"""Interval between two publications of tables that lag."""


class UpkeepNote(Document):
    """When each step was done last, and when those began that are at work, in ms since the epoch."""

    done_at_ms: dict[str, int] = {}
    begun_at_ms: dict[str, int] = {}


@dataclass(frozen=True)
class Upkeep:
    """What was done. `failed`: by table, or by step, with the reason."""

    steps: tuple[str, ...] = ()
    deleted_files: int = 0
    retired_deltas: int = 0
    published: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


class LakeUpkeep:
    """For one thread."""

    def __init__(self, services: KeeperServices, settings: KeeperSettings, board: LagBoard) -> None:
        """`board`: is told what failed."""
        self._services = services
        self._clock = services.clock
        self._store = services.records.store
        self._board = board
        self._settings = settings
        self._key = UpkeepDone(lake_name(services.lake.location)).key
        self._seconds = {
            "hints": settings.upkeep_seconds,
            "garbage": settings.upkeep_seconds,
            "state": settings.upkeep_seconds,
            "publication": PUBLISH_SECONDS,
        }
        self._history = HistoryUpkeep(services.records, services.clock)

    def loop(self, ends: threading.Event) -> BackgroundLoop:
        return BackgroundLoop("keeper-upkeep", self.do_what_is_due, LOOK_SECONDS, at_once=True, ends=ends)

    def do_what_is_due(self) -> Upkeep:
        """A step that cannot be done is due again the next time."""
        steps: Mapping[str, Callable[[], Upkeep]] = {
            "hints": self._give_hints,
            "garbage": self._collect,
            "state": self._clean,
            "publication": self._publish,
        }
        now_ms, found = self._clock.now_ms(), Upkeep()
        for step, work in steps.items():
            try:
                noted = self._noted()
                since_done_ms = now_ms - noted.done_at_ms.get(step, 0)
                since_begun_ms = now_ms - noted.begun_at_ms.get(step, 0)
                if since_done_ms < self._seconds[step] * 1000 or since_begun_ms < AT_WORK_SECONDS * 1000:
                    continue
                done = self._do(step, work, now_ms)
            except LithifyError as error:
                done = Upkeep(failed={step: str(error)})
            self._board.upkept(step, done.failed)
            found = _together(found, step, done)
        if found.steps:
            log = LOG.error if found.failed else LOG.info
            log("upkeep_done", steps=found.steps, deleted=found.deleted_files, failed=dict(found.failed))
        return found

    def _do(self, step: str, work: Callable[[], Upkeep], now_ms: int) -> Upkeep:
        self._note(step, {step: now_ms}, {})
        try:
            done = work()
        except LithifyError:
            self._note(step, {}, {})
            raise
        self._note(step, {}, {step: now_ms})
        return done

    def _note(self, step: str, begun_at_ms: Mapping[str, int], done_at_ms: Mapping[str, int]) -> None:
        noted = self._noted()
        others = {each: at_ms for each, at_ms in noted.begun_at_ms.items() if each != step}
        note = UpkeepNote(done_at_ms={**noted.done_at_ms, **done_at_ms}, begun_at_ms={**others, **begun_at_ms})
        self._store.overwrite(self._key, note.render())

    def _noted(self) -> UpkeepNote:
        body = self._store.read(self._key)
        with Logged("upkeep_note_unreadable", Corrupt, Outdated):  # a hint: the work is done once more
            return UpkeepNote() if body is None else UpkeepNote.parse_durable(body, self._key)
        return UpkeepNote()

    def _give_hints(self) -> Upkeep:
        grace = GracePeriods(self._settings.grace_seconds)

        def of_table(table: Table) -> Mapping[str, str]:
            if table.properties.kept_by(self._settings.default_policy) is not None:
                give_hints(self._services.lake.store, table, self._clock, grace.seconds_of(table.properties))
            return {}

        return Upkeep(failed=self._of_each_table(of_table))

    def _collect(self) -> Upkeep:
        lake = self._services.lake
        run = Collection(lake, self._clock, GracePeriods(self._settings.grace_seconds), deletes=True)
        run.collect_tables(lake.tables(), lake.dropped_tables())
        failed = {each.table_id or "unfinished writes": each.reason for each in run.failed}
        for store in {each.location.root_uri: each for each in (lake.store, self._store)}.values():
            try:
                run.give_up_unfinished(store)
            except Denied as error:  # needs a separate right
                failed[f"unfinished writes of {store.location.root_uri}"] = str(error)
        retired = sum(each.deltas for each in run.retired)
        return Upkeep(deleted_files=run.deleted_files, retired_deltas=retired, failed=failed)

    def _clean(self) -> Upkeep:
        self._history.round()
        return Upkeep()

    def _publish(self) -> Upkeep:
        published: list[str] = []

        def of_table(table: Table) -> Mapping[str, str]:
            if not table.properties.publish:
                return {}
            publishers = publishers_of(self._services.lake.store, table, self._clock)
            streams = with_gone_streams(table, publishers, [table.stream(each) for each in table.partitions()])
            outcomes = publish(publishers, streams)
            published.append(table.table_id)
            reasons = [reason for each in outcomes if isinstance(each, PublishFailed) for reason in each.reasons]
            return {table.table_id: "; ".join(reasons)} if reasons else {}

        return Upkeep(published=tuple(published), failed=self._of_each_table(of_table))

    def _of_each_table(self, work: Callable[[Table], Mapping[str, str]]) -> Mapping[str, str]:
        """What failed, by table."""
        failed: dict[str, str] = {}
        for table_id in self._services.lake.tables():
            try:
                failed |= work(self._services.lake.table(table_id))
            except LithifyError as error:
                failed[table_id] = str(error)
        return failed


def _together(one: Upkeep, step: str, other: Upkeep) -> Upkeep:
    return Upkeep(
        steps=(*one.steps, step),
        deleted_files=one.deleted_files + other.deleted_files,
        retired_deltas=one.retired_deltas + other.retired_deltas,
        published=(*one.published, *other.published),
        failed={**one.failed, **other.failed},
    )
