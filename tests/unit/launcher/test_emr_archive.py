"""What an archive is looked at for before a cluster is launched with it."""

from __future__ import annotations

import io
import random
import tarfile
from importlib import metadata

import pytest

from compactor.model.clock import SystemClock
from compactor.model.errors import Invalid
from launcher.archive import MANIFEST, PROJECT, ArchiveManifest
from launcher.emr.settings import READ_BYTES, check_archive, is_of_arm, room_on
from launcher.sizing.cluster_choice import ClusterRoom
from launcher.sizing.instance_types import BUILT_IN
from tests.fakes.memory_store import MemoryStore

URI = "s3://code/releases/lithify.tar.gz"
GOOD = ArchiveManifest(
    lithify=metadata.version(PROJECT),
    python="3.11",
    platform="linux-x86_64",
    cpu="x86-64-v3",
    spark="4.0",
    packages={},
    files=1,
    bytes=1,
)


def archive(*members: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        for name, body in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            opened.addfile(entry, io.BytesIO(body))
    return packed.getvalue()


def packed(manifest: ArchiveManifest) -> bytes:
    return archive((MANIFEST, manifest.render()), ("bin/python", b"#!/bin/sh"))


def check(body: bytes | None) -> ArchiveManifest:
    store = MemoryStore(SystemClock())
    if body is not None:
        store.put_if_absent("lithify.tar.gz", body)
    store.put_if_absent("lithify.tar.gz.sha256", b"beside it")
    folders = {"s3://code/releases": store}
    return check_archive(URI, lambda folder_uri: folders[folder_uri])


def test_an_archive_of_this_release_is_taken_and_only_its_beginning_is_read() -> None:
    noise = random.Random(1).randbytes(3 * READ_BYTES)
    assert check(packed(GOOD)) == GOOD
    assert check(archive((MANIFEST, GOOD.render()), ("lib/large", noise))[: 2 * READ_BYTES]) == GOOD


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"python": "3.9"},
            r"it is for Python 3\.9, and nodes of EMR have 3\.11, 3\.12, 3\.13: make one",
        ),
        ({"lithify": "0.0.1"}, r"it holds Lithify 0\.0\.1, and this is .*: make one with `lithify archive"),
    ],
)
def test_an_archive_of_another_python_or_release_is_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        check(packed(GOOD.model_copy(update=changes)))


def test_an_archive_that_is_not_there_is_refused() -> None:
    with pytest.raises(Invalid, match=r"s3://code/releases/lithify\.tar\.gz: there is no such object: make one with"):
        check(None)


@pytest.mark.parametrize(
    "body",
    [b"", b"not packed", b"\x1f\x8b and no more", archive(("bin/python", b"x")), archive((MANIFEST, b"{}"))],
    ids=["empty", "text", "cut off", "of another kind", "wrong manifest"],
)
def test_a_file_that_is_not_an_archive_of_lithify_is_refused(body: bytes) -> None:
    with pytest.raises(
        Invalid,
        match=r"(no archive of Lithify's|is no archive, or a part of one|is of another release).*: make one with",
    ):
        check(body)


@pytest.mark.parametrize(
    ("instance_type", "is_arm"),
    [
        *(("r6g.xlarge", True), ("r7gd.2xlarge", True), ("x2gd.metal", True), ("r8g.48xlarge", True)),
        *(("r5.xlarge", False), ("r6id.xlarge", False), ("g4dn.xlarge", False), ("r5n.8xlarge", False)),
    ],
)
def test_the_processor_of_an_instance_type_is_known_by_its_name(instance_type: str, is_arm: bool) -> None:
    assert is_of_arm(instance_type) is is_arm


def test_only_instance_types_are_chosen_from_that_can_run_the_archive() -> None:
    names = [each.name for each in room_on(GOOD, ClusterRoom()).prices.instance_types]
    assert "r5.xlarge" in names
    assert "r6g.xlarge" not in names
    arm = GOOD.model_copy(update={"platform": "linux-aarch64"})
    names = [each.name for each in room_on(arm, ClusterRoom()).prices.instance_types]
    assert "r6g.xlarge" in names
    assert "r5.xlarge" not in names


def test_where_no_allowed_instance_type_can_run_the_archive_both_are_named() -> None:
    room = ClusterRoom(prices=BUILT_IN.only(("r6g.xlarge",)))
    with pytest.raises(Invalid, match=r"the archive is for linux-x86_64, .* \(r6g\.xlarge\): make it on such"):
        room_on(GOOD, room)
