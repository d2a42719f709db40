"""A forked process, as Spark's daemon makes for each task, has no thread of its parent."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from compactor.model.background import soon
assert soon(lambda: 1).result() == 1
child = os.fork()
if child == 0:
    os._exit(soon(lambda: 7).result(60))
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
"""


def test_a_forked_process_has_threads_of_its_own_for_calls() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], check=True, timeout=120)
