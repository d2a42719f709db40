"""The rule of tests/unit/conftest.py is enforced."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from compactor.model.clock import SystemClock


@pytest.mark.parametrize(
    "start", [lambda: subprocess.run([sys.executable, "-V"], check=True), lambda: os.system("true")]
)
def test_a_unit_test_that_starts_a_process_fails(start: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="must not start a process"):
        start()


def test_a_unit_test_that_opens_a_listening_socket_fails() -> None:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        with pytest.raises(pytest.fail.Exception, match="must not open a listening socket"):
            opened.listen()


def test_a_unit_test_that_sleeps_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="must not sleep"):
        SystemClock().sleep(0.1)
