#!/bin/sh
# numba loads compiled kernels only from a folder that it may write to, and the image's root is read-only.
set -eu
mkdir -p "$NUMBA_CACHE_DIR"
cp -R /opt/lithify/kernels/. "$NUMBA_CACHE_DIR"
exec "$@"
