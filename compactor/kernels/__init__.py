"""Array loops of the compaction: arrays in, arrays out, no I/O. One kernel a file, its plain form in the tests' oracle.

Digests travel between kernels as `words`: a C-contiguous uint32 array of shape (rows, 5), the five words of each SHA-1
digest from the most significant on. Row order of words is digest order; `words.byteswap()` are the digest's bytes.
"""
