"""The dispatcher as a running service: a thread that receives, a thread that ticks, and one end for both.

stop asked for -> nothing more is received -> running sessions may end, for drain_seconds -> Spark jobs are stopped
               -> claims are released -> the next dispatcher goes on where the logs say
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from dispatcher.foreman import Foreman
from dispatcher.receiver import Receiver

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ServiceSettings:
    """
    drain_seconds  that running sessions get after a stop was asked for
    until_idle     stop as soon as the queue is empty and every job run has ended
    """

    drain_seconds: float = 60.0
    until_idle: bool = False


class Dispatcher:
    """Runs until it is asked to stop, or until its queue turns out to be wrong."""

    def __init__(self, receiver: Receiver, foreman: Foreman, settings: ServiceSettings) -> None:
        self._receiver = receiver
        self._foreman = foreman
        self._settings = settings

    def run(self, stops: threading.Event) -> None:
        """Returns after a drain. Raises what made receiving impossible, after a drain too."""
        _log.info("dispatcher_started")
        with ThreadPoolExecutor(1, thread_name_prefix="receiver") as threads:
            receiving = threads.submit(self._receiver.run, stops)
            try:
                while not stops.is_set() and not receiving.done() and not self._is_done():
                    self._foreman.tick()
                    stops.wait(self._foreman.tick_seconds)
                stops.set()
                self._foreman.drain(self._settings.drain_seconds)
            finally:
                # Also if a tick broke: no thread may outlive this, and no Spark job its watcher.
                stops.set()
                self._foreman.stop()
        receiving.result()
        _log.info("dispatcher_stopped")

    def _is_done(self) -> bool:
        return self._settings.until_idle and self._receiver.found_nothing and self._foreman.is_idle
