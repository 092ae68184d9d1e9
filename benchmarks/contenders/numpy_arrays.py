"""numpy: a mapped .npy file, indexed as users write it and as numpy does it best; its generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from harness import Contender


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Index the memmap, and take from the plain array over the same mapping."""
    if setting.codec != "raw":
        return
    mapped = np.load(setting.source, mmap_mode="r")
    plain = np.asarray(mapped)
    out = np.empty((setting.batch, *plain.shape[1:]), plain.dtype)

    def fancy(plan: np.ndarray) -> np.ndarray:
        # A memmap gives a memmap; its content is in memory, and is compared as an array.
        return mapped[plan]

    yield Contender("numpy memmap", fancy)
    yield Contender("numpy take", lambda plan: np.take(plain, plan, axis=0))
    yield Contender(
        "numpy take out=", lambda plan: np.take(plain, plan, axis=0, out=out, mode="clip")
    )


def sampler_contenders(setting: Any) -> Iterator[Contender]:
    """Draw uint64 indices; or, where each index comes once a cycle, slice a permutation."""
    length, batch = setting.length, setting.batch
    rng = np.random.default_rng(setting.seed)
    if setting.mode == "iid":
        yield Contender(
            "numpy integers", lambda plan: rng.integers(0, length, batch, dtype=np.uint64)
        )
    else:
        yield _Permutation(setting, rng)


class _Permutation(Contender):
    """Shuffles all indices once a cycle and slices them; the cycle's cost is part of its time."""

    # A call shuffles a whole cycle for its one batch.
    checked_max = 32

    def __init__(self, setting: Any, rng: np.random.Generator) -> None:
        super().__init__("numpy permutation, sliced")
        self.setting = setting
        self.rng = rng

    def _cycle(self, count: int) -> list[np.ndarray]:
        batch, length = self.setting.batch, self.setting.length
        batches: list[np.ndarray] = []
        while len(batches) < count:
            order = self.rng.permutation(length).astype(np.uint64)
            starts = range(0, length - batch + 1, batch)[: count - len(batches)]
            batches += [order[start : start + batch] for start in starts]
        return batches

    def __call__(self, plan: Any) -> np.ndarray:
        return self._cycle(1)[0]

    def seconds(self, plans: Sequence[Any]) -> float:
        # Whole cycles only, so that each batch bears its share of the shuffle.
        steps = max(1, self.setting.length // self.setting.batch)
        count = -(-len(plans) // steps) * steps
        begin = perf_counter()
        self._cycle(count)
        return (perf_counter() - begin) * len(plans) / count


def open_contenders(setting: Any) -> Iterator[Contender]:
    """Map the .npy file."""
    yield _Open(setting)


class _Open(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("numpy memmap")
        self.source = setting.source

    def __call__(self, plan: np.ndarray) -> np.ndarray:
        return np.asarray(np.load(self.source, mmap_mode="r"))[plan]

    def seconds(self, plans: Sequence[Any]) -> float:
        total = 0.0
        for _ in plans:
            begin = perf_counter()
            mapped = np.load(self.source, mmap_mode="r")
            total += perf_counter() - begin
            del mapped
        return total
