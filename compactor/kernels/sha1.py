"""SHA-1 of many messages (FIPS 180-4), with the processor's SHA instructions where it has them.

`add_block_with_instructions` is the faster one, `add_block_portably` runs anywhere and is the tests' reference.
"""

from typing import TypeAlias

import numba as nb
import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import cgutils, config, types
from numba.extending import intrinsic
from numba.np import arrayobj

from compactor.kernels.compilation import copy_bytes, kernel

Digests: TypeAlias = npt.NDArray[np.uint32]

_COMPILES_FOR_THIS_HOST = config.CPU_NAME is None and config.CPU_FEATURES is None  # type: ignore[attr-defined]
HAS_INSTRUCTIONS: bool = _COMPILES_FOR_THIS_HOST and binding.get_host_cpu_features().get("sha", False)
"""Whether what numba compiles for has the SHA extensions of x86."""


def sha1(messages: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Digests:
    """The digests of messages laid end to end: message m is messages[offsets[m]:offsets[m + 1]].

    Returns digests of shape (messages, 5), the most significant word first.
    Precondition: len(offsets) >= 1, 0 <= offsets[0], offsets never go back, offsets[-1] <= len(messages), and a message
    has less than 2^60 bytes. `digest.py` lays messages out so.
    """
    digests = np.empty((len(offsets) - 1, 5), np.uint32)
    _sha1(messages, offsets, digests)
    return digests


@nb.njit(inline="always")
def _rotate(word, bits):  # type: ignore[no-untyped-def]
    return np.uint32((word << np.uint32(bits)) | (word >> np.uint32(32 - bits)))


@nb.njit(inline="always")
def _mix(a, chosen, e, constant, scheduled):  # type: ignore[no-untyped-def]
    # numba widens a sum of uint32 to uint64; the casts keep SHA-1's arithmetic modulo 2^32.
    return np.uint32(_rotate(a, 5) + chosen + e + np.uint32(constant) + scheduled)


@kernel
def add_block_portably(state, block):  # type: ignore[no-untyped-def]
    """Adds a block, uint8 (64,), to the state, uint32 (5,) (section 6.1.2)."""
    schedule = np.empty(80, np.uint32)
    for t in range(16):
        high = (np.uint32(block[4 * t]) << np.uint32(24)) | (np.uint32(block[4 * t + 1]) << np.uint32(16))
        schedule[t] = high | (np.uint32(block[4 * t + 2]) << np.uint32(8)) | np.uint32(block[4 * t + 3])
    for t in range(16, 80):
        mixed = np.uint32(schedule[t - 3] ^ schedule[t - 8] ^ schedule[t - 14] ^ schedule[t - 16])
        schedule[t] = _rotate(mixed, 1)
    a, b, c, d, e = state[0], state[1], state[2], state[3], state[4]
    for t in range(20):
        chosen = np.uint32(d ^ (b & (c ^ d)))
        a, b, c, d, e = _mix(a, chosen, e, 0x5A827999, schedule[t]), a, _rotate(b, 30), c, d
    for t in range(20, 40):
        chosen = np.uint32(b ^ c ^ d)
        a, b, c, d, e = _mix(a, chosen, e, 0x6ED9EBA1, schedule[t]), a, _rotate(b, 30), c, d
    for t in range(40, 60):
        chosen = np.uint32((b & c) | (d & (b | c)))
        a, b, c, d, e = _mix(a, chosen, e, 0x8F1BBCDC, schedule[t]), a, _rotate(b, 30), c, d
    for t in range(60, 80):
        chosen = np.uint32(b ^ c ^ d)
        a, b, c, d, e = _mix(a, chosen, e, 0xCA62C1D6, schedule[t]), a, _rotate(b, 30), c, d
    state[0] += a
    state[1] += b
    state[2] += c
    state[3] += d
    state[4] += e


@intrinsic
def add_block_with_instructions(_, state, block):  # type: ignore[no-untyped-def]
    """The same, four rounds an instruction. Only where `HAS_INSTRUCTIONS`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        words_of_state, bytes_of_block = (
            arrayobj.make_array(kind)(context, builder, value).data  # type: ignore[no-untyped-call]
            for kind, value in zip(signature.args, args, strict=True)
        )
        _emit_block(builder, words_of_state, bytes_of_block)
        return context.get_dummy_value()

    return types.void(state, block), codegen


_WORD, _BYTE = ir.IntType(32), ir.IntType(8)
_WORDS, _BYTES = ir.VectorType(_WORD, 4), ir.VectorType(_BYTE, 16)


def _emit_block(builder: ir.IRBuilder, state: ir.Value, block: ir.Value) -> None:
    """Vectors hold the most significant word last: a in lane 3, d in lane 0; e alone in lane 3."""

    def instruction(name: str, *args: ir.Value) -> ir.Value:
        kind = ir.FunctionType(_WORDS, [arg.type for arg in args])
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, kind, f"llvm.x86.sha1{name}"
        )
        return builder.call(function, args)

    def reverse(vector: ir.Value) -> ir.Value:
        count = vector.type.count
        lanes = ir.Constant(ir.VectorType(_WORD, count), list(range(count - 1, -1, -1)))
        return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)

    def pointer(start: ir.Value, kind: ir.Type, index: int) -> ir.Value:
        return builder.gep(builder.bitcast(start, kind.as_pointer()), [ir.Constant(_WORD, index)])

    first_words, last_word = pointer(state, _WORDS, 0), pointer(state, _WORD, 4)
    abcd_before = abcd = reverse(builder.load(first_words, align=4))
    e_before = builder.insert_element(ir.Constant(_WORDS, [0] * 4), builder.load(last_word), ir.Constant(_WORD, 3))
    earlier = abcd
    schedule: list[ir.Value] = []
    for four in range(20):
        if four < 4:
            message_bytes = reverse(builder.load(pointer(block, _BYTES, four), align=1))
            schedule.append(builder.bitcast(message_bytes, _WORDS))
        else:
            mixed = builder.xor(instruction("msg1", schedule[four - 4], schedule[four - 3]), schedule[four - 2])
            schedule.append(instruction("msg2", mixed, schedule[four - 1]))
        # e of these rounds is what a was four rounds ago, rotated.
        e = instruction("nexte", earlier, schedule[four]) if four else builder.add(e_before, schedule[0])
        earlier, abcd = abcd, instruction("rnds4", abcd, e, ir.Constant(_BYTE, four // 5))
    e = instruction("nexte", earlier, e_before)
    builder.store(reverse(builder.add(abcd, abcd_before)), first_words, align=4)
    builder.store(builder.extract_element(e, ir.Constant(_WORD, 3)), last_word)


_add_block = add_block_with_instructions if HAS_INSTRUCTIONS else add_block_portably


_LANES, _BLOCK_BYTES = 16, 64


@nb.njit(inline="always")
def _blocks_of(length):  # type: ignore[no-untyped-def]
    return (length + 8) // _BLOCK_BYTES + 1


@nb.njit(inline="always")
def _fill_block(messages, start, length, number, blocks, at):  # type: ignore[no-untyped-def]
    """The message's block of that number, padded (section 5.1.1), to blocks[at:]."""
    done = number * _BLOCK_BYTES
    taken = min(max(length - done, 0), _BLOCK_BYTES)
    blocks[at : at + _BLOCK_BYTES] = 0
    copy_bytes(blocks, at, messages, start + done, taken)  # type: ignore[call-arg]
    if taken < _BLOCK_BYTES and length >= done:
        blocks[at + taken] = 0x80
    if number == _blocks_of(length) - 1:
        bits = np.uint64(length) << np.uint64(3)
        for byte in range(8):
            blocks[at + 63 - byte] = np.uint8((bits >> np.uint64(8 * byte)) & np.uint64(0xFF))


@kernel
def _sha1(messages, offsets, digests):  # type: ignore[no-untyped-def]
    # Several messages are processed side by side, so that a block's bytes are stored well before they are read as
    # vectors. Read immediately, they could not be forwarded, and each block would wait for its stores.
    blocks, states = np.empty(_LANES * _BLOCK_BYTES, np.uint8), np.empty((_LANES, 5), np.uint32)
    for first in range(0, offsets.size - 1, _LANES):
        lanes = min(offsets.size - 1 - first, _LANES)
        states[:, 0], states[:, 1], states[:, 2] = 0x67452301, 0xEFCDAB89, 0x98BADCFE
        states[:, 3], states[:, 4] = 0x10325476, 0xC3D2E1F0
        number, unfinished = 0, lanes
        while unfinished > 0:
            for lane in range(lanes):
                start, length = offsets[first + lane], offsets[first + lane + 1] - offsets[first + lane]
                if number < _blocks_of(length):
                    _fill_block(messages, start, length, number, blocks, lane * _BLOCK_BYTES)
            unfinished = 0
            for lane in range(lanes):
                count = _blocks_of(offsets[first + lane + 1] - offsets[first + lane])
                if number < count:
                    _add_block(states[lane], blocks[lane * _BLOCK_BYTES :])  # type: ignore[call-arg]
                unfinished += number + 1 < count
            number += 1
        for lane in range(lanes):
            for word in range(5):
                digests[first + lane, word] = states[lane, word]
