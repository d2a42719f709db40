"""What of a machine is used, and how the JVM of a session on it is started."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from compactor.engine.settings import MIB, driver_settings
from compactor.model.machine import usable_cores, usable_memory_bytes

GIB = 1024 * MIB


def test_a_machine_without_limits_lends_all_of_its_memory(tmp_path: Path) -> None:
    assert usable_memory_bytes(tmp_path) >= psutil.virtual_memory().total
    assert 1 <= usable_cores() <= psutil.cpu_count()


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_lends_what_it_is_limited_to(tmp_path: Path, name: str) -> None:
    limit = tmp_path / name
    limit.parent.mkdir(exist_ok=True)
    limit.write_text(f"{64 * MIB}\n")
    assert usable_memory_bytes(tmp_path) == 64 * MIB


@pytest.mark.parametrize("limit", ["max\n", f"{2**63 - 4096}\n", ""])
def test_a_container_without_a_limit_lends_what_the_machine_has(tmp_path: Path, limit: str) -> None:
    (tmp_path / "memory.max").write_text(limit)
    assert usable_memory_bytes(tmp_path) == usable_memory_bytes(tmp_path / "none")


def test_half_of_a_heap_is_for_what_is_new() -> None:
    settings = driver_settings(3 * GIB, "-Dlithify=1")
    assert settings["spark.driver.memory"] == "3072m"
    assert settings["spark.driver.extraJavaOptions"].split()[-2:] == ["-Xmn1536m", "-Dlithify=1"]
