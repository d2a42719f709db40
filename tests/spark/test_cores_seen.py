"""The cores of a cluster as its executors come and go, from which the expected SLA follows while a session runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compactor.engine.java_home import find_java_home
from tests.standalone_spark import standalone_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


def test_the_cores_of_a_lost_worker_are_gone_at_once_and_those_of_a_new_one_count(tmp_path: Path) -> None:
    java_home = str(find_java_home(os.environ, Path.home() / ".cache" / "lithify"))
    environment = {**os.environ, "JAVA_HOME": java_home, "SPARK_LOCAL_IP": "127.0.0.1"}
    with standalone_spark(tmp_path / "spark", workers=0) as spark:
        spark.start_worker(4)
        spark.start_worker(4)
        spark.await_workers(2)
        command = [sys.executable, "-m", "tests.spark.cores_program", spark.master_url]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None

            def seen(cores: int) -> int:
                assert driver.stdin is not None
                assert driver.stdout is not None
                driver.stdin.write(f"{cores}\n")
                driver.stdin.flush()
                return int(driver.stdout.readline())

            assert seen(8) == 8
            spark.kill_worker(1)
            assert seen(4) == 4
            spark.start_worker(4)
            assert seen(8) == 8
            driver.stdin.close()
            assert driver.wait(timeout=60) == 0
