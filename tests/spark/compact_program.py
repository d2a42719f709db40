"""A process that compacts a table on a Spark of its own, however small the table is.

    python compact_program.py DOCUMENT

The document is JSON: `lake`, a `StoreLocation`, and `compact`, the arguments of `compact()`. It prints its result.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from compactor import DeltaCatalog, compact
from compactor.engine.local import local_spark
from compactor.engine.spark import SparkEngine
from compactor.storage.location import StoreLocation


def command_to_compact(lake: StoreLocation, table_id: str, primary_keys: list[str], **others: object) -> list[str]:
    arguments = {"source_table_id": table_id, "primary_keys": primary_keys, **others}
    return [sys.executable, __file__, json.dumps({"lake": asdict(lake), "compact": arguments})]


def main(document: str) -> None:
    request = json.loads(document)
    place = StoreLocation(**request["lake"])
    lake = DeltaCatalog.open(place.root_uri, endpoint_url=place.endpoint_url, region=place.region)
    with local_spark("lithify tests") as spark:
        result = compact(delta_catalog_client=lake, engine=SparkEngine(spark), **request["compact"])
    sys.stdout.write(result.model_dump_json(exclude={"sessions": {"__all__": {"completions"}}}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
