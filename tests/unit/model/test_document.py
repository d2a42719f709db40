"""A document that Lithify wrote and cannot read: of a newer release, or damaged."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from compactor.model.counts import StepFigures
from compactor.model.document import Document
from compactor.model.errors import Corrupt, LithifyError, Outdated
from compactor.model.files import ColumnStats
from compactor.planning.spec import SessionPlan
from compactor.sessions.session_log import Heartbeat

PLAN = Path(__file__).parents[2] / "golden" / "documents" / "SessionPlan.json"
Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda plan: plan.update(more=1), Outdated),
        (lambda plan: plan["spec"].update(more=1), Outdated),
        (lambda plan: plan["spec"]["job_run"].update(compacted_file_content_type="vortex"), Outdated),
        (lambda plan: plan.pop("spec"), Corrupt),
        (lambda plan: plan.update(hash_bucket_count="many", more=1), Corrupt),
    ],
    ids=["a field", "a field within", "a word", "a field that lacks", "a wrong type"],
)
def test_plans_of_a_newer_release_and_damaged_plans_are_distinguished(change: Change, kind: type[LithifyError]) -> None:
    plan = json.loads(PLAN.read_text())
    SessionPlan.parse_durable(json.dumps(plan).encode(), "plan.json")
    change(plan)
    with pytest.raises(LithifyError) as refused:
        SessionPlan.parse_durable(json.dumps(plan).encode(), "plan.json")
    assert type(refused.value) is kind
    assert str(refused.value).startswith("plan.json was written by a newer release of Lithify") == (kind is Outdated)


def test_a_body_that_is_not_json_is_damaged() -> None:
    with pytest.raises(Corrupt, match=r"^heartbeat\.json does not hold what Lithify writes there: [^\n]+$"):
        Heartbeat.parse_durable(b"{", "heartbeat.json")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda number: StepFigures(seconds=number, tasks=1, peak_memory_bytes=1),
        lambda number: ColumnStats(min_value=number),
    ],
    ids=["a figure", "a bound"],
)
def test_a_number_that_json_does_not_have_is_refused_before_it_is_durable(
    make: Callable[[float], Document], number: float
) -> None:
    """It would be written as null, and nobody could read the entry again."""
    with pytest.raises(ValidationError, match="finite number"):
        make(number)
