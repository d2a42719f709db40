"""How many examples Hypothesis tries where one costs more or less than usual: a share of what its profile says."""

from __future__ import annotations

from hypothesis import settings


def examples(share: float) -> settings:
    """`@examples(0.2)` of the usual 100 are 20; under a profile that looks longer, 20 % of what that one says."""
    return settings(max_examples=max(1, round(settings().max_examples * share)))
