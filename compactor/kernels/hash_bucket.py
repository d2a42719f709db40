"""Which hash bucket a digest belongs to, and the stable grouping of rows by it (the paper, hash bucket step, c-f)."""

import numpy as np
import numpy.typing as npt

from compactor.kernels.compilation import kernel
from compactor.kernels.sha1 import Digests


def hash_buckets(digests: Digests, hash_bucket_count: int) -> npt.NDArray[np.uint32]:
    """`int.from_bytes(digest, "big") % hash_bucket_count` for every row. uint32 (rows,).

    Precondition, which is checked: 1 <= hash_bucket_count < 2^32.
    """
    if not 1 <= hash_bucket_count < _HASH_BUCKET_COUNT_END:
        raise ValueError(f"{hash_bucket_count} hash buckets")
    buckets = np.empty(len(digests), np.uint32)
    if hash_bucket_count < _ONE_DIVISION_BELOW:
        weights = [2 ** (32 * (4 - word)) % hash_bucket_count for word in range(5)]
        _weighted_modulo(digests, np.array(weights, np.uint64), np.uint64(hash_bucket_count), buckets)
    else:
        _modulo(digests, np.uint64(hash_bucket_count), buckets)
    return buckets


def group_by_bucket(
    buckets: npt.NDArray[np.uint32], hash_bucket_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows grouped by bucket, in their old order within one.

    Returns order (rows,) and bounds (hash_bucket_count + 1,): bucket b's rows are order[bounds[b]:bounds[b + 1]].
    Precondition, which is checked: every bucket < hash_bucket_count.
    """
    counts = np.bincount(buckets, minlength=hash_bucket_count)
    if len(counts) != hash_bucket_count:
        raise ValueError(f"a row is in hash bucket {len(counts) - 1} of {hash_bucket_count}")
    bounds = np.zeros(hash_bucket_count + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    order = np.empty(len(buckets), np.int64)
    _scatter(buckets, bounds[:-1].copy(), order)
    return order, bounds


_HASH_BUCKET_COUNT_END = 2**32
_ONE_DIVISION_BELOW = 2**29
"""Below this count a sum of five words, each times a remainder, fits 64 bits: one division a row instead of five."""


@kernel
def _weighted_modulo(digests, weights, count, buckets):  # type: ignore[no-untyped-def]
    for row in range(digests.shape[0]):
        total = np.uint64(0)
        for word in range(5):
            total += np.uint64(digests[row, word]) * weights[word]
        buckets[row] = np.uint32(total % count)


@kernel
def _modulo(digests, count, buckets):  # type: ignore[no-untyped-def]
    # Long division word by word: the remainder stays below 2^32, so remainder * 2^32 + word fits 64 bits.
    for row in range(digests.shape[0]):
        remainder = np.uint64(0)
        for word in range(5):
            remainder = ((remainder << np.uint64(32)) | np.uint64(digests[row, word])) % count
        buckets[row] = np.uint32(remainder)


@kernel
def _scatter(buckets, cursor, order):  # type: ignore[no-untyped-def]
    for row in range(buckets.size):
        bucket = buckets[row]
        order[cursor[bucket]] = row
        cursor[bucket] += 1
