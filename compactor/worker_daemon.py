"""PySpark's worker daemon with our steps loaded: every worker it forks starts ready. Named in spark_settings.py.

Nothing here may start a thread or open a connection: what does not survive a fork must not exist before it.
"""

from __future__ import annotations

from pyspark import daemon

import compactor.round_runner  # noqa: F401  (its import is the point)

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
