"""What somebody who opens the page at night must see first: one sentence for each trouble, and what to do. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from compactor.model.names import counted
from dispatcher.layout import age_text
from dispatcher.operations.status import UNREADABLE, JobRunView
from dispatcher.records.job_run_log import JobRunStatus
from dispatcher.web.readings import Now
from dispatcher.web.shared import Commands

KEEPER_SILENT_SECONDS = 600
"""Silence after which a keeper is a trouble: it looks once a minute."""

LATELY_SECONDS = 86_400
"""Time for which a failed job run, and a rejected document, are a trouble."""


@dataclass(frozen=True)
class PageTrouble:
    """
    Attributes:
        what: a sentence, with ids as they are: not printable
        since_ms: None: not known
        command: to copy; None: there is none
        link: a page with more of it"""

    what: str
    since_ms: int | None = None
    command: str | None = None
    link: str | None = None


def troubles_of(now: Now, commands: Commands, now_ms: int) -> list[PageTrouble]:
    """Those that stop everything first."""
    return [
        *_of_dispatchers(now, commands, now_ms),
        *(
            PageTrouble(f"Paused: {each.scope} ({each.reason}).", each.at_ms or None, commands.resume(each))
            for each in now.pauses
        ),
        *_of_keepers(now, commands, now_ms),
        *_of_ingests(now, now_ms),
        *_of_dead_letters(now, commands, now_ms),
        *_of_job_runs(now, commands, now_ms),
    ]


def _of_dispatchers(now: Now, commands: Commands, now_ms: int) -> Iterator[PageTrouble]:
    silent = [each for each in now.dispatchers if each.is_silent(now_ms)]
    if len(silent) == len(now.dispatchers):
        messages = None if now.queue is None else now.queue.messages
        waiting = "instructions wait in the queue" if not messages else f"{counted(messages, 'message')} in the queue"
        waiting = "the queue is empty, and what is sent will wait" if messages == 0 else waiting
        what = f"No dispatcher runs on this state: {waiting}."
        yield PageTrouble(what, command=commands.dispatch())
    for each in silent:
        held = sum(view.owner == each.owner for view in now.open_job_runs)
        rest = f", and {counted(held, 'open job run')} of it wait for another to take over" if held else ""
        age = age_text((now_ms - each.at_ms) / 1000)
        yield PageTrouble(f"Dispatcher {each.owner} has been silent for {age}{rest}.", each.at_ms)
    for each in now.dispatchers:
        if each.sign is None:
            yield PageTrouble(
                f"The sign of life of dispatcher {each.owner} cannot be read by this release.", each.at_ms
            )
        elif each.sign.workers == 0 and not each.is_silent(now_ms):
            what = f"No worker of dispatcher {each.owner} runs: its small sessions have to start a Spark job."
            yield PageTrouble(what, each.at_ms)


def _of_keepers(now: Now, commands: Commands, now_ms: int) -> Iterator[PageTrouble]:
    for lake, at_ms in sorted(now.keepers.items()):
        if now_ms - at_ms > KEEPER_SILENT_SECONDS * 1000:
            age = age_text((now_ms - at_ms) / 1000)
            what = f"No keeper has looked at the tables of {lake} for {age}: what is due is not compacted."
            yield PageTrouble(what, at_ms, commands.keeper())
        if now.unsent.get(lake):
            waiting = counted(now.unsent[lake], "decision")
            what = f"The queue takes nothing from the keeper of {lake}: {waiting} not sent, and nothing is compacted."
            yield PageTrouble(what, None, commands.keeper_log())


def _of_ingests(now: Now, now_ms: int) -> Iterator[PageTrouble]:
    for each in now.ingests:
        if each.is_silent(now_ms):
            age = age_text((now_ms - each.at_ms) / 1000)
            what = f"Ingest {each.owner} has been silent for {age}: unless another runs, announced files wait."
            yield PageTrouble(what, each.at_ms)


def _of_dead_letters(now: Now, commands: Commands, now_ms: int) -> Iterator[PageTrouble]:
    if now.queue is not None and now.queue.failure is not None:
        yield PageTrouble(f"The queue cannot be asked: {now.queue.failure}")
    if now.queue is not None and now.queue.dead_letters:
        count = counted(now.queue.dead_letters, "message")
        yield PageTrouble(f"The dead-letter queue has {count}.", None, commands.redrive(), "/dead-letters")
    rejected = [view for view in _lately(now, now_ms) if view.status == JobRunStatus.REJECTED]
    if rejected:
        verb = "was" if len(rejected) == 1 else "were"
        what = f"{counted(len(rejected), 'document')} {verb} rejected within a day."
        yield PageTrouble(what, rejected[0].accepted_at_ms, link="/dead-letters")


def _of_job_runs(now: Now, commands: Commands, now_ms: int) -> Iterator[PageTrouble]:
    retried = {view.predecessor for view in now.job_runs}
    for view in _lately(now, now_ms):
        if view.status == JobRunStatus.FAILED and view.job_run_id not in retried:
            reasons = " ".join(view.reasons)
            link = f"/job-runs/{quote(view.job_run_id, safe='')}"
            what = f"Job run {view.job_run_id} failed: {reasons}"
            yield PageTrouble(what, view.accepted_at_ms, commands.retry(view.job_run_id), link)
    for view in now.job_runs:
        if view.status == UNREADABLE:
            yield PageTrouble(f"{view.job_run_id} cannot be read: {' '.join(view.reasons)}")


def _lately(now: Now, now_ms: int) -> list[JobRunView]:
    return [view for view in now.ended_job_runs if now_ms - view.accepted_at_ms < LATELY_SECONDS * 1000]
