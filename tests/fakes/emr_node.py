"""The programs of a node of the fake EMR: `python -m tests.fakes.emr_node aws|spark-submit ...`.

`aws s3 cp` downloads from the test's S3. `spark-submit` calls the real one, or its stand-in, with the test's master in
place of YARN, and without the settings for node sizes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.emr_steps import download, parse_submit


def main(name: str, arguments: Sequence[str]) -> None:
    if name == "aws":
        assert arguments[:2] == ["s3", "cp"], arguments
        source, target = [each for each in arguments[2:] if not each.startswith("--")]
        download(source, Path(target), os.environ["NODE_S3_ENDPOINT"] or None)
        return
    submit = parse_submit(["spark-submit", *arguments])
    home = os.environ["NODE_SPARK_HOME"]
    python = submit.conf.get("spark.pyspark.driver.python") or submit.conf.get(
        "spark.emr-serverless.driverEnv.PYSPARK_PYTHON", sys.executable
    )
    command = [
        f"{home}/bin/spark-submit",
        *("--master", os.environ["NODE_MASTER"]),
        *(argument for option in submit.kept for argument in option),
        *("--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        submit.program,
        *submit.program_arguments,
    ]
    os.environ["PYTHONPATH"] = os.environ.pop("NODE_PYTHONPATH")
    environment = {**os.environ, "SPARK_HOME": home, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
