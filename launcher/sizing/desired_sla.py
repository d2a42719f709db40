"""The desired SLA of a job run when one of its sessions is planned: it counts from the acceptance of the instruction,
so what was waited and tried since is no longer there for the cluster. Pure."""

import math
from dataclasses import dataclass
from typing import Self

from compactor.planning.spec import SessionSpec

GONE_STEP = 1.05
"""Ratio of two steps of `gone_seconds`. A session that waits is planned again every half a minute: its plan must stay
the same until it matters, because each new plan takes a number."""


@dataclass(frozen=True)
class DesiredSla:
    """
    Attributes:
        seconds: asked for, from the acceptance
        gone_seconds: of them until this plan, without pauses: waited, or taken by earlier attempts"""

    seconds: float
    gone_seconds: float = 0.0

    @classmethod
    def of(cls, spec: SessionSpec, since_seconds: float) -> Self | None:
        """With the seconds since the acceptance, rounded up by at most a twentieth and a second; None: none is desired.

        Worked: 300 s are desired, 100 s ago: 104 s count as gone, 196 are left.
        """
        seconds = spec.job_run.desired_sla
        if seconds is None:
            return None
        steps = math.ceil(math.log(max(since_seconds, 1.0), GONE_STEP))
        return cls(seconds, min(math.ceil(GONE_STEP**steps), seconds) if since_seconds >= 1 else 0.0)

    @property
    def left_seconds(self) -> float:
        """0: all of them are gone, and no cluster can be in time."""
        return max(self.seconds - self.gone_seconds, 0.0)

    def __str__(self) -> str:
        desired = f"the desired {self.seconds:,.0f} s"
        return f"the {self.left_seconds:,.0f} s that are left of {desired}" if self.gone_seconds else desired
