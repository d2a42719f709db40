"""What a dispatcher answers to probes: whether its loops turn, and whether it reaches what it needs."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from compactor.model.errors import Denied, Invalid, Unavailable
from dispatcher.cli.serve import _listening
from dispatcher.operations.http_server import HttpAddress, Observed, answer_to, http_server
from dispatcher.records.keys import OPEN_JOB_RUNS
from dispatcher.records.metrics_samples import Metric, Sample
from tests.fakes.dispatch_desk import Desk
from tests.fakes.faulty_store import FaultyStore
from tests.fakes.manual_clock import ManualClock
from tests.fakes.memory_store import MemoryStore


def observed(*, stuck: tuple[str, ...] = (), troubles: Mapping[str, Exception] | None = None) -> Observed:
    samples = [Sample(Metric("age", "seconds", "How old it is.", counts=False), 2)]
    return Observed(lambda: stuck, lambda: troubles or {}, lambda: samples)


def get(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_dispatcher_that_is_well_is_live_and_ready_and_gives_its_metrics() -> None:
    with http_server(HttpAddress(port=0), observed) as port:
        assert port is not None
        assert get(port, "/live") == (200, b'{"live": true, "stuck": []}\n')
        assert get(port, "/ready?verbose=1")[0] == 200
        status, body = get(port, "/metrics")
        assert (status, b"lithify_age_seconds 2.0" in body) == (200, True)
        assert get(port, "/anything")[0] == 404


def test_a_loop_that_is_stuck_is_not_live_and_named() -> None:
    answer = answer_to("/live", observed(stuck=("receiver",)))
    assert (answer.status, json.loads(answer.body)) == (503, {"live": False, "stuck": ["receiver"]})


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Unavailable("the bucket does not answer"), "Unavailable"), (Denied("ExpiredToken"), "Denied")],
)
def test_an_unreachable_service_is_not_ready_but_live(error: Exception, kind: str) -> None:
    seen = observed(troubles={"state": error})
    answer = answer_to("/ready", seen)
    assert answer.status == 503
    assert json.loads(answer.body)["troubles"] == {"state": {"error_kind": kind, "reason": str(error)}}
    assert answer_to("/live", seen).status == 200


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with http_server(HttpAddress(port=0), observed) as port:
        assert port is not None
        second = http_server(HttpAddress(port=port), observed)
        with pytest.raises(Invalid, match="--http-port"):
            second.__enter__()


def test_no_address_serves_nothing() -> None:
    with http_server(HttpAddress(), observed) as port:
        assert port is None


def test_an_error_in_an_answer_ends_no_dispatcher_and_the_next_answer_is_given() -> None:
    breaks = [ZeroDivisionError("a bug")]

    def seen() -> Observed:
        if breaks:
            raise breaks.pop()
        return observed()

    with http_server(HttpAddress(port=0), seen) as port:
        assert port is not None
        assert get(port, "/live")[0] == 500
        assert get(port, "/live")[0] == 200


# ------------------------------------------------------------------------------------ what a dispatcher says of itself


def test_loops_that_do_not_turn_are_found(tmp_path: Path) -> None:
    desk = Desk(tmp_path, clock=ManualClock())
    seen = [desk.controller.stuck]  # nothing has begun
    desk.controller.tick()
    desk.controller.receiver_turned()
    desk.move_on(121)
    seen.append(desk.controller.stuck)
    desk.controller.tick()
    seen.append(desk.controller.stuck)
    desk.move_on(900)
    desk.controller.tick()
    seen.append(desk.controller.stuck)
    desk.controller.receiver_turned()
    seen.append(desk.controller.stuck)
    assert seen == [(), ("tick",), (), ("receiver",), ()]
    desk.close()


def test_a_dispatcher_that_drains_receives_no_more_and_is_not_stuck_for_that(tmp_path: Path) -> None:
    desk = Desk(tmp_path, clock=ManualClock())
    desk.controller.receiver_turned()
    desk.controller.drain(0)
    desk.move_on(2_000)
    desk.controller.tick()
    assert desk.controller.stuck == ()
    desk.close()


def test_a_state_that_is_not_reached_is_a_trouble_until_it_is(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    desk = Desk(tmp_path, clock=clock, state=store)
    store.fail("list", OPEN_JOB_RUNS, times=None, error=Denied)
    desk.controller.tick()
    assert isinstance(desk.controller.last_error, Denied)
    store.heal()
    desk.controller.tick()
    assert desk.controller.last_error is None
    desk.close()


def test_a_tick_that_hangs_is_seen_from_another_thread(tmp_path: Path) -> None:
    """The state's store hangs within a tick: whoever asks still gets an answer."""
    clock, hangs, goes_on = ManualClock(), threading.Event(), threading.Event()

    class HangingStore(MemoryStore):
        def put_if_absent(self, key: str, body: bytes) -> bool:
            if key.endswith("0000000002.json"):
                hangs.set()
                goes_on.wait()
            return super().put_if_absent(key, body)

    desk = Desk(tmp_path, clock=clock, state=HangingStore(clock))
    desk.append([{"id": 1}])
    desk.accept(job_run_id="run")
    ticking = threading.Thread(target=desk.controller.tick)
    ticking.start()
    hangs.wait()
    desk.move_on(200)
    assert desk.controller.stuck == ("tick",)
    goes_on.set()
    ticking.join()
    desk.close()


def test_an_address_that_the_page_cannot_listen_on_is_one_sentence() -> None:
    with _listening("127.0.0.1", 0) as taken, pytest.raises(Invalid, match=r"--port .* 0 takes one that is free"):
        _listening("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(Invalid, match=r"--host 2001:db8::1 cannot be used: (?!Address family for hostname)"):
        _listening("2001:db8::1", 0)
