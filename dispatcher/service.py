"""The dispatcher as a running service: a thread that receives, a thread that ticks, and one end for both.

stop asked for -> nothing more is received -> running sessions may end, for drain_seconds -> Spark jobs are stopped
               -> claims are released -> the next dispatcher goes on where the logs say
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import structlog

from dispatcher.foreman import Foreman
from dispatcher.receiver import Receiver

_log = structlog.get_logger(__name__)


class Dispatcher:
    """Runs until it is asked to stop, or until its queue turns out to be wrong."""

    def __init__(self, receiver: Receiver, foreman: Foreman, tick_seconds: float, drain_seconds: float) -> None:
        self._receiver = receiver
        self._foreman = foreman
        self._tick_seconds = tick_seconds
        self._drain_seconds = drain_seconds

    def run(self, stops: threading.Event) -> None:
        """Returns after a drain. Raises what made receiving impossible, after a drain too."""
        _log.info("dispatcher_started")
        with ThreadPoolExecutor(1, thread_name_prefix="receiver") as threads:
            receiving = threads.submit(self._receiver.run, stops)
            try:
                while not stops.is_set() and not receiving.done():
                    self._foreman.tick()
                    stops.wait(self._tick_seconds)
                stops.set()
                self._foreman.drain(self._drain_seconds)
            finally:
                # Also if a tick broke: no thread may outlive this, and no Spark job its watcher.
                stops.set()
                self._foreman.stop()
        receiving.result()
        _log.info("dispatcher_stopped")
