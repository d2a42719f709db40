"""A shell can parse the script of an EMR step."""

from __future__ import annotations

import subprocess

from launcher.emr.request import step_command
from tests.unit.launcher.test_emr_request import ON_DEMAND, SETTINGS, launch


def test_the_script_of_a_step_is_one_that_a_shell_takes() -> None:
    checked = subprocess.run(["bash", "-n", "-c", step_command(launch(ON_DEMAND), SETTINGS)[2]], check=False)
    assert checked.returncode == 0
