"""The one folder that a demo leaves: the lake, the dispatcher's state, and every log and scratch file beside them.

.lithify-demo/1/lake            or s3/, the data of the S3 server that the lake is on
               /state           job runs: what `lithify status` reads
               /tpch            what the generator wrote
               /instructions    the documents that were sent
               /spark           Spark's output (logs/) and scratch files
               /dispatcher.log
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compactor.errors import Invalid

PARENT = Path(".lithify-demo")
FOLDERS_MAX = 10_000


@dataclass(frozen=True)
class Place:
    """`shown` is the folder as a person would type it."""

    folder: Path
    shown: Path

    @property
    def log(self) -> Path:
        return self.folder / "dispatcher.log"

    @property
    def spark(self) -> Path:
        return self.folder / "spark"

    @property
    def s3(self) -> Path:
        return self.folder / "s3"

    @property
    def tpch(self) -> Path:
        return self.folder / "tpch"

    @property
    def instructions(self) -> Path:
        return self.folder / "instructions"

    def shown_path(self, path: Path) -> str:
        """A path in the folder, as a person would type it."""
        return str(self.shown / path.relative_to(self.folder))


def make_place(named: Path | None) -> Place:
    """The folder that was named, which must be new or empty; else `.lithify-demo/<the next number>`."""
    try:
        if named is not None:
            named.mkdir(parents=True, exist_ok=True)
            if any(named.iterdir()):
                raise Invalid(f"{named} is not empty: name a folder that the demo may fill, or remove it")
            return Place(named.absolute(), named)
        for number in range(1, FOLDERS_MAX):
            folder = PARENT / str(number)
            if _made(folder):
                return Place(folder.absolute(), folder)
    except OSError as error:
        raise Invalid(f"{named or PARENT} cannot be used: {error.strerror}") from error
    raise Invalid(f"{PARENT} is full: remove it")


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True
