"""The lake of tests/unit, whose time passes when it is told to."""

from __future__ import annotations

from tests.unit.conftest import clock, lake

__all__ = ["clock", "lake"]
