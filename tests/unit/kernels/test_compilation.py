"""Ctrl-C while numba compiles or loads a kernel is raised once that is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import numba as nb
import pytest
from numba.core import event

import compactor.kernels.compilation  # noqa: F401  (which holds interrupts)

pytestmark = pytest.mark.usefixtures("interrupts_are_errors")


class Interrupt(event.Listener):
    """Interrupts the process at the first step of a compilation."""

    def __init__(self) -> None:
        self.was_sent = False

    def on_start(self, event: object) -> None:
        if not self.was_sent:
            self.was_sent = True
            signal.raise_signal(signal.SIGINT)

    def on_end(self, event: object) -> None:
        pass


@pytest.fixture
def interrupt(interrupts_are_errors: None) -> Iterator[Interrupt]:
    interrupt = Interrupt()
    with event.install_listener("numba:run_pass", interrupt):
        yield interrupt
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@nb.njit(inline="never")
def one_more(number):  # type: ignore[no-untyped-def]
    return number + 1


def test_an_interrupt_comes_after_the_kernel_is_compiled(interrupt: Interrupt) -> None:
    @nb.njit
    def two_more(number):  # type: ignore[no-untyped-def]
        return one_more(one_more(number))

    with pytest.raises(KeyboardInterrupt):
        two_more(1)
    assert len(two_more.signatures) == 1
    assert two_more(1) == 3


def test_a_kernel_that_cannot_be_compiled_keeps_no_interrupt(interrupt: Interrupt) -> None:
    @nb.njit
    def wrong(number):  # type: ignore[no-untyped-def]
        return number + "text"

    with pytest.raises(KeyboardInterrupt):
        wrong(1)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_kernel_is_compiled_where_interrupts_are_none_of_pythons(handler: signal.Handlers) -> None:
    @nb.njit
    def plain(number):  # type: ignore[no-untyped-def]
        return number * 2

    before = signal.signal(signal.SIGINT, handler)
    try:
        assert plain(2) == 4
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_kernel_is_compiled_in_another_thread() -> None:
    @nb.njit
    def plain(number):  # type: ignore[no-untyped-def]
        return number * 2

    other = threading.Thread(target=plain, args=(2,))
    other.start()
    other.join()
    assert len(plain.signatures) == 1
