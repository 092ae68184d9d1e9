"""Ours: loaderx's sampler, and its loader over a zrecord store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from data import row_numbers
from harness import Contender, EndlessContender, WrongResult
from loaderx import DataLoader, Sampler
from zrecord import DenseStore


class _Next(Contender):
    """Batch after batch by `next`, compared with the definition of each step by `at`."""

    def __init__(self, setting: Any) -> None:
        super().__init__("loaderx next")
        self.sampler = Sampler(setting.length, setting.batch, setting.mode, setting.seed)

    def __call__(self, step: int) -> np.ndarray:
        if self.sampler.tell() != step:
            self.sampler.seek(step)
        drawn = self.sampler.next()
        if not np.array_equal(drawn, self.sampler.at(step)):
            raise WrongResult(f"next() and at({step}) differ")
        return drawn

    def seconds(self, plans: Sequence[int]) -> float:
        draw = self.sampler.next
        begin = perf_counter()
        for _ in plans:
            batch = draw()  # noqa: F841
        return perf_counter() - begin


def sampler_contenders(setting: Any) -> Iterator[Contender]:
    """Draw by `next`, and by `at`."""
    yield _Next(setting)
    sampler = Sampler(setting.length, setting.batch, setting.mode, setting.seed)
    yield Contender("loaderx at", sampler.at)


def loader_contenders(setting: Any) -> Iterator[Contender]:
    """Load from a store, with each number of workers."""
    path = setting.folder / "zrecord"
    records = setting.records
    if not path.exists():
        with DenseStore(path, records.dtype, records.shape[1:], setting.codec) as store:
            store.append(records)

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": setting.transform(batch["x"])}

    for workers in setting.workers:
        store = DenseStore(path, mode="r")
        loader = DataLoader(
            {"x": store},
            workers,
            setting.batch,
            setting.prefetch,
            transform=transform if setting.transform else None,
        )
        sampler = Sampler(len(records), setting.batch)

        def rows(batch: Any, loader: Any = loader, sampler: Any = sampler) -> np.ndarray:
            step = loader.tell() - 1
            if not np.array_equal(row_numbers(batch["x"]), sampler.at(step).astype(np.int64)):
                raise WrongResult(f"step {step} has other records than the sampler says")
            return batch["x"]

        def stop(loader: Any = loader, store: Any = store) -> None:
            loader.close()
            store.close()

        ready = setting.prefetch + workers if workers else 0
        yield EndlessContender(f"loaderx, {workers} workers", loader, rows, ready, stop)
