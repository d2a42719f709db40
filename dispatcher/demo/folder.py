"""The one folder that a demo leaves: the lake, the dispatcher's state, logs and scratch files.

.lithify-demo/1/lake            or s3/, the data of the S3 server that holds lake and state
               /state           job runs, read by `lithify status`
               /tpch            the generator's output
               /instructions    the documents that were sent
               /spark           Spark's output (logs/) and scratch files
               /dispatcher.log
               /landing, /ingest.log    with --changes: the shop's feed, and what ingest says
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compactor.model.errors import Invalid

PARENT = Path(".lithify-demo")
FOLDERS_MAX = 10_000


@dataclass(frozen=True)
class DemoFolder:
    """`shown` is the path as a person would type it."""

    path: Path
    shown: Path

    @property
    def log(self) -> Path:
        return self.path / "dispatcher.log"

    @property
    def ingest_log(self) -> Path:
        return self.path / "ingest.log"

    @property
    def spark(self) -> Path:
        return self.path / "spark"

    @property
    def s3(self) -> Path:
        return self.path / "s3"

    @property
    def tpch(self) -> Path:
        return self.path / "tpch"

    @property
    def instructions(self) -> Path:
        return self.path / "instructions"

    def shown_path(self, path: Path) -> str:
        """A path in the folder, as a person would type it."""
        return str(self.shown / path.relative_to(self.path))


def make_folder(named: Path | None) -> DemoFolder:
    """The named folder, which must be new or empty; without a name `.lithify-demo/<the next number>`."""
    try:
        if named is not None:
            named.mkdir(parents=True, exist_ok=True)
            if any(named.iterdir()):
                raise Invalid(f"{named} is not empty: name a folder that the demo may fill, or remove it")
            return DemoFolder(named.absolute(), named)
        for number in range(1, FOLDERS_MAX):
            folder = PARENT / str(number)
            if _create(folder):
                return DemoFolder(folder.absolute(), folder)
    except OSError as error:
        raise Invalid(f"{named or PARENT} cannot be used: {error.strerror}") from error
    raise Invalid(f"{PARENT} is full: remove it")


def _create(folder: Path) -> bool:
    """False if it exists already."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True
