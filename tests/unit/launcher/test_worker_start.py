"""How long a launch in a worker waits for the worker's own start."""

from __future__ import annotations

import pytest

from launcher.clusters.workers import seconds_until_ready


@pytest.mark.parametrize(
    ("idle_seconds", "left_seconds"),
    [
        pytest.param([None], 0.0, id="one is ready"),
        pytest.param([0.5, None], 0.0, id="one is ready, another one starts"),
        pytest.param([0.5, 1.5], 0.5, id="two start"),
        pytest.param([], 2.0, id="none was started, or none is idle"),
        pytest.param([3.0], 0.1, id="it should have been ready"),
    ],
)
def test_a_job_begins_when_the_first_idle_worker_is_ready(
    idle_seconds: list[float | None], left_seconds: float
) -> None:
    assert seconds_until_ready(idle_seconds, start_seconds=2.0) == left_seconds
