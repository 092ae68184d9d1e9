"""The loader's own measurements."""

from __future__ import annotations

import time

import numpy as np
import pytest
from loaderx import DataLoader

KEYS = {
    "steps", "samples", "bytes", "wait_s", "gather_s", "transform_s", "ready", "starved",
    "bottleneck",
}  # fmt: skip


class Slow:
    dtype = np.dtype(np.int64)
    item_shape = ()

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 1000

    def gather(self, indices, out=None):
        time.sleep(self.seconds)
        return np.asarray(indices)


def rest(seconds):
    def transform(batch):
        time.sleep(seconds)
        return batch

    return transform


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_delivered(workers):
    x, y = np.zeros((100, 3), np.float32), np.zeros(100, np.uint8)
    with DataLoader({"x": x, "y": y}, workers, 10, 4) as loader:
        assert set(loader.stats()) == KEYS
        assert loader.stats()["steps"] == 0
        list(loader.take(7))
        stats = loader.stats()
    assert (stats["steps"], stats["samples"], stats["bytes"]) == (7, 70, 70 * 13)
    assert stats["gather_s"] > 0
    assert stats["transform_s"] == 0
    assert 0 <= stats["starved"] <= 7


def test_bytes_of_ragged_records_and_short_batches():
    class Ragged:
        dtype = np.dtype(np.int16)

        def __len__(self):
            return 25

        def gather(self, indices, out=None):
            return [np.zeros(i + 1, np.int16) for i in indices]

    with DataLoader({"r": Ragged()}, 2, 10) as loader:
        list(loader.once())
        stats = loader.stats()
    assert (stats["steps"], stats["samples"]) == (3, 25)
    assert stats["bytes"] == 2 * sum(range(1, 26))


def test_ready_is_bounded_and_reached():
    with DataLoader({"x": np.arange(100)}, 2, 10, 5) as loader:
        next(loader)
        deadline = time.monotonic() + 5
        while loader.stats()["ready"] < 5:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(0.01)
        assert loader.stats()["ready"] == 5


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("gather", "transform", "consumer", "bottleneck"),
    [(0.004, 0.0, 0.0, "gather"), (0.0, 0.004, 0.0, "transform"), (0.0, 0.0, 0.01, "consumer")],
)
def test_the_bottleneck_is_named(workers, gather, transform, consumer, bottleneck):
    with DataLoader({"x": Slow(gather)}, workers, 10, 2, transform=rest(transform)) as loader:
        for _ in loader.take(20):
            time.sleep(consumer)
        stats = loader.stats()
    assert stats["bottleneck"] == bottleneck
    if bottleneck != "consumer":
        assert stats[f"{bottleneck}_s"] >= 0.004 * 20
        assert stats["starved"] > 10


def test_a_failed_step_is_not_counted():
    def transform(batch, info):
        if info.step == 2:
            raise ValueError("bad")
        return batch

    with DataLoader({"x": np.arange(100)}, 1, 10, transform=transform) as loader:
        list(loader.take(2))
        for _ in range(3):
            with pytest.raises(ValueError, match="bad"):
                next(loader)
        assert loader.stats()["steps"] == 2
