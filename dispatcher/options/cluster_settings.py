"""Reads `--cluster-settings`, with which a dispatcher runs its sessions on EMR or EMR Serverless.

The settings are checked at the start, before anything is launched; one `Invalid` has all violations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from compactor.model.clock import Clock
from compactor.model.errors import Invalid, Unavailable
from compactor.storage.location import StoreLocation
from compactor.storage.object_store import ObjectStore
from launcher.archive import ArchiveManifest
from launcher.emr.archive import check_archive, room_on
from launcher.emr.settings import AwsClusterSettings, check_places, read_settings
from launcher.sizing.cluster_choice import ClusterLimits, ClusterRoom
from launcher.sizing.instance_types import BUILT_IN, PriceList, read_price_list

_log = structlog.get_logger(__name__)

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class AwsSessions:
    """`room`: the instance types, prices and limits from which the cluster of a session is chosen."""

    settings: AwsClusterSettings
    room: ClusterRoom


def read_aws_sessions(
    cluster_settings: str,
    read_room: Callable[[], ClusterRoom],
    state: StoreLocation,
    lake: StoreLocation | None,
    open_folder: Callable[[str], ObjectStore],
) -> AwsSessions:
    """Raises `Invalid` with all violations in settings, limits, prices, locations and the archive.

    read_room    raises `Invalid` for limits and prices that contradict each other
    open_folder  opens a folder on S3
    """
    reasons: list[str] = []
    settings = checked(lambda: read_settings(cluster_settings), reasons)
    room = checked(read_room, reasons)
    checked(lambda: check_places(state, lake), reasons)
    if settings is not None:
        manifest = checked(lambda: _read_archive(settings.archive_uri, open_folder), reasons)
        if manifest is not None and room is not None:
            room = checked(partial(room_on, manifest, room), reasons)
    if settings is None or room is None or reasons:
        raise Invalid(*reasons)
    if room.prices.region != settings.region:
        _log.warning("prices_of_another_region", region=settings.region, prices_of=room.prices.region)
    return AwsSessions(settings, room)


def checked(check: Callable[[], ValueT], reasons: list[str]) -> ValueT | None:
    """None: the check has added its reasons."""
    try:
        return check()
    except Invalid as error:
        reasons += error.reasons
        return None


def _read_archive(uri: str, open_folder: Callable[[str], ObjectStore]) -> ArchiveManifest | None:
    """None: S3 does not answer now, or this process may not read there; then the nodes report it."""
    try:
        return check_archive(uri, open_folder)
    except Unavailable as error:
        _log.warning("archive_not_checked", archive=uri, reason=str(error))
        return None


def cluster_room(
    limits: ClusterLimits, price_file: Path | None, instance_types: Sequence[str], clock: Clock
) -> ClusterRoom:
    """The instance types, prices and limits of clusters. Raises `Invalid` with all violations in them."""
    reasons: list[str] = []
    prices = checked(lambda: _prices(price_file, instance_types, clock), reasons)
    checked(limits.check if prices is None else ClusterRoom(limits, prices).check, reasons)
    if prices is None or reasons:
        raise Invalid(*reasons)
    return ClusterRoom(limits, prices)


def _prices(price_file: Path | None, instance_types: Sequence[str], clock: Clock) -> PriceList:
    prices = BUILT_IN
    if price_file is not None:
        prices = read_price_list(price_file, datetime.fromtimestamp(clock.now_ms() / 1000, UTC).date())
    return prices.only(tuple(instance_types)) if instance_types else prices
