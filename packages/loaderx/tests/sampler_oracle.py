"""The sampler's definition once more, in Python and numpy, sharing no code with the library.

`indices` is the plain definition, one position at a time, with Python's integers and numpy's own
Philox. `philox` and `permute` are the same for whole arrays, with the number of rounds and the
transposition free, to make the weaker functions that a test must notice.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

TAG_IID32 = int.from_bytes(b"zs-iid32", "big")
TAG_IID64 = int.from_bytes(b"zs-iid64", "big")
TAG_ALIAS = int.from_bytes(b"zs-alias", "big")
TAG_CYCLE = int.from_bytes(b"zs-cycle", "big")

WORD = 2**64 - 1
HALF = 2**32 - 1


# One position at a time


def numpy_block(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Four words of numpy's Philox, which steps its 256-bit counter before it draws."""
    number = sum(word << (64 * i) for i, word in enumerate(counter))
    before = (number - 1) % 2**256
    words = [(before >> (64 * i)) & WORD for i in range(4)]
    generator = np.random.Philox(counter=np.array(words, np.uint64), key=np.array(key, np.uint64))
    return [int(word) for word in generator.random_raw(4)]


def indices(
    length, batch_size, mode, seed, step, *, rank=0, world_size=1, remainder="drop", weights=None
):
    """The batch of a step as a list of integers."""
    global_batch = batch_size * world_size
    first = step * global_batch + rank * batch_size
    positions = range(first, first + batch_size)
    if mode == "sequential":
        return [p % length for p in positions]
    if mode == "iid" and weights is not None:
        table = alias_table(weights)
        return [_weighted(table, length, seed, p) for p in positions]
    if mode == "iid":
        return [_uniform(length, seed, p) for p in positions]
    if remainder == "wrap":
        places = [divmod(p, length) for p in positions]
    else:
        cycle, step_in_cycle = divmod(step, length // global_batch)
        start = step_in_cycle * global_batch + rank * batch_size
        places = [(cycle, start + j) for j in range(batch_size)]
    keys = {cycle: cycle_keys(length, seed, cycle) for cycle, _ in places}
    return [_cyclic(length, keys[cycle], x) for cycle, x in places]


def _words(seed, length, tag, position, attempt, per_block):
    block, ordinal = divmod(position, per_block)
    counter = (block & WORD, attempt, tag, block >> 64)
    return numpy_block(counter, (seed, length)), ordinal


def _uniform(length, seed, position):
    bits = 32 if length <= 2**32 else 64
    tag = TAG_IID32 if bits == 32 else TAG_IID64
    for attempt in range(10_000):
        words, ordinal = _words(seed, length, tag, position, attempt, 256 // bits)
        if bits == 32:
            words = [half for word in words for half in (word & HALF, word >> 32)]
        product = words[ordinal] * length
        if product % 2**bits >= 2**bits % length:
            return product >> bits
    raise AssertionError("no word was accepted")


def _weighted(table, length, seed, position):
    thresholds, aliases = table
    for attempt in range(10_000):
        words, ordinal = _words(seed, length, TAG_ALIAS, position, attempt, 2)
        product = words[2 * ordinal] * length
        if product % 2**64 >= 2**64 % length:
            column = product >> 64
            return column if words[2 * ordinal + 1] < thresholds[column] else aliases[column]
    raise AssertionError("no word was accepted")


def alias_table(weights):
    """Thresholds and aliases, in exact arithmetic."""
    exponent = math.frexp(max(weights))[1]
    scale = Fraction(2) ** (62 - exponent)
    integers = [max(1, math.floor(Fraction(w) * scale)) if w > 0 else 0 for w in weights]
    length, capacity = len(weights), sum(integers)
    masses = [length * integer for integer in integers]
    thresholds, aliases = [0] * length, list(range(length))
    small = [i for i in range(length) if masses[i] < capacity][::-1]
    large = [i for i in range(length) if masses[i] > capacity]
    while small:
        column, donor = small.pop(), large[0]
        thresholds[column] = masses[column] * 2**64 // capacity
        aliases[column] = donor
        masses[donor] -= capacity - masses[column]
        if masses[donor] <= capacity:
            large.pop(0)
        if masses[donor] < capacity:
            small.append(donor)
    return thresholds, aliases


def grid(length):
    """Rows and columns."""
    rows = math.isqrt(length - 1) + 1
    return rows, -(-length // rows)


def round_count(length):
    return 24 if length < 1024 else 8


def cycle_keys(length, seed, cycle):
    """Round keys as pairs, and the swap bit."""
    rounds = round_count(length)
    words = []
    while len(words) <= rounds:
        counter = (len(words) // 4, cycle & WORD, cycle >> 64, length)
        words += numpy_block(counter, (seed, TAG_CYCLE))
    return [(word & HALF, word >> 32) for word in words[:rounds]], words[rounds] & 1


def _hash(x, key):
    h = (x ^ key[0]) * 0x85EBCA6B & HALF
    h ^= h >> 16
    h = (h + key[1]) * 0xC2B2AE35 & HALF
    return h ^ h >> 15


def _cyclic(length, keys, x):
    rows, columns = grid(length)
    keys, swap = keys
    if length > 1 and x < 2:
        x ^= swap
    while True:
        left, right = divmod(x, columns)
        for t in range(0, len(keys), 2):
            left = (left + (_hash(right, keys[t]) * rows >> 32)) % rows
            right = (right + (_hash(left, keys[t + 1]) * columns >> 32)) % columns
        x = left * columns + right
        if x < length:
            return x


# Whole arrays


def _multiply_high(a, b):
    half, shift = np.uint64(HALF), np.uint64(32)
    a_low, a_high, b_low, b_high = a & half, a >> shift, b & half, b >> shift
    middle = a_high * b_low + (a_low * b_low >> shift)
    other = a_low * b_high + (middle & half)
    return a_high * b_high + (middle >> shift) + (other >> shift)


def philox(counter, key, rounds=10):
    """Four arrays of words; the parts of counter and key are broadcast."""
    c = [np.asarray(part, np.uint64) for part in counter]
    k = [np.asarray(part, np.uint64) for part in key]
    c = list(np.broadcast_arrays(*c, *k))[:4]
    multipliers = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
    steps = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
    with np.errstate(over="ignore"):
        for _ in range(rounds):
            high0, low0 = _multiply_high(c[0], multipliers[0]), c[0] * multipliers[0]
            high1, low1 = _multiply_high(c[2], multipliers[1]), c[2] * multipliers[1]
            c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
            k = [k[0] + steps[0], k[1] + steps[1]]
    return c


def _array_keys(length, seeds, cycles, rounds):
    """Key halves of shape (rounds, len(cycles), 1), and swap bits."""
    full_rounds = round_count(length)
    words = []
    for block in range(full_rounds // 4 + 1):
        words += philox((block, cycles, 0, length), (seeds, TAG_CYCLE))
    words = np.array(words[: full_rounds + 1])[:, :, None]
    keys = words & np.uint64(HALF), words >> np.uint64(32)
    return keys[0][:rounds], keys[1][:rounds], words[full_rounds] & np.uint64(1)


def _array_hash(x, k1, k2):
    half = np.uint64(HALF)
    h = (x ^ k1) * np.uint64(0x85EBCA6B) & half
    h ^= h >> np.uint64(16)
    h = ((h + k2) & half) * np.uint64(0xC2B2AE35) & half
    return h ^ h >> np.uint64(15)


def permute(length, seeds, cycles, positions=None, *, rounds=None, swap=True, walk=True):
    """Images of `positions` (default: all) in each cycle: shape (len(cycles), len(positions)).

    `seeds` is one number, or one a cycle. Fewer `rounds` use the first keys only.
    """
    rounds = round_count(length) if rounds is None else rounds
    cycles = np.asarray(cycles, np.uint64)
    x = np.arange(length, dtype=np.uint64) if positions is None else np.asarray(positions)
    x = np.broadcast_to(x.astype(np.uint64), (len(cycles), len(x))).copy()
    k1, k2, swap_bits = _array_keys(length, seeds, cycles, rounds)
    if swap and length > 1:
        x ^= swap_bits * (x < 2)
    result = np.empty_like(x)
    rows, columns = (np.uint64(side) for side in grid(length))
    shift = np.uint64(32)
    pending = np.ones(x.shape, bool)
    while pending.any():
        at = np.nonzero(pending)
        left, right = np.divmod(x[at], columns)
        for t in range(0, rounds, 2):
            h = _array_hash(right, k1[t, at[0], 0], k2[t, at[0], 0])
            left = (left + (h * rows >> shift)) % rows
            h = _array_hash(left, k1[t + 1, at[0], 0], k2[t + 1, at[0], 0])
            right = (right + (h * columns >> shift)) % columns
        x[at] = left * columns + right
        result[at] = x[at]
        pending = (x >= np.uint64(length)) & walk
    return result


def invert(length, seed, cycle, images):
    """The positions whose images are given."""
    k1, k2, swap_bits = _array_keys(length, seed, np.array([cycle], np.uint64), round_count(length))
    rows, columns = (np.uint64(side) for side in grid(length))
    shift = np.uint64(32)
    x = np.array(images, np.uint64)
    pending = np.ones(x.shape, bool)
    while pending.any():
        left, right = np.divmod(x[pending], columns)
        for t in range(len(k1) - 2, -1, -2):
            h = _array_hash(left, k1[t + 1, 0, 0], k2[t + 1, 0, 0])
            right = (right + columns - (h * columns >> shift)) % columns
            h = _array_hash(right, k1[t, 0, 0], k2[t, 0, 0])
            left = (left + rows - (h * rows >> shift)) % rows
        x[pending] = left * columns + right
        pending = x >= np.uint64(length)
    if length > 1:
        x ^= swap_bits[0] * (x < 2)
    return x
