"""Array loops of the compaction: arrays in, arrays out, no I/O. The tests' oracle has their plain form.

Digests are a C-contiguous uint32 array `digests` of shape (rows, 5): the five words of each SHA-1 digest, the most
significant first. The order of its rows is digest order; `digests.byteswap()` are the digest's bytes.

Numba checks no index in these loops: an index outside of its array reads or overwrites other memory. So every public
function states under "Precondition" what its loops rely on, makes the checks that are cheap, and raises `ValueError`
for a caller's mistake. Data from files is checked where it enters, in the loop itself or by the array's reader, and
raises `Corrupt` or `Invalid`. `make test-bounds` runs the tests with numba's checks on; these do not cover copies by
memcpy (`copy_bytes` in `compilation.py`).
"""
