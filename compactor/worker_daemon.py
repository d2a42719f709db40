"""PySpark's worker daemon with our steps loaded: every worker it forks starts ready. Named in spark_settings.py.

Nothing here may start a thread or open a connection: what does not survive a fork must not exist before it.
"""

from __future__ import annotations

import gc
import sys
import zipimport

from pyspark import daemon

import compactor.round_runner  # noqa: F401  (its import is the point)


def _keep_what_is_loaded() -> None:
    """Spares every task what PySpark does around it: without this, 0.1 to 0.2 s a task for nothing.

    Before a task PySpark drops the import caches, and so would read the contents of its own zip archives anew; after
    it, it looks for garbage, among all that was imported. Archives do not change while a job runs, and what was
    imported is no garbage.
    """
    for importer in sys.path_importer_cache.values():
        if isinstance(importer, zipimport.zipimporter):
            importer.invalidate_caches = _nothing  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()


def _nothing() -> None:
    return


if __name__ == "__main__":
    _keep_what_is_loaded()
    daemon.manager()  # type: ignore[no-untyped-call]
