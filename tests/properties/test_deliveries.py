"""Each instruction is delivered 1 to 5 times, to three dispatchers, in any order and at any moment: it is run once."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.catalog.actions import RoundCommitted
from dispatcher.intake.queue import ORIGIN_ATTRIBUTE, MessageAttribute, Origin
from dispatcher.records.job_run_log import JobRunAccepted, JobRunStatus
from tests.fakes.dispatch_desk import Desk, instruction
from tests.waiting import wait_until

OWNERS = ("first", "second", "third")
deliveries = st.lists(
    st.tuples(st.lists(st.sampled_from(range(3)), min_size=1, max_size=5), st.booleans()), min_size=1, max_size=3
)


@given(deliveries, st.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None)
def test_one_to_five_deliveries_to_three_dispatchers_commit_exactly_one_run(
    requested: list[tuple[list[int], bool]], chance: object
) -> None:
    """`asked`: of each instruction, which dispatchers get it, and whether as one message or as one each."""
    with tempfile.TemporaryDirectory() as folder:
        desks = [Desk(Path(folder))]
        desks += [desks[0].second(owner=owner) for owner in OWNERS[1:]]
        for number in range(len(requested)):
            desks[0].append([{"id": number}], table=f"ACME.T{number}.V1")
        todo = [(number, to) for number, (takers, _) in enumerate(requested) for to in takers]
        chance.shuffle(todo)  # type: ignore[attr-defined]
        sent: dict[int, str] = {}
        for number, to in todo:
            body = json.dumps(instruction(job_run_id=f"run-{number}", source_table_id=f"ACME.T{number}.V1"))
            is_one_message = requested[number][1]
            if is_one_message and number in sent:  # the queue delivers it again
                origin = Origin(message_id=sent[number], sent_at_ms=0).render().decode()
                desks[0].queue.send(body, {ORIGIN_ATTRIBUTE: MessageAttribute("String", origin)})
            else:
                sent[number] = desks[0].queue.send(body)
            _deliver(desks[to])
            desks[to].tick()
        wait_until(lambda: _is_done(desks), every_seconds=0.001)
        for number in range(len(requested)):
            _check(desks[0], number)
        assert desks[0].records.open_job_run_ids() == []
        for desk in desks:
            desk.close()


def _is_done(desks: list[Desk]) -> bool:
    for desk in desks:
        desk.tick()
    return desks[0].records.open_job_run_ids() == [] and all(desk.controller.holds_nothing for desk in desks)


def _deliver(desk: Desk) -> None:
    """The receiver's part: whatever is visible is taken in, and offered to this dispatcher."""
    for taken in desk.take():
        job_run_id = getattr(taken, "job_run_id", None)
        if job_run_id is not None:
            desk.controller.offer(job_run_id)


def _check(desk: Desk, number: int) -> None:
    log = desk.records.log(f"run-{number}")
    assert log.load().state.status is JobRunStatus.SUCCEEDED
    actions = Counter(type(action) for entry in log.entries() for action in entry.actions)
    assert actions[JobRunAccepted] == 1
    stream = desk.lake.table(f"ACME.T{number}.V1").stream({})
    committed = [
        action for entry in stream.log.entries() for action in entry.actions if isinstance(action, RoundCommitted)
    ]
    assert [action.job_run_id for action in committed] == [f"run-{number}"]
    assert desk.rows(f"ACME.T{number}.V1") == [{"id": number}]
