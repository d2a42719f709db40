"""Periodic upkeep of the history, in a thread. Each step is idempotent; several dispatchers may do it at a time.

close  days that are over get their file, also the days of dispatchers that are gone, and of samples of lag
clean  plans, heartbeats and cursors of job runs of old days are deleted; logs stay
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from compactor.log_context import LOG
from compactor.model.background import BackgroundLoop
from compactor.model.clock import Clock
from compactor.model.errors import Corrupt, LithifyError, Unavailable
from compactor.model.names import counted
from compactor.sessions.keys import BundleObject, JobRunFolder, SessionObject
from compactor.storage.concurrently import run_many
from compactor.storage.keys import parse_any
from dispatcher.records.history import day_of
from dispatcher.records.job_run_store import JobRunStore
from dispatcher.records.keys import JobRunObject
from dispatcher.records.lag_samples import close_lag_days
from dispatcher.records.work_id import shard_folders

CLOSE_AFTER_SECONDS = 3_600.0
"""Time from the end of a day until it is closed: mostly longer than clocks differ and events are late."""

ROUND_SECONDS = 3_600.0
"""Interval between two rounds."""


KEEP_PLANS_DAYS = 30.0
"""Days for which plans, heartbeats and cursors of ended job runs are kept: longer than anybody asks why a job run took
what it took. Logs are never deleted."""


class HistoryUpkeep:
    """For one thread at a time."""

    def __init__(self, records: JobRunStore, clock: Clock, keep_plans_days: float = KEEP_PLANS_DAYS) -> None:
        self._records = records
        self._history = records.history
        self._keep_plans_days = keep_plans_days
        self._clock = clock
        self._lag_closed_before: str | None = None

    def loop(self, ends: threading.Event) -> BackgroundLoop:
        """A round now, and after each interval; none raises."""
        work = partial(self._round_or_log, ends)
        return BackgroundLoop("history-upkeep", work, ROUND_SECONDS, at_once=True, ends=ends)

    def _round_or_log(self, ends: threading.Event) -> None:
        try:
            self.round(ends)
        except Exception as error:  # noqa: BLE001  (job runs do not depend on it)
            LOG.error("history_not_kept_up", exc_info=error)

    def round(self, stops: threading.Event | None = None) -> None:
        """A step, or a day, that fails keeps none of the others from being done."""
        with _reported("days_not_closed"):
            self.close_days()
        with _reported("lag_days_not_closed"):
            self._close_lag_days()
        with _reported("days_not_cleaned"):
            for day in self.days_to_clean():
                if stops is not None and stops.is_set():
                    return
                with _reported("day_not_cleaned", day=day):
                    self.clean(day)

    # -- close

    def close_days(self) -> list[str]:
        """Closes the days that are over and have no file; returns them."""
        last = self._last_open_day()
        closed = frozenset(self._history.closed_days())
        due = [day for day in self._history.days() if day < last and day not in closed]
        for day in due:
            with _reported("day_not_closed", day=day):
                self._history.close(day)
        return due

    def _close_lag_days(self) -> None:
        """Looks for them once a day: no sample of a day comes after the day is over."""
        last = self._last_open_day()
        if last != self._lag_closed_before:
            close_lag_days(self._records.store, last)
            self._lag_closed_before = last

    def _last_open_day(self) -> str:
        return day_of(self._clock.now_ms() - round(CLOSE_AFTER_SECONDS * 1000))

    # -- clean

    def days_to_clean(self) -> list[str]:
        """Closed days that are older than what is kept, and are not cleaned."""
        last = day_of(self._clock.now_ms() - round(self._keep_plans_days * 86_400_000))
        due = [day for day in self._history.closed_days() if day < last]
        return sorted(set(due) - set(self._history.cleaned_days())) if due else []

    def clean(self, day: str) -> None:
        """Deletes what the day's job runs left beside their logs. Job runs with pending events keep all of theirs.
        Raises `Unavailable` if some could not be deleted."""
        kept = {*self._records.open_job_run_ids(), *self._records.unpublished_job_run_ids()}
        job_run_ids = [each.job_run_id for each in self._history.job_runs_of(day)]
        found = run_many(
            self._records.store.location, self._keys_of, [each for each in job_run_ids if each not in kept]
        )
        keys = [key for keys in found for key in keys]
        failed = self._records.store.delete_many(keys)
        if failed:  # the day is cleaned again later
            raise Unavailable(f"{len(failed)} of {counted(len(keys), 'object')}: {next(iter(failed.values()))}")
        spared = tuple(each for each in job_run_ids if each in kept)
        self._history.mark_cleaned(day, spared)
        LOG.info("day_cleaned", day=day, objects=len(keys), kept=len(spared))

    def _keys_of(self, job_run_id: str) -> list[str]:
        folders = (f"{JobRunFolder(job_run_id).key}/", shard_folders(job_run_id))
        keys = (entry.key for folder in folders for entry in self._records.store.list(folder))
        return [key for key in keys if _is_leftover(key)]


@contextmanager
def _reported(event: str, day: str | None = None) -> Iterator[None]:
    """Logs an error of a step, which the next round repeats."""
    try:
        yield
    except Corrupt as error:
        LOG.error(event, day=day, reason=str(error))
    except LithifyError as error:
        LOG.warning(event, day=day, reason=str(error))


def _is_leftover(key: str) -> bool:
    """Whether a key below the folder of a job run or of a shard is a plan, a heartbeat or a cursor."""
    match parse_any(key, (SessionObject, BundleObject, JobRunObject)):
        case None:
            return False  # not a key that Lithify writes
        case JobRunObject(name=name):
            return name == "published.json"
        case _:
            return True
