"""The keys of a dispatcher's state, beside those of sessions."""

import re
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Self

from compactor.model.errors import Invalid
from compactor.storage.keys import Key, Spelling, join_name, quote_text, spelled, split_name, unquote_text


def _parse_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise Invalid(f"{text!r} is not a day") from error


Day = Annotated[str, Spelling[str]("[0-9]{4}-[0-9]{2}-[0-9]{2}", str, _parse_day)]
"""A day in UTC, as YYYY-MM-DD."""


class JobRunLogFolder(Key, template="job_runs/{job_run_id}/log"):
    job_run_id: str


class JobRunObject(Key, template="job_runs/{job_run_id}/{name}"):
    """An object beside a job run's log: how far its events are published, and what workflows got the URI of."""

    job_run_id: str
    name: Annotated[str, spelled(r"published\.json|result\.json")]

    @classmethod
    def published(cls, job_run_id: str) -> Self:
        return cls(job_run_id, "published.json")

    @classmethod
    def result(cls, job_run_id: str) -> Self:
        return cls(job_run_id, "result.json")


OPEN_JOB_RUNS = "open_job_runs_by_owner/"
"""The key prefix of all markers of open job runs: one listing finds them all."""

NO_OWNER, ANY_STREAM = "_", "_"
"""What markers have in place of an owner and of streams. An owner of that name is written with a percent sign."""

MARKED_STREAMS_MAX = 8
"""Streams that a marker names. The marker of a job run with more of them stands for any stream of the table."""

_MARKER = re.compile(f"{OPEN_JOB_RUNS}(.*[^/~])")
_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True)
class MarkedJobRun:
    """Marks a job run that has not ended, or whose events are not all published: an empty object. Its key has all that
    a dispatcher needs to rank it, or to leave it to its owner, and to see which others must wait for it:
    `open_job_runs_by_owner/<job run id>,<priority>,<time>[,<epoch>,<owner>[,<table>,<streams>]]`.

    Attributes:
        marked_at_ms: when it was accepted, by the accepting dispatcher's clock
        owner, epoch: of its claim; no owner: it is not claimed, never (0) or not since the claim of this epoch, and a
            dispatcher that stood still and removes an earlier marker does not remove this one
        table: the digest of its destination; None: the marker does not say
        streams: the digests of its destination streams; None: any of its table"""

    job_run_id: str
    priority: int
    marked_at_ms: int
    owner: str | None = None
    epoch: int = 0
    table: str | None = None
    streams: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        parts = [quote_text(self.job_run_id), str(self.priority), str(self.marked_at_ms)]
        if self.owner is not None or self.table is not None:
            parts += [str(self.epoch), NO_OWNER if self.owner is None else _quote_owner(self.owner)]
        if self.table is not None:
            parts += [self.table, ANY_STREAM if self.streams is None else "-".join(self.streams)]
        return f"{OPEN_JOB_RUNS}{split_name(','.join(parts))}"

    @classmethod
    def parse(cls, key: str) -> Self:
        """Raises `Invalid` for a key that no marker has."""
        match = _MARKER.fullmatch(key)
        parts = [] if match is None else join_name(match[1]).split(",")
        if len(parts) not in (3, 5, 7) or not all(_INTEGER.fullmatch(number) for number in parts[1:4]):
            raise Invalid(f"{key!r} is no marker of a job run")
        owner, epoch = (
            (None if parts[4] == NO_OWNER else unquote_text(parts[4]), int(parts[3])) if len(parts) > 3 else (None, 0)
        )
        table, streams = (parts[5], parts[6]) if len(parts) > 5 else (None, ANY_STREAM)
        named = None if streams == ANY_STREAM else tuple(filter(None, streams.split("-")))
        mark = cls(unquote_text(parts[0]), int(parts[1]), int(parts[2]), owner, epoch, table, named)
        if mark.key != key:
            raise Invalid(f"{key!r} is no marker of a job run")
        return mark


def _quote_owner(owner: str) -> str:
    return "%5F" if owner == NO_OWNER else quote_text(owner)


class LiveDispatcher(Key, template="live_dispatchers/{owner}"):
    """The sign of life that a dispatcher overwrites repeatedly while it runs."""

    owner: str


class LiveIngest(Key, template="live_ingests/{owner}"):
    """Likewise of an ingest: nothing is claimed by it, so nobody takes over."""

    owner: str


class ReleaseOfState(Key, template="releases/{version}"):
    """Marks a release of Lithify whose dispatchers have worked on this state: an empty object."""

    version: str


class ClusterStartsObject(Key, template="cluster_starts/{place}"):
    """How long the last launches took to start at a place, and how far their sessions were off their predictions."""

    place: str


class RejectedDocument(Key, template="rejected_documents/{job_run_id}/{message_id}"):
    """Marks a rejected message that named a job run: an empty object. The log of the message id has the reasons."""

    job_run_id: str
    message_id: str


class TaskToken(Key, template="task_tokens/{job_run_id}/{message_id}"):
    """The task token that a message brought for a job run: a secret, so no log and no plan repeats it."""

    job_run_id: str
    message_id: str


SECRET_PREFIXES = (TaskToken.prefix(),)
"""The prefixes of objects that only dispatchers may read."""


class AnsweredWaiter(Key, template="answered_waiters/{job_run_id}/{message_id}"):
    """The workflow whose task token came with this message is answered. The object has the answer, not the token."""

    job_run_id: str
    message_id: str


class HistoryDayLog(Key, template="history/days/{day}/log"):
    """The log of the job runs that ended on a day."""

    day: Day


class HistoryFile(Key, template="history/job_runs/day={day}/job_runs.parquet"):
    """All job runs of a closed day, in one table. SQL engines read the column `day` from the folder's name."""

    day: Day


class LagMinutesOfDay(Key, template="history/lag_minutes/{day}"):
    """The folder of a day's samples of lag, until the day has a file."""

    day: Day


class LagMinute(Key, template="history/lag_minutes/{day}/{minute}/{lake}.parquet"):
    """The lag of a lake's tables at a minute of a day. `minute`: as HHMM, in UTC. `lake`: its URI."""

    day: Day
    minute: Annotated[str, spelled("[0-2][0-9][0-5][0-9]")]
    lake: str


class LagDay(Key, template="history/lag/{day}.parquet"):
    """The lag of all tables at each minute of a day that is over."""

    day: Day


class CleanedDay(Key, template="history/cleaned/{day}"):
    """Plans, heartbeats and cursors of this day's job runs are deleted."""

    day: Day


class StartedDispatcher(Key, template="started_dispatchers/{owner}"):
    """Written and deleted again when a dispatcher starts, to check that it may write here."""

    owner: str


class UnpublishedJobRun(Key, template="untold_job_runs/{job_run_id}"):
    """Marks a job run that has ended with events that its topic refuses: an empty object."""

    job_run_id: str


class TurnsLog(Key, template="turns/log"):
    """The folder of the log of turns, of which a state has one."""


class PausedObject(Key, template="paused/{scope}[/{name}]"):
    """A pause: no new session of a table, of a job run, or of anything (`name` None) is started."""

    scope: Annotated[str, spelled("everything$|(?:tables|job_runs)(?=/)")]
    name: str | None = None
