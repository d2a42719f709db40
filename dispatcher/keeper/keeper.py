"""The keeper: looks at all tables of a lake, again and again. Several keepers may run.

Each table stands for itself: one that cannot be read is set aside with its reason, and the others go on.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial

from compactor.log_context import LOG
from compactor.model.background import BackgroundLoop
from compactor.model.errors import LithifyError, reason_of
from compactor.model.names import counted
from compactor.storage.concurrently import run_concurrently
from dispatcher.keeper.table_keeper import KeeperServices, KeeperSettings, TableKeeper, TableLook, TableOutlook
from dispatcher.operations.lag_board import LagBoard


@dataclass(frozen=True)
class KeeperLook:
    """What one look at all tables has done.

    Attributes:
        decided, sent, ended: instructions
        open: job runs of the keeper that have not ended
        waiting: of these, decisions that are not sent
        set_aside: tables that could not be kept, with the reason
        queue_away: why the queue did not take one; None: it took all that were to be sent
        events_wait: why events are not published; None: all are"""

    tables: int = 0
    decided: int = 0
    sent: int = 0
    ended: int = 0
    open: int = 0
    waiting: int = 0
    set_aside: Mapping[str, str] = field(default_factory=dict)
    queue_away: str | None = None
    events_wait: str | None = None


class Keeper:
    """For one thread."""

    def __init__(self, services: KeeperServices, settings: KeeperSettings) -> None:
        self._services = services
        self._settings = settings
        self._tables: dict[str, TableKeeper] = {}
        self.board = LagBoard(services.records.store, services.lake.location.root_uri, services.clock)

    def look(self) -> KeeperLook:
        """Looks at every table once. Raises the errors of the lake's listing."""
        services = self._services
        try:
            listed = services.lake.tables()
        except LithifyError as error:
            self.board.could_not_look({"the lake": str(error)})
            raise
        known = {each: self._tables.get(each) or TableKeeper(services, each, self._settings) for each in listed}
        self._tables, pauses = known, cache(services.records.pauses.all)
        looks: dict[str, TableLook] = {}
        set_aside: dict[str, str] = {}
        unpublished: list[str] = []

        def look_at(table_id: str) -> None:
            table = known[table_id]
            try:
                looks[table_id] = table.look(pauses)
            except Exception as error:  # noqa: BLE001  (of one table: the others are looked at)
                set_aside[table_id] = reason = reason_of(error)
                LOG.error("table_set_aside", table=table_id, reason=reason)
                _or_log("not_noted", table_id, partial(table.set_aside, reason))
            unpublished.extend(_or_log("decisions_not_published", table_id, table.publish))

        run_concurrently(services.lake.location, look_at, sorted(known))
        look = replace(_sum(looks, set_aside), events_wait=next(iter(unpublished), None))
        waiting = f"{counted(look.waiting, 'decision')} not sent"
        away = {} if look.queue_away is None else {"the queue": f"{waiting}: {look.queue_away}"}
        away |= {} if look.events_wait is None else {"events": look.events_wait}
        self.board.looked([each.lag for each in looks.values() if each.lag is not None], {**set_aside, **away})
        _or_log("lag_not_sampled", None, self.board.write_sample)
        return look

    def outlook(self, table_ids: Sequence[str] = ()) -> list[TableOutlook]:
        """What a look would decide now, for these tables; none named: for all. Writes nothing."""
        pauses = self._services.records.pauses.all()

        def of_table(table_id: str) -> TableOutlook:
            try:
                return TableKeeper(self._services, table_id, self._settings).outlook(pauses)
            except LithifyError as error:
                return TableOutlook(table_id, None, why_not=str(error))

        lake = self._services.lake
        return run_concurrently(lake.location, of_table, list(table_ids) or lake.tables())

    def loop(self, ends: threading.Event) -> BackgroundLoop:
        """A look now, and after each interval; an error is logged, and the next look tries again."""
        return BackgroundLoop("keeper", self._look_or_log, self._settings.look_seconds, at_once=True, ends=ends)

    def _look_or_log(self) -> None:
        try:
            look = self.look()
        except Exception as error:  # noqa: BLE001  (the next look tries again)
            LOG.error("keeper_cannot_look", reason=reason_of(error))
        else:
            if look.decided or look.sent or look.ended or look.set_aside or look.queue_away or look.events_wait:
                LOG.info("keeper_looked", **{each.name: getattr(look, each.name) for each in fields(look)})


def _or_log(event: str, table_id: str | None, work: Callable[[], None]) -> Sequence[str]:
    """Why it could not be done."""
    try:
        work()
    except LithifyError as error:
        LOG.warning(event, table=table_id, reason=str(error))
        return [str(error)]
    return []


def _sum(looks: Mapping[str, TableLook], set_aside: Mapping[str, str]) -> KeeperLook:
    found = looks.values()
    return KeeperLook(
        tables=len(looks) + len(set_aside),
        decided=sum(each.decided for each in found),
        sent=sum(each.sent for each in found),
        ended=sum(each.ended for each in found),
        open=sum(each.open for each in found),
        waiting=sum(each.waiting for each in found),
        set_aside=set_aside,
        queue_away=next((each.queue_away for each in found if each.queue_away is not None), None),
    )
