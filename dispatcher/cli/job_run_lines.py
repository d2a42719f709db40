"""Job runs as text: one with its sessions; and the changes since the last look."""

from collections.abc import Iterator

from compactor.model.names import counted
from compactor.sessions.session_log import describe_progress
from dispatcher.layout import (
    DIM,
    FAILED,
    HEADING,
    PARTITION,
    STATUS,
    STOPPED,
    SUCCEEDED,
    Column,
    Line,
    count_text,
    partition_text,
    printable,
    seconds_text,
    sentence_lines,
    status_style,
    table_lines,
    time_text,
)
from dispatcher.operations.status import JobRunView, SessionView, ShardsView
from launcher.outcomes import Failed

BAR_CELLS = 20

_SESSION_COLUMNS = (
    PARTITION,
    STATUS,
    Column("seconds", show=seconds_text),
    Column("expected_sla", "expected", seconds_text),
    Column("rows_before", "before", count_text),
    Column("delta_rows", "delta", count_text),
    Column("rows_out", "after", count_text),
)


STOPPED_SHOWN_MAX = 3
"""Sessions that wait for their next attempt: what one of them meets, mostly all do."""


def is_open(view: JobRunView) -> bool:
    return view.status in ("waiting", "running")


def job_run_lines(view: JobRunView, width: int | None, *, only_running: bool = False) -> Iterator[Line]:
    """One job run. `only_running`: only its running sessions, so that it fits a screen."""
    yield (printable(view.job_run_id), HEADING), ("  ", ""), (view.status, status_style(view.status))
    yield from sentence_lines(f"  {_subject(view)}", width)
    yield from _time_lines(view, width)
    sessions = [session for session in view.sessions if session.status == "running" or not only_running]
    if only_running:
        yield from sentence_lines(f"  {_progress_text(view)}", width, DIM)
    if sessions:
        yield ()
        records = [session.model_dump(include={column.key for column in _SESSION_COLUMNS}) for session in sessions]
        yield from table_lines(_SESSION_COLUMNS, records, width)
    running = [session for session in sessions if session.status == "running"]
    stopped = [session for session in view.sessions if session.status == "waiting" and session.reasons]
    if running or stopped or view.reasons:
        yield ()
    for session in running:
        text = f"{partition_text(session.partition)}: {progress(session)}{_rows(session)}{_left(session)}"
        yield from sentence_lines(f"  {_bar(session.share)} {text}", width)
    for session in stopped[:STOPPED_SHOWN_MAX]:
        yield from sentence_lines(f"  {partition_text(session.partition)}: {progress(session)}", width, STOPPED)
    for reason in view.reasons:
        yield from sentence_lines(f"  {reason}", width, FAILED if view.status != "cancelled" else STOPPED)
    for rejection in view.rejections[1 if view.status == "rejected" else 0 :]:
        when, reasons = time_text(rejection.at_ms), "; ".join(rejection.reasons)
        yield from sentence_lines(f"  another document of this id was rejected at {when}: {reasons}", width, STOPPED)


def progress(session: SessionView) -> str:
    if isinstance(session.end, Failed):
        return f"failed: {'; '.join(session.end.reasons)}"
    if session.end is not None:
        done = [session.status.replace("_", " ")]
        if session.delta_rows is not None:
            done.append(f"{counted(session.delta_rows, 'delta row')}, {counted(session.rows_out or 0, 'row')} after")
        if session.seconds is not None:
            done.append(f"{session.seconds:,.1f} s")
        return ", ".join(done)
    attempt = f"attempt {session.attempt}: " if session.attempt > 1 else ""
    if session.status != "running":
        after = f" for its next attempt, since the last one failed: {'; '.join(session.reasons)}"
        return f"{session.status}{after if session.reasons else ''}"
    beat = session.heartbeat
    if beat is None or beat.attempt != session.attempt:
        if session.rounds_done:
            return f"{attempt}{counted(session.rounds_done, 'round')} done"
        return f"{attempt}is starting"
    return f"{attempt}{describe_progress(beat)}"


class Changes:
    """Changes since the last look, a sentence each."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def of(self, view: JobRunView) -> Iterator[str]:
        yield from self._if_new("", self._job_run(view))
        for session in view.sessions:
            yield from self._if_new(session.session_id, f"{partition_text(session.partition)}: {progress(session)}")

    @staticmethod
    def _job_run(view: JobRunView) -> str:
        owner = f" by {view.owner}" if view.owner is not None and view.status == "running" else ""
        paused = f", paused ({view.paused})" if view.paused is not None and is_open(view) else ""
        waits = f", waits for {view.waits_for}" if view.waits_for is not None and is_open(view) else ""
        cancelled = ", to be cancelled" if view.cancel_requested and is_open(view) else ""
        return f"{view.status}{owner}{cancelled}{paused}{waits}"

    def _if_new(self, key: str, sentence: str) -> Iterator[str]:
        if self._shown.get(key) != sentence:
            self._shown[key] = sentence
            yield sentence


def _subject(view: JobRunView) -> str:
    text = view.table or "no table"
    if view.destination is not None and view.destination != view.table:
        text += f" -> {view.destination}"
    if view.predecessor is not None:
        text += f", once more after {view.predecessor}"
    if view.owner is not None:
        text += f", run by {view.owner}"
    if view.cancel_requested and is_open(view):
        text += ", to be cancelled"
    if view.paused is not None and is_open(view):
        text += f", paused ({view.paused})"
    if view.waits_for is not None and is_open(view):
        text += f", waits for {view.waits_for}"
    if view.shards is not None:
        text += f", {_shards_text(view.shards)}"
    if view.waiters:
        text += f", {'waited for' if is_open(view) else 'asked for'} by {counted(view.waiters, 'workflow')}"
    return text


def _time_lines(view: JobRunView, width: int | None) -> Iterator[Line]:
    accepted = time_text(view.accepted_at_ms)
    if view.status == "rejected":
        message = f", message {view.message_id}" if view.message_id != view.job_run_id else ""
        yield from sentence_lines(f"  rejected at {accepted} UTC{message}", width)
        return
    facts = [f"accepted at {accepted} UTC, {view.seconds:,.1f} s {'ago' if is_open(view) else 'from there to its end'}"]
    if view.paused_seconds:
        facts.append(f"{view.paused_seconds:,.1f} s of them in a pause")
    if view.expected_sla is not None:
        facts.append(f"{view.expected_sla:,.1f} s expected from there")
    if view.desired_sla is not None:
        facts.append(f"{view.desired_sla:,} s desired")
    if view.expected_usd is not None:
        used = f"${view.usd:,.4f} used so far, " if view.usd is not None and is_open(view) else ""
        used = f"${view.usd:,.4f} used, " if view.usd is not None and not is_open(view) else used
        facts.append(f"{used}${view.expected_usd:,.4f} expected")
    verdict, style = _against_desired(view)
    yield from sentence_lines(f"  {', '.join(facts)}{f': {verdict}' if verdict else ''}", width, style)


def _against_desired(view: JobRunView) -> tuple[str, str]:
    """The job run's time compared with the desired SLA, and its style."""
    late = view.seconds_late(view.seconds)
    if late is None:
        return "", ""
    if late > 0:
        return f"{late:,.1f} s late", FAILED
    if not is_open(view):
        return ("in time", SUCCEEDED) if view.status == "succeeded" else ("", "")
    will_be_late = view.seconds_late(view.expected_sla) if view.expected_sla is not None else None
    if will_be_late is not None and will_be_late > 0:
        return f"it will be about {will_be_late:,.1f} s late", STOPPED
    return "", ""


def _shards_text(shards: ShardsView) -> str:
    by = f" by {counted(len(shards.owners), 'dispatcher')}" if shards.owners else ""
    done = counted(shards.sessions_done, "session")
    return f"{shards.ended} of {counted(shards.count, 'shard')} done{by}, with {done}"


def _progress_text(view: JobRunView) -> str:
    over = sum(session.end is not None for session in view.sessions)
    running = sum(session.status == "running" for session in view.sessions)
    left = ""
    if view.eta_seconds is not None:
        seconds = f"{abs(view.eta_seconds):,.0f} s"
        left = f", {seconds} longer than expected" if view.eta_seconds < 0 else f", about {seconds} left"
    if view.shards is not None:
        return f"{_shards_text(view.shards)}, {running} running{left}"
    found = " found so far" if view.finds_sessions else ""
    return f"{over} of {counted(len(view.sessions), 'session')}{found} done, {running} running{left}"


def _left(session: SessionView) -> str:
    if session.eta_seconds is None:
        return ""
    if session.eta_seconds < 0:
        return f"; {-session.eta_seconds:,.0f} s longer than expected"
    band = session.eta_band_seconds
    between = f" ({band[0]:,.0f} to {band[1]:,.0f} s)" if band is not None else ""
    return f"; about {session.eta_seconds:,.0f} s left{between}"


def _bar(share: float | None) -> str:
    """`[######--------------]  30 %`; empty before the first heartbeat."""
    done = round((share or 0.0) * BAR_CELLS)
    return f"[{'#' * done}{'-' * (BAR_CELLS - done)}] {share or 0.0:>4.0%}"


def _rows(session: SessionView) -> str:
    beat = session.heartbeat
    if beat is None or beat.attempt != session.attempt or not beat.rows:
        return ""
    return f", {beat.rows_done:,} of {counted(beat.rows, 'delta row')}"
