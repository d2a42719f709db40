"""Opens the object store of a location, and the reader of remote ranges: the only importer of the implementations.

The implementations on S3 are imported when they are opened, since botocore and obstore are slow to import.
"""

import os
from dataclasses import replace
from functools import lru_cache

from compactor.model.clock import SystemClock
from compactor.storage.local import LocalStore
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from compactor.storage.ranges import RangeReader


def open_store(location: StoreLocation, *, secret_prefixes: tuple[str, ...] = ()) -> ObjectStore:
    """The store at a location. `secret_prefixes`: see `LocalStore`; on S3, policies say who may read an object."""
    if location.is_remote:
        from compactor.storage.aws.s3 import S3Store

        return S3Store.open(location)
    return LocalStore(location, secret_prefixes)


def with_region(location: StoreLocation) -> StoreLocation:
    """The location with the S3 region of this process's environment, if it has none: for processes on other machines,
    whose environment may have no region."""
    if location.region is not None or not location.is_remote:
        return location
    from compactor.storage.aws.s3 import shared_clients

    region = shared_clients(location.endpoint_url, None).region
    return replace(location, region=region)


def range_reader(location: StoreLocation) -> RangeReader:
    """The reader of this process for objects on the location's S3 service, also where the location is a folder."""
    return _range_reader(os.getpid(), location.endpoint_url, location.region)


@lru_cache(maxsize=32)
def _range_reader(_process_id: int, endpoint_url: str | None, region: str | None) -> RangeReader:
    """The process id is part of the cache key, because connections do not survive a fork."""
    from compactor.storage.aws.ranges import S3Ranges
    from compactor.storage.hedged_ranges import HedgedRanges
    from compactor.storage.repeated_ranges import RepeatedRanges

    ranges = S3Ranges.open(endpoint_url, region)
    limits = ranges.limits
    hedged = HedgedRanges(ranges)
    return RangeReader(
        RepeatedRanges(hedged, SystemClock(), tries_max=limits.tries_max, repeat_seconds_max=limits.repeat_seconds_max)
    )
