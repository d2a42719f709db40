"""`lithify dispatch` as a process, with other durations than a service has.

    python -m tests.paced_dispatcher PACE dispatch [OPTION ...]

No operator sets these durations, so they are no options. Tests give them where `lithify` itself takes its defaults.
"""

from __future__ import annotations

import sys

from dispatcher.assembly import DispatcherSettings
from dispatcher.intake.intake import IntakeSettings
from dispatcher.intake.receiver import ReceiverSettings
from dispatcher.running.job_run_controller import JobRunControllerSettings
from dispatcher.service import ServiceSettings
from dispatcher.start import main
from launcher.poller import PollerSettings
from launcher.retrying import RetryPolicy
from launcher.session_launcher import SessionLauncherSettings
from launcher.verdict import WatchTimers

PACES = {
    "quick": DispatcherSettings(
        controller=JobRunControllerSettings(tick_seconds=0.05, look_seconds=0.3, sweep_seconds=0.2),
        receiver=ReceiverSettings(wait_seconds=0, idle_seconds=0.05),
        launcher=SessionLauncherSettings(
            poller=PollerSettings(poll_seconds=0.05, look_seconds=0.1), retry=RetryPolicy(retry_seconds=0.1)
        ),
        service=ServiceSettings(metrics_seconds=1.0),
    ),
    "chaos": DispatcherSettings(
        intake=IntakeSettings(judging_seconds=15, put_back_seconds=2, put_back_seconds_max=8),
        controller=JobRunControllerSettings(
            tick_seconds=0.2, sweep_seconds=1.0, heartbeat_event_seconds=5.0, requeue_seconds=2.0
        ),
        receiver=ReceiverSettings(wait_seconds=1, idle_seconds=0.2),
        launcher=SessionLauncherSettings(
            timers=WatchTimers(start_seconds=60.0), retry=RetryPolicy(retry_seconds=1.0, retry_seconds_max=5.0)
        ),
    ),
    "benchmark": DispatcherSettings(
        controller=JobRunControllerSettings(tick_seconds=0.1),
        receiver=ReceiverSettings(wait_seconds=1, idle_seconds=0.1),
        launcher=SessionLauncherSettings(poller=PollerSettings(poll_seconds=0.1)),
    ),
}

if __name__ == "__main__":
    main(PACES[sys.argv.pop(1)])
