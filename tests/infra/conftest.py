"""Templates of stages, synthesised once. These tests run in .venv-infra, by `make test-infra`."""

from __future__ import annotations

import pytest

from tests.infra.templates import GIVEN, synthesised
from tests.roles.policies import Template


@pytest.fixture(scope="session", params=sorted(GIVEN))
def template(request: pytest.FixtureRequest) -> Template:
    """Of each example: what holds for one holds for all."""
    return synthesised(request.param)


@pytest.fixture(scope="session")
def dev() -> Template:
    return synthesised("dev")
