"""Starting and stopping a Spark of one's own, but for Spark."""

from __future__ import annotations

import signal
import threading

import pytest

from compactor.engine.java_home import utf8_locale
from compactor.engine.local import deferred_interrupts


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


def test_an_error_in_between_is_not_covered_by_ctrl_c() -> None:
    with pytest.raises(ValueError, match="no Java"), deferred_interrupts():
        raise ValueError("no Java")


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


@pytest.mark.parametrize(
    ("environment", "added"),
    [
        ({}, {"LC_ALL": "C.UTF-8"}),
        ({"LC_ALL": "C", "LANG": "en_GB.UTF-8"}, {"LC_ALL": "C.UTF-8"}),
        ({"LC_CTYPE": "de_DE.utf8"}, {}),
        ({"LANG": "en_GB.UTF-8"}, {}),
    ],
    ids=str,
)
def test_java_is_started_in_a_locale_of_utf_8(environment: dict[str, str], added: dict[str, str]) -> None:
    assert utf8_locale(environment) == added
