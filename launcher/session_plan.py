"""Decides how a session will run on a cluster: a `SessionPlan`, or nothing to do.

What a session reads, and the arithmetic, are `compactor/session_planner.py`'s, which `compact()` on one machine uses
too; decided here is whether there is anything to launch for, and how the prediction compares with what was desired.
"""

from __future__ import annotations

from compactor.catalog.catalog import DeltaCatalog
from compactor.session_input import continued_stream, pending_files
from compactor.session_planner import plan_session
from compactor.sizing import Resources
from compactor.spec import SessionPlan, SessionSpec
from launcher.outcomes import NothingToDo


def plan_for_cluster(spec: SessionSpec, lake: DeltaCatalog, resources: Resources) -> SessionPlan | NothingToDo:
    """Raises `Invalid`, with every reason, for a session that can never run as it was asked for."""
    if not has_pending_files(spec, lake):
        return NothingToDo()
    plan = plan_session(spec, lake, resources)
    compared = _against_desired_sla(spec.job_run.desired_sla, plan.expected_sla)
    return plan.model_copy(update={"arithmetic": (*plan.arithmetic, *compared)})


def has_pending_files(spec: SessionSpec, lake: DeltaCatalog) -> bool:
    """Whether there is a delta file above the watermark, as the destination stands now."""
    run = spec.job_run
    source = lake.table(run.source_table_id)
    destination = lake.table_like(run.destination_compacted_table_id, source).stream(spec.partition).load()
    compacted, _ = continued_stream(destination.state, spec)
    return bool(pending_files(source.stream(spec.partition), spec, compacted))


def _against_desired_sla(desired_seconds: int | None, expected_seconds: float) -> tuple[str, ...]:
    if desired_seconds is None:
        return ()
    if expected_seconds <= desired_seconds:
        return (f"the expected {expected_seconds:.1f} s are within the desired {desired_seconds} s",)
    return (f"the expected {expected_seconds:.1f} s are more than the desired {desired_seconds} s on this cluster",)
