"""The finite pass over all records, as ranks share it: `DataLoader.once` and `Sampler.epoch`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Cover:
    """One rank's share of a finite pass over every record, in ascending order, each exactly once.

    Full global batches are split as the sampler splits them. The last one is split evenly in rank
    order: sizes differ by one at most, so that every rank has the same number of batches.
    """

    def __init__(self, length: int, batch_size: int, rank: int, world_size: int) -> None:
        self._batch_size = batch_size
        self._rank = rank
        self._world_size = world_size
        self._full, self._rest = divmod(length, batch_size * world_size)
        self.steps = self._full + (self._rest > 0)

    def _bounds(self, step: int) -> tuple[int, int]:
        first = step * self._batch_size * self._world_size
        if step < self._full:
            start = first + self._rank * self._batch_size
            return start, start + self._batch_size
        share, longer = divmod(self._rest, self._world_size)
        start = first + self._rank * share + min(self._rank, longer)
        return start, start + share + (self._rank < longer)

    def indices(self, step: int) -> npt.NDArray[np.uint64]:
        """Return the records of the step."""
        return np.arange(*self._bounds(step), dtype=np.uint64)

    def position(self, step: int) -> int:
        """Return the first record of the step."""
        return self._bounds(step)[0]
