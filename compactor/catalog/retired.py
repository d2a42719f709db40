"""The retired deltas of a stream version: the last retired position and, for a limited time, the retired ids.

8 bytes of each id are kept: one million take 8 MB. A new id is refused by mistake with a probability of n / 2**64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a stream that has retired nothing needs no NumPy
    import numpy as np
    import numpy.typing as npt

    IdDigests = npt.NDArray[np.uint64]

IDS_REFUSED_SECONDS = 30 * 24 * 3600
"""Time for which an append with the id of a retired or dropped delta is refused, at least."""

_ID_WINDOWS = 16
"""Parts of that time. The ids of one part are forgotten together."""


def refused_until_ms(now_ms: int) -> int:
    """The time until which ids that retire now are refused, rounded up so that there are few different times."""
    part_ms = IDS_REFUSED_SECONDS * 1_000 // _ID_WINDOWS
    return -(-(now_ms + IDS_REFUSED_SECONDS * 1_000) // part_ms) * part_ms


@dataclass(frozen=True)
class RefusedIds:
    """The ids of retired deltas that are refused until a time.

    Attributes:
        digests: of the ids: uint64, little-endian, ascending"""

    until_ms: int
    digests: bytes

    @property
    def array(self) -> IdDigests:
        import numpy as np

        return np.frombuffer(self.digests, "<u8")

    def __len__(self) -> int:
        return len(self.digests) // 8

    def __contains__(self, digest: object) -> bool:
        import numpy as np

        array = self.array
        found = int(np.searchsorted(array, np.uint64(digest)))  # type: ignore[arg-type]
        return found < len(array) and int(array[found]) == digest


@dataclass(frozen=True)
class RetiredDeltas:
    """The retired deltas of a stream version.

    Attributes:
        position: of the last retired delta
        count: number of all ids that were ever retired
        refused: the retired ids, by the time until which they are refused"""

    position: int
    count: int = 0
    refused: tuple[RefusedIds, ...] = ()

    def refuses(self, delta_id: str) -> bool:
        digest = id_digest(delta_id)
        return any(digest in ids for ids in self.refused)

    def with_more(self, position: int, delta_ids: Iterable[str], until_ms: int, at_ms: int) -> RetiredDeltas:
        """The state after more deltas were retired. Drops ids whose time of refusal ended before `at_ms`."""
        import numpy as np

        new = np.sort(np.array([id_digest(delta_id) for delta_id in delta_ids], "<u8"))
        by_time = {ids.until_ms: ids for ids in self.refused if ids.until_ms >= at_ms}
        if len(new):
            existing = by_time.get(until_ms)
            both = new if existing is None else np.sort(np.concatenate([existing.array, new]), kind="stable")
            by_time[until_ms] = RefusedIds(until_ms, both.astype("<u8").tobytes())
        refused = tuple(by_time[each] for each in sorted(by_time))
        return replace(self, position=max(position, self.position), count=self.count + len(new), refused=refused)


def id_digest(delta_id: str) -> int:
    """The first 8 bytes of the SHA-256 of a delta id, as a big-endian number (FORMAT.md, section 6.2)."""
    return int.from_bytes(hashlib.sha256(delta_id.encode()).digest()[:8], "big")
