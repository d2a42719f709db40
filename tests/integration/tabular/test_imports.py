"""Importing the package of data files loads no other heavy library."""

from __future__ import annotations

import subprocess
import sys


def test_importing_data_files_imports_neither_boto3_nor_pyspark() -> None:
    code = "import sys, compactor.tabular; sys.exit('boto3' in sys.modules or 'pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
