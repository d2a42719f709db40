"""What a warm worker does while it has no job."""

from __future__ import annotations

import queue

from compactor.worker import next_job


def test_a_job_that_waits_is_taken_at_once_and_an_idle_worker_returns_its_memory_once() -> None:
    jobs: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    idle: list[str] = []

    def when_idle() -> None:
        idle.append("idle")
        jobs.put(["second"])

    jobs.put(["first"])
    assert next_job(jobs, when_idle, 0.0) == ["first"]
    assert not idle
    assert next_job(jobs, when_idle, 0.0) == ["second"]
    assert idle == ["idle"]
