"""grain: a shuffled, repeated and batched dataset over the mapped .npy file, read by threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from harness import Contender, EndlessContender


class _Source:
    """What grain reads from: a length, and a record for an index."""

    def __init__(self, setting: Any) -> None:
        self.records = np.load(setting.source, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(self.records[index])


def loader_contenders(setting: Any) -> Iterator[Contender]:
    """Shuffle with each number of reading threads."""
    if setting.codec != "raw":
        return
    for workers in setting.workers:
        dataset = grain.MapDataset.source(_Source(setting)).seed(42).shuffle().repeat()
        if setting.transform_row is not None:
            dataset = dataset.map(setting.transform_row)
        options = grain.ReadOptions(
            num_threads=workers, prefetch_buffer_size=setting.prefetch if workers else 0
        )
        batches = dataset.batch(setting.batch, drop_remainder=True).to_iter_dataset(options)
        yield EndlessContender(
            f"grain, {workers} threads", iter(batches), lambda batch: batch,
            setting.prefetch + workers if workers else 0,
        )  # fmt: skip
