"""What time demands of a lake and a state, whatever tables say: by the functions that the verbs call.

    hints                 every `upkeep_seconds`: tables that got a policy after their creation get news hints
    retirement, garbage   every `upkeep_seconds`: `lithify gc --delete` of all tables
    the state             every `upkeep_seconds`: days of the history are closed, old plans deleted
    publication           every `PUBLISH_SECONDS`: published tables that lag

Each step is idempotent, and several keepers may do it at the same time; an object says when it was done last, or has
begun, which spares them the work, and for which tables it failed: these are tried again after `RETRY_SECONDS`, and are
troubles of every keeper until then. A step that fails, or a table, keeps none of the others from being done.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from compactor.lake import Table
from compactor.log_context import LOG, Logged
from compactor.maintenance.collection import Collection, GracePeriods
from compactor.maintenance.late_hints import give_hints
from compactor.model.background import BackgroundLoop
from compactor.model.clock import seconds_since
from compactor.model.document import Document
from compactor.model.errors import Corrupt, Denied, Outdated, reason_of
from compactor.publishing.protocol import Outcome
from compactor.publishing.publication import (
    PublishFailed,
    lead_glue,
    publish,
    publishers_of,
    reasons_of,
    with_gone_streams,
)
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

RETRY_SECONDS = 3_600.0
"""After which a step is tried again for tables for which it failed."""

REASONS_SHOWN = 3
"""Of those for which a table is not published: each partition may have one."""

UNFINISHED = "unfinished writes"

FAILED_KEPT = 100
"""Tables of a step that are tried again before the step is."""

OnlyThese = Mapping[str, str] | None
"""Tables for which a step failed, with the reasons: it is done for these only; None: for all."""


class StepFailed(Document):
    """`reasons`: by table, at most `FAILED_KEPT`."""

    at_ms: int
    reasons: dict[str, str]


class UpkeepNote(Document):
    """When each step was done last for all tables, when those began that are at work, in ms since the epoch; and what
    failed of a step when it was done or tried again."""

    done_at_ms: dict[str, int] = {}
    begun_at_ms: dict[str, int] = {}
    failed: dict[str, StepFailed] = {}


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
        steps: Mapping[str, Callable[[OnlyThese], Upkeep]] = {
            "hints": self._give_hints,
            "garbage": self._collect,
            "state": self._clean,
            "publication": self._publish,
        }
        now_ms, found = self._clock.now_ms(), Upkeep()
        for step, work in steps.items():
            try:
                noted = self._noted()
                if seconds_since(noted.begun_at_ms.get(step), now_ms) < AT_WORK_SECONDS:
                    continue
                failed, only = noted.failed.get(step), None
                if seconds_since(noted.done_at_ms.get(step), now_ms) < self._seconds[step]:
                    self._board.upkept(step, {} if failed is None else failed.reasons)
                    if failed is None or seconds_since(failed.at_ms, now_ms) < RETRY_SECONDS:
                        continue
                    only = failed.reasons
                done = self._do(step, partial(work, only), now_ms, whole=only is None)
            except Exception as error:  # noqa: BLE001  (of one step: the others are done)
                done = Upkeep(failed={step: reason_of(error)})
            self._board.upkept(step, done.failed)
            found = _together(found, step, done)
        if found.steps:
            log = LOG.error if found.failed else LOG.info
            log("upkeep_done", steps=found.steps, deleted=found.deleted_files, failed=dict(found.failed))
        return found

    def _do(self, step: str, work: Callable[[], Upkeep], now_ms: int, *, whole: bool) -> Upkeep:
        """`whole`: for all tables."""
        noted = self._without(step)
        self._note(noted.model_copy(update={"begun_at_ms": {**noted.begun_at_ms, step: now_ms}}))
        try:
            done = work()
        except Exception:
            self._note(self._without(step))
            raise
        noted = self._without(step)
        done_at_ms = {**noted.done_at_ms, step: now_ms} if whole else noted.done_at_ms
        failed = {each: found for each, found in noted.failed.items() if each != step}
        if done.failed:
            failed[step] = StepFailed(at_ms=now_ms, reasons=dict(islice(done.failed.items(), FAILED_KEPT)))
        self._note(noted.model_copy(update={"done_at_ms": done_at_ms, "failed": failed}))
        return done

    def _without(self, step: str) -> UpkeepNote:
        """What is noted by now, but that the step is at work."""
        noted = self._noted()
        begun = {each: at_ms for each, at_ms in noted.begun_at_ms.items() if each != step}
        return noted.model_copy(update={"begun_at_ms": begun})

    def _note(self, note: UpkeepNote) -> None:
        self._store.overwrite(self._key, note.render())

    def _noted(self) -> UpkeepNote:
        body = self._store.read(self._key)
        with Logged("upkeep_note_unreadable", Corrupt, Outdated):  # a hint: the work is done once more
            return UpkeepNote() if body is None else UpkeepNote.parse_durable(body, self._key)
        return UpkeepNote()

    def _give_hints(self, only: OnlyThese) -> Upkeep:
        grace = GracePeriods(self._settings.grace_seconds)

        def of_table(table: Table) -> Mapping[str, str]:
            if table.properties.kept_by(self._settings.default_policy) is not None:
                give_hints(self._services.lake.store, table, self._clock, grace.seconds_of(table.properties))
            return {}

        return Upkeep(failed=self._of_each_table(of_table, only))

    def _collect(self, only: OnlyThese) -> Upkeep:
        lake = self._services.lake
        run = Collection(lake, self._clock, GracePeriods(self._settings.grace_seconds), deletes=True)
        run.collect_tables(_among(lake.tables(), only), _among(lake.dropped_tables(), only))
        failed = {each.table_id or UNFINISHED: each.reason for each in run.failed}
        if only is None:
            failed |= self._give_up_unfinished(run)
        else:  # the graces of all tables are not known
            failed |= {what: why for what, why in only.items() if what.startswith(UNFINISHED)}
        retired = sum(each.deltas for each in run.retired)
        return Upkeep(deleted_files=run.deleted_files, retired_deltas=retired, failed=failed)

    def _give_up_unfinished(self, run: Collection) -> Mapping[str, str]:
        """What may not be listed: that needs a separate right."""
        failed: dict[str, str] = {}
        for store in {each.location.root_uri: each for each in (self._services.lake.store, self._store)}.values():
            try:
                run.give_up_unfinished(store)
            except Denied as error:
                failed[f"{UNFINISHED} of {store.location.root_uri}"] = str(error)
        return failed

    def _clean(self, _: OnlyThese) -> Upkeep:
        self._history.round()
        return Upkeep()

    def _publish(self, only: OnlyThese) -> Upkeep:
        published: list[str] = []

        def of_table(table: Table) -> Mapping[str, str]:
            if not table.properties.publish:
                return {}
            publishers = publishers_of(self._services.lake.store, table, self._clock)
            streams = with_gone_streams(table, publishers, [table.stream(each) for each in table.partitions()])
            outcomes: Sequence[Outcome | PublishFailed] = publish(publishers, streams)
            open_glue = self._services.open_glue
            if table.properties.glue_database is not None and open_glue is not None:
                outcomes = [*outcomes, *lead_glue(open_glue(), self._services.lake.store, table, outcomes)]
            published.append(table.table_id)
            reasons = [reason for each in outcomes for reason in reasons_of(each)]
            return {table.table_id: "; ".join(reasons[:REASONS_SHOWN])} if reasons else {}

        failed = self._of_each_table(of_table, only)
        return Upkeep(published=tuple(published), failed=failed)

    def _of_each_table(self, work: Callable[[Table], Mapping[str, str]], only: OnlyThese) -> Mapping[str, str]:
        """What failed, by table."""
        failed: dict[str, str] = {}
        for table_id in _among(self._services.lake.tables(), only):
            try:
                failed |= work(self._services.lake.table(table_id))
            except Exception as error:  # noqa: BLE001  (of one table: the others are done)
                failed[table_id] = reason_of(error)
        return failed


def _among(table_ids: Sequence[str], only: OnlyThese) -> Sequence[str]:
    return [each for each in table_ids if only is None or each in only]


def _together(one: Upkeep, step: str, other: Upkeep) -> Upkeep:
    return Upkeep(
        steps=(*one.steps, step),
        deleted_files=one.deleted_files + other.deleted_files,
        retired_deltas=one.retired_deltas + other.retired_deltas,
        published=(*one.published, *other.published),
        failed={**one.failed, **other.failed},
    )
