"""What Ctrl-C would leave half done is done first."""

from __future__ import annotations

import signal
import threading

import pytest

from compactor.model.interrupts import DeferredInterrupts, deferred_interrupts

pytestmark = pytest.mark.usefixtures("interrupts_are_errors")


def test_ctrl_c_takes_effect_when_what_must_not_be_interrupted_is_done() -> None:
    before = signal.getsignal(signal.SIGINT)
    done = []

    def launch() -> None:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("launched")

    with pytest.raises(KeyboardInterrupt):
        launch()
    assert done == ["launched"]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_in_between_is_raised() -> None:
    with pytest.raises(ValueError, match="no Java"), deferred_interrupts():
        raise ValueError("no Java")


def test_ctrl_c_beside_an_error_is_not_lost() -> None:
    def fail() -> None:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("no Java")

    with pytest.raises(KeyboardInterrupt) as interrupted:
        fail()
    assert isinstance(interrupted.value.__context__, ValueError)


def test_a_handler_of_the_program_around_python_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as around:
        around.setattr(signal, "getsignal", lambda _: None)
        with deferred_interrupts():
            around.undo()
            assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_only_the_main_thread_handles_signals() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def launch() -> None:
        with deferred_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert seen == [before]


def test_ctrl_c_waits_for_the_last_of_what_is_nested() -> None:
    interrupts = DeferredInterrupts()
    interrupts.begin()
    interrupts.begin()
    signal.raise_signal(signal.SIGINT)
    interrupts.end()
    with pytest.raises(KeyboardInterrupt):
        interrupts.end()
    interrupts.begin()
    interrupts.end()  # it came once


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
