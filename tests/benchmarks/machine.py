"""Describes the machine and the software, as far as they bear on the figures. No names, no paths."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from compactor.model.clock import SystemClock
from compactor.model.machine import usable_cores

_PACKAGES = ("pyspark", "pyarrow", "duckdb", "numpy", "numba")


def describe_machine() -> list[tuple[str, str]]:
    """What a reader needs to judge the figures, as (what, which)."""
    memory_gib = psutil.virtual_memory().total / 2**30
    busy = os.getloadavg()[0]
    return [
        ("processor", f"{_processor()}, {usable_cores()} cores usable"),
        ("memory", f"{memory_gib:.0f} GiB"),
        ("system", f"{_system()}, Linux {platform.release().split('-')[0]}"),
        (
            "software",
            ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in _PACKAGES)]),
        ),
        ("busy before", f"load average {busy:.1f} at the start"),
        ("day", datetime.fromtimestamp(SystemClock().now_ms() / 1_000, UTC).date().isoformat()),
    ]


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


def _system() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
