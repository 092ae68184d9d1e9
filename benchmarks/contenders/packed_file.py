"""A packed file with offsets: all values one behind the other, and where each record begins.

It has no compression, no shapes and no way to append safely: the least that a list of records
takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import Contender


def ragged_contenders(setting: Any) -> Iterator[Contender]:
    """Copy each record out of the mapped values, in a loop."""
    if setting.codec != "raw":
        return
    path = setting.folder / "values.npy"
    np.save(path, setting.values)
    # A plain array over the mapping: slicing a memmap object costs several times as much.
    values = np.asarray(np.load(path, mmap_mode="r"))
    ends = setting.offsets.tolist()

    def gather(plan: np.ndarray) -> list[np.ndarray]:
        return [values[ends[i] : ends[i + 1]].copy() for i in plan.tolist()]

    yield Contender("packed file, loop", gather)
