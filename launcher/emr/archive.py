"""Checks an archive on S3 before a launch: that it exists, and its manifest (`launcher/archive.py`). The manifest
is its first member, so only the beginning is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from io import BytesIO

from compactor.model.errors import Invalid
from compactor.storage.object_store import ObjectStore
from launcher.archive import PROJECT, ArchiveManifest, manifest_in
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.sizing.instance_types import PriceList

READ_BYTES = 1024 * 1024
PACK_AGAIN = "make one with `lithify archive lithify.tar.gz`, and upload it"
PYTHONS = ("3.11", "3.12", "3.13")
"""Of nodes of EMR: 3.11 from emr-7.0.0 on, all of them from emr-spark-8.0.0 on."""

_ARM = ("aarch64", "arm64")
_GRAVITON = re.compile(r"[a-z]+[0-9]+[a-z]*g[a-z]*\.")
"""Of families with ARM processors, the letters behind the generation have a g: r6g, r7gd, x2gd."""


def check_archive(uri: str, open_folder: Callable[[str], ObjectStore]) -> ArchiveManifest:
    """The manifest of the archive. Raises `Invalid` if it does not exist, is not an archive of Lithify, or is of
    another release or Python, and the errors of `open_folder` if its service does not answer."""
    found = _read_manifest(uri, open_folder)
    release = metadata.version(PROJECT)
    if found.lithify != release:
        raise Invalid(f"archive_uri is {uri}: it holds Lithify {found.lithify}, and this is {release}: {PACK_AGAIN}")
    if found.python not in PYTHONS:
        raise Invalid(
            f"archive_uri is {uri}: it is for Python {found.python}, and nodes of EMR have {', '.join(PYTHONS)}: "
            f"{PACK_AGAIN}"
        )
    return found


def room_on(manifest: ArchiveManifest, room: ClusterRoom) -> ClusterRoom:
    """The instance types whose processors can run the archive. Raises `Invalid` if no session can run on those."""
    is_arm = manifest.platform.endswith(_ARM)
    fitting = tuple(each for each in room.prices.instance_types if is_of_arm(each.name) == is_arm)
    if not fitting:
        names = ", ".join(each.name for each in room.prices.instance_types)
        raise Invalid(
            f"the archive is for {manifest.platform}, and no instance type that is allowed has such a processor "
            f"({names}): make it on such a machine, or allow others"
        )
    prices: PriceList = room.prices.model_copy(update={"instance_types": fitting})
    fitting_room = replace(room, prices=prices)
    fitting_room.check()
    return fitting_room


def is_of_arm(instance_type: str) -> bool:
    return _GRAVITON.match(instance_type) is not None


def _read_manifest(uri: str, open_folder: Callable[[str], ObjectStore]) -> ArchiveManifest:
    folder, _, key = uri.rpartition("/")
    store = open_folder(folder)
    entry = next((each for each in store.list(key) if each.key == key), None)
    if entry is None:
        raise Invalid(f"archive_uri is {uri}: there is no such object: {PACK_AGAIN}")
    beginning = store.read_range(key, 0, min(READ_BYTES, entry.size_bytes)) if entry.size_bytes else b""
    return manifest_in(BytesIO(beginning), f"archive_uri is {uri}: it", PACK_AGAIN)
