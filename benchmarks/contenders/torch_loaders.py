"""torch's DataLoader over the mapped .npy file: an item at a time, and a batch at a time.

The samplers go on for ever, so that no worker is started anew at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from harness import Contender, EndlessContender
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

_EPOCHS = 10**6


class _Items(Dataset):
    """One record an index: the default collation stacks them."""

    def __init__(self, setting: Any) -> None:
        self.records = np.load(setting.source, mmap_mode="r")
        self.transform = setting.transform_row

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        row = self.records[index]
        return np.asarray(row) if self.transform is None else self.transform(row)


class _Batches(_Items):
    """One batch a list of indices."""

    def __init__(self, setting: Any) -> None:
        super().__init__(setting)
        self.records = np.asarray(self.records)
        self.transform = setting.transform

    def __getitem__(self, indices: list[int]) -> Any:
        rows = np.take(self.records, indices, axis=0)
        return torch.from_numpy(rows if self.transform is None else self.transform(rows))


def loader_contenders(setting: Any) -> Iterator[Contender]:
    """Shuffle with each number of worker processes."""
    if setting.codec != "raw":
        return
    for workers in setting.workers:
        yield _contender(f"torch per item, {workers} workers", _Items(setting), setting, workers)
    for workers in setting.workers:
        name = f"torch BatchSampler, {workers} workers"
        yield _contender(name, _Batches(setting), setting, workers)


def _contender(name: str, dataset: _Items, setting: Any, workers: int) -> Contender:
    sampler: Any = RandomSampler(dataset, num_samples=len(dataset) * _EPOCHS)
    options: dict[str, Any] = {"num_workers": workers}
    if workers:
        options["prefetch_factor"] = 2
    if isinstance(dataset, _Batches):
        options |= {"sampler": BatchSampler(sampler, setting.batch, True), "batch_size": None}
    else:
        options |= {"sampler": sampler, "batch_size": setting.batch, "drop_last": True}
    # Worker processes end when the iterator is dropped.
    kept = [iter(DataLoader(dataset, **options))]

    def batches() -> Iterator[Any]:
        while kept:
            yield next(kept[0])

    ready = 2 * workers + workers
    return EndlessContender(name, batches(), lambda batch: batch.numpy(), ready, kept.clear)
