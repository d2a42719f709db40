"""How every process writes its log: structlog, one line per event, with the ids of the job run and the session.

Lines go to stderr; stdout is for a command's answer. `bound` adds ids to its thread's lines inside the context.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

if TYPE_CHECKING:
    from structlog.typing import Processor

_OURS = "compactor"
_SESSIONS = "compactor.sessions"

LogValue: TypeAlias = str | int | float | None


class ProcessLog:
    """Writes lines with structlog, which is loaded by the first of them: most commands write none."""

    configure: Callable[[], None] | None = None
    """What `configure_logging` has asked for, until structlog is loaded."""

    def __getattr__(self, method: str) -> Callable[..., None]:
        """A method of structlog's loggers: `warning`, `exception`, `log`."""
        import structlog

        configure = ProcessLog.configure  # read once: another thread may write the first line, too
        if configure is not None:
            configure()
            ProcessLog.configure = None
        write: Callable[..., None] = getattr(structlog.get_logger(), method)
        return write


LOG = ProcessLog()
"""The log of this process, for every module."""


class Logged(AbstractContextManager[None, bool]):
    """As `contextlib.suppress`: an error of these kinds ends the context and goes no further. A warning says it, with
    the reason."""

    def __init__(self, event: str, *errors: type[Exception], **details: LogValue) -> None:
        self._event, self._errors, self._details = event, errors, details

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        is_one = isinstance(error, self._errors)
        if is_one:
            LOG.warning(self._event, **self._details, reason=str(error))
        return is_one


def configure_logging(
    *, as_json: bool, level: str = "info", stream: TextIO | None = None, runs_session: bool = False
) -> None:
    """JSON lines for machines, coloured text for a terminal. Called once, by a process's main.

    Args:
        runs_session: the process runs a session, so `log_session_line` writes; in a command that shows progress, only
            at debug"""
    out = stream if stream is not None else sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]

    def configure() -> None:
        import structlog

        # Of a frame's variables none is shown: they may hold a secret, such as a document with a task token.
        without_values = structlog.dev.RichTracebackFormatter(show_locals=False)
        last: list[Processor] = (
            [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
            if as_json
            else [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=without_values)]
        )
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                *last,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(threshold),
            logger_factory=structlog.WriteLoggerFactory(file=out),
            cache_logger_on_first_use=False,
        )

    if "structlog" in sys.modules:
        configure()
    else:
        ProcessLog.configure = configure
    logging.getLogger(_OURS).setLevel(threshold)
    logging.getLogger(_SESSIONS).setLevel(threshold if runs_session or is_verbose() else logging.WARNING)
    logging.basicConfig(stream=out, level=max(threshold, logging.WARNING), format="%(name)s: %(message)s", force=True)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """Py4J logs each call that does not reach Java, with its stack, and also raises it: the engine translates it."""
    return is_verbose() or "py4j" not in Path(record.pathname).parts


def be_verbose() -> None:
    """Makes Spark sessions that start after this log the stack of every failed task."""
    logging.getLogger(_OURS).setLevel(logging.DEBUG)


def is_verbose() -> bool:
    """Whether the logger named `compactor` is at level debug."""
    return logging.getLogger(_OURS).isEnabledFor(logging.DEBUG)


def operator_log(event: str, *, level: int = logging.INFO, **details: LogValue) -> None:
    """A log line about a session's progress, for the operator of this process.

    In a user's program it is written only if the logger `compactor.sessions` has level info.
    """
    if logging.getLogger(_SESSIONS).isEnabledFor(logging.INFO):
        LOG.log(level, event, **details)


def bound(**names: str | int) -> AbstractContextManager[None]:
    """Adds these fields to every line inside the context: `with bound(job_run_id=..., session_id=...):`"""
    from structlog.contextvars import bound_contextvars

    return bound_contextvars(**names)
