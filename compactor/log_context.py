"""How every process writes its log: structlog, one line an event, with what is being worked on bound to it.

Lines go to stderr; stdout belongs to a command's answer. `bound` names the job run and the session for every line
written inside it, in its own thread.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager
from typing import TextIO

import structlog


def configure_logging(*, as_json: bool, level: str = "info", stream: TextIO | None = None) -> None:
    """JSON lines for machines, coloured text for a terminal. Called once, by a process's main."""
    out = stream if stream is not None else sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    last: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=out.isatty())]
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
    logging.basicConfig(stream=out, level=max(threshold, logging.WARNING), format="%(name)s: %(message)s", force=True)


def bound(**names: str | int) -> AbstractContextManager[None]:
    """Lines written inside carry these names: `with bound(job_run_id=..., session_id=...):`"""
    return structlog.contextvars.bound_contextvars(**names)
