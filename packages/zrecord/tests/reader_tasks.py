"""What test_readers lets other processes do; importable, because spawned workers import it by name.

Records follow from their index, so that a reader knows what it must see and a writer that was
killed is continued by any other.
"""

from __future__ import annotations

import random

import numpy as np
from zrecord import DenseStore, RaggedStore

CODEC = {"dense": "raw", "ragged": "zstd"}


def make(kind: str, path: str, mode: str):
    if kind == "dense":
        return DenseStore(path, np.int64, (4,), CODEC[kind], mode=mode)
    return RaggedStore(path, np.int64, CODEC[kind], mode=mode)


def record(kind: str, index: int) -> np.ndarray:
    values = np.arange(index, index + 4, dtype=np.int64) * 7919
    if kind == "dense":
        return values
    rank = index % 4
    return values[: 2 if rank == 1 else 1 if rank == 0 else 4].reshape(
        [(), (2,), (2, 2), (1, 2, 2)][rank]
    )


def write(kind: str, path: str, total: int) -> None:
    """Append and sync until the store has `total` records, from wherever it stands."""
    with make(kind, path, "a") as store:
        while len(store) < total:
            first = len(store)
            last = min(total, first + 1 + first % 90)
            store.append(
                np.stack([record(kind, i) for i in range(first, last)])
                if kind == "dense"
                else (record(kind, i) for i in range(first, last))
            )
            if first % 3 != 1:
                store.sync()


def read(kind: str, path: str, total: int, seed: int) -> str:
    """Follow the store until it has `total` records; say what was wrong."""
    rng = random.Random(seed)
    seen = gathered = 0
    with make(kind, path, "r") as store:
        while seen < total:
            length = store.refresh()
            if length < seen:
                return f"the length fell from {seen} to {length}"
            seen = length
            if not seen:
                continue
            indices = [rng.randrange(seen) for _ in range(20)] + [seen - 1, -1]
            for index, got in zip(indices, store.gather(indices), strict=True):
                expected = record(kind, index % seen)
                if got.shape != expected.shape or got.tobytes() != expected.tobytes():
                    return f"record {index} of {seen} is {got!r}"
            gathered += len(indices)
        if not store.verify().ok:
            return "verify found damage"
    return "" if gathered else "nothing was read"
