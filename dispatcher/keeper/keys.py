"""The keys of the keeper's state. `lake`: `lake_name` of the lake, since a state may serve several."""

import hashlib
from typing import Annotated

from compactor.storage.keys import Key, spelled
from compactor.storage.location import StoreLocation

LakeName = Annotated[str, spelled("[0-9a-f]{16}")]


def lake_name(location: StoreLocation) -> str:
    return hashlib.sha256(location.root_uri.rstrip("/").encode()).hexdigest()[:16]


class DecisionLogFolder(Key, template="keeper/{lake}/{table_id}/log"):
    """The log of the decisions on a table."""

    lake: LakeName
    table_id: str


class PublishedDecisions(Key, template="keeper/{lake}/{table_id}/published.json"):
    """How far the events of that log are published."""

    lake: LakeName
    table_id: str


class StreamsSeenObject(Key, template="keeper/{lake}/{table_id}/seen.json"):
    """What a keeper has seen of the table's streams: overwritten, a hint that spares the next one to read them."""

    lake: LakeName
    table_id: str


class UpkeepDone(Key, template="keeper/{lake}/upkeep.json"):
    """When files were collected last: overwritten, a hint that spares other keepers the same work."""

    lake: LakeName
