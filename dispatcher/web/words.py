"""Figures in words, each with its unit."""

from __future__ import annotations

from datetime import UTC, datetime

NOTHING = "\N{EN DASH}"
"""For a figure that is not known."""


def iso_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def seconds_words(seconds: float | None) -> str:
    """`0.4 s`, `95 s`, `12 min`, `3.5 h`."""
    if seconds is None:
        return NOTHING
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7_200 else f"{seconds / 3_600:,.1f} h"


def bytes_words(size: int) -> str:
    value, units = float(size), iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while value >= 1000 and unit != "PB":
        value, unit = value / 1000, next(units)
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def usd_words(amount: float | None) -> str:
    return NOTHING if amount is None else f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:,.4f}"
