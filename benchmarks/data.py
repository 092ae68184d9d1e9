"""The source records and the random plans, the same for every contender and every run.

Dense records are bytes: a ramp over at most a quarter of their range with four bits of noise, so
that records of any size compress mildly, as images do. The first bytes of a record hold its number,
so that a loader's rows can be recognised.
Ragged records are int32 tokens: many small numbers and few large ones, of log-normal length.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

SEED = 20


def dense_file(folder: Path, rows: int, shape: tuple[int, ...]) -> Path:
    """Return the path of an .npy file of `rows` records of `shape` bytes, written if missing."""
    path = folder / f"dense-{rows}-{'x'.join(map(str, shape))}.npy"
    if path.exists():
        return path
    width = math.prod(shape)
    target = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, *shape))
    flat = target.reshape(rows, width)
    rng = np.random.default_rng(SEED)
    steps = min(64, max(1, width // 32))
    ramp = (np.arange(width) * steps // width).astype(np.uint8)
    step = max(1, 2**24 // width)
    for start in range(0, rows, step):
        part = flat[start : start + step]
        part[:] = rng.integers(0, 16, part.shape, dtype=np.uint8)
        part += ramp
        numbers = np.arange(start, start + len(part), dtype="<u8").view(np.uint8).reshape(-1, 8)
        part[:, : min(8, width)] = numbers[:, : min(8, width)]
    target.flush()
    return path


def dense_rows(width: int, smoke: bool) -> int:
    """Return how many records do not fit into a processor's cache: 600 MiB, at most a million."""
    size, most = (2**20, 4096) if smoke else (600 * 2**20, 1_000_000)
    return max(16, min(most, size // width))


def row_numbers(rows: np.ndarray) -> np.ndarray:
    """Return the number of each record, out of its first bytes."""
    flat = rows.reshape(len(rows), -1)
    return np.ascontiguousarray(flat[:, :8]).view("<u8").ravel().astype(np.int64)


def ragged_tokens(smoke: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 values and int64 offsets of records of 16 to 2048 tokens, median about 253."""
    rng = np.random.default_rng(SEED)
    count = 2000 if smoke else 200_000
    lengths = np.clip(rng.lognormal(np.log(253), 0.8, count), 16, 2048).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.exp(rng.random(int(offsets[-1]), np.float32) * np.float32(np.log(50_000)))
    return values.astype(np.int32), offsets


def plans(length: int, batch: int, count: int) -> list[np.ndarray]:
    """Return the indices of `count` batches: uniform, with replacement, int64."""
    rng = np.random.default_rng(SEED + 1)
    return [rng.integers(0, length, batch) for _ in range(count)]


def plan_count(batch_bytes: int, smoke: bool) -> int:
    """Return how many batches touch far more than a cache holds: 3000 small ones, or 640 MiB."""
    return 3 if smoke else max(8, min(3000, 640 * 2**20 // batch_bytes))


def size_name(size: int) -> str:
    """Return a number of bytes in its largest whole unit."""
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"
