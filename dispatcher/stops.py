"""Whether this process was asked to end, from its first instruction on.

The entry of the command (`dispatcher/start.py`) loads this before everything else, so it imports nothing of Lithify.
"""

import signal
import threading


class Stops(threading.Event):
    """Set by SIGTERM and SIGINT. `interrupted`: it was SIGINT, which is Ctrl-C."""

    interrupted = False

    def set_by(self, *signals: signal.Signals) -> None:
        """From now on these signals set it, instead of ending the process."""
        for each in signals:
            signal.signal(each, self._stop)

    def _stop(self, number: int, _: object) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.set()
