from __future__ import annotations

from dataclasses import replace

import pytest

from compactor.engine.in_process import InProcessEngine
from compactor.engine.local import local_resources
from compactor.model.machine import usable_cores, usable_memory_bytes
from compactor.planning.machine_share import (
    GIB,
    MIB,
    TASK_MEMORY_BYTES_MAX,
    guest_share,
    service_memory_bytes,
    session_share,
)
from compactor.planning.sizing import Resources


@pytest.mark.parametrize(
    ("memory_bytes", "cores", "sessions", "tasks", "task_memory_bytes", "driver_memory_bytes"),
    [
        (32 * GIB, 8, 2, 4, (16 * GIB - 16 * GIB // 10) // 4, 16 * GIB // 10),
        (4 * GIB, 2, 1, 2, (4 * GIB - 512 * MIB) // 2, 512 * MIB),
        (512 * GIB, 8, 1, 8, TASK_MEMORY_BYTES_MAX, 512 * GIB // 10),
        (8 * GIB, 1, 4, 1, 2 * GIB - 512 * MIB, 512 * MIB),
    ],
)
def test_a_session_gets_its_share_of_the_machine(
    memory_bytes: int, cores: int, sessions: int, tasks: int, task_memory_bytes: int, driver_memory_bytes: int
) -> None:
    resources, driver = session_share(memory_bytes, cores, sessions)
    assert resources == Resources(task_memory_bytes, tasks)
    assert driver == driver_memory_bytes


def test_a_guest_leaves_half_of_the_machine_to_its_caller_and_a_service_a_quarter_to_the_system() -> None:
    assert guest_share(32 * GIB, cores=4) == Resources(task_memory_bytes=4 * GIB, tasks=4)
    assert guest_share(512 * GIB, cores=2) == Resources(task_memory_bytes=TASK_MEMORY_BYTES_MAX, tasks=2)
    assert service_memory_bytes(32 * GIB) == 24 * GIB


def test_both_engines_of_this_process_ask_for_a_guests_share() -> None:
    one = guest_share(usable_memory_bytes(), cores=1)
    own = InProcessEngine().resources()
    assert own == replace(one, hash_buckets_min=usable_cores(), start_seconds=own.start_seconds, in_process=True)
    here = guest_share(usable_memory_bytes(), usable_cores())
    assert (local_resources().task_memory_bytes, local_resources().tasks) == (here.task_memory_bytes, here.tasks)
