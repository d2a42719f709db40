"""Finds digests in a sorted run of the index without reading all of it.

A run's digests are used as they lie in its file: `raw`, a uint32 view (rows, 5) of most significant bytes first.
"""

import numba as nb
import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import kernel
from compactor.kernels.sha1 import Digests


def find_digests(raw: Digests, digests: Digests) -> npt.NDArray[np.int64]:
    """The positions in a sorted run of the distinct digests of `digests`, which are in digest order.

    Returns the positions of those that exist, ascending. Cost: at most about log2 of the run's rows per digest, less if
    the digests are denser. Precondition: both have five columns. Digests of a damaged run that are not sorted are not
    found, or not all.
    """
    found = np.empty(len(digests), np.int64)
    return found[: _find(raw, digests, found)]


@nb.njit(inline="always")
def _native(word):  # type: ignore[no-untyped-def]
    swapped = ((word & np.uint32(0xFF)) << np.uint32(24)) | ((word & np.uint32(0xFF00)) << np.uint32(8))
    return np.uint32(swapped | ((word >> np.uint32(8)) & np.uint32(0xFF00)) | (word >> np.uint32(24)))


@kernel
def _compare(raw, position, digests, row):  # type: ignore[no-untyped-def]
    for column in range(5):
        one, other = _native(raw[position, column]), digests[row, column]
        if one != other:
            return -1 if one < other else 1
    return 0


@kernel
def _find(raw, digests, found):  # type: ignore[no-untyped-def]
    rows, hits, low = raw.shape[0], 0, 0
    for row in range(digests.shape[0]):
        # Gallop from where the last digest was, then bisect: [low, high) always holds the first position not below.
        step, high = 1, low
        while high < rows and _compare(raw, high, digests, row) < 0:
            low = high + 1
            high += step
            step *= 2
        high = min(high, rows)
        while low < high:
            middle = (low + high) // 2
            if _compare(raw, middle, digests, row) < 0:
                low = middle + 1
            else:
                high = middle
        if low < rows and _compare(raw, low, digests, row) == 0:
            found[hits] = low
            hits += 1
            low += 1  # an equal digest after this one is the same key, and already found
    return hits
