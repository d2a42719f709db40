"""SHA-1 is SHA-1, for messages of every length, by the processor's instructions and without them."""

from __future__ import annotations

import hashlib

import numba as nb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.kernels.sha1 import HAS_INSTRUCTIONS, add_block_portably, add_block_with_instructions, sha1


@nb.njit
def _add_block(state, block):  # type: ignore[no-untyped-def]
    add_block_with_instructions(state, block)  # type: ignore[call-arg]


FIRST_STATE = [0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0]


@given(st.lists(st.binary(max_size=150), max_size=20))
def test_digests_are_those_of_the_standard_library(messages: list[bytes]) -> None:
    offsets = np.cumsum([0, *map(len, messages)], dtype=np.int64)
    digests = sha1(np.frombuffer(b"".join(messages), np.uint8), offsets)
    assert [row.astype(">u4").tobytes() for row in digests] == [hashlib.sha1(message).digest() for message in messages]


@pytest.mark.parametrize("length", [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 1_000])
def test_a_message_may_end_anywhere_in_its_last_block(length: int) -> None:
    message = bytes(number % 251 for number in range(length))
    digests = sha1(np.frombuffer(message, np.uint8), np.array([0, length], np.int64))
    assert digests[0].astype(">u4").tobytes() == hashlib.sha1(message).digest()


def test_a_block_is_added_plainly_as_the_standard_says() -> None:
    """The one block that "abc" makes."""
    block = np.frombuffer(b"abc\x80" + bytes(59) + bytes([24]), np.uint8)
    state = np.array(FIRST_STATE, np.uint32)
    add_block_portably(state, block)
    assert state.astype(">u4").tobytes() == hashlib.sha1(b"abc").digest()


@pytest.mark.skipif(not HAS_INSTRUCTIONS, reason="this processor has no instructions for SHA-1")
def test_the_instructions_add_every_block_as_the_plain_form_does() -> None:
    random = np.random.default_rng(1)
    for _ in range(100):
        block = random.integers(0, 256, 64, dtype=np.uint8)
        state = random.integers(0, 2**32, 5, dtype=np.uint32)
        plainly, by_instructions = state.copy(), state.copy()
        add_block_portably(plainly, block)
        _add_block(by_instructions, block)
        assert by_instructions.tolist() == plainly.tolist()
