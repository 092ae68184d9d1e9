"""Question: how fast new records arrive in the page cache.

A round appends parts of 64 MiB to a new store. Making the store and making it durable is not timed.

    python append.py [--shape 512,512] [--codec raw]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from data import dense_file, size_name
from harness import Run, check_array, question

SHAPES = [(128,), (2048,), (512, 512)]
PART_SIZE = 64 * 2**20
PARTS = 2


@dataclass
class Setting:
    """What a contender appends: slices of `records`, which are in memory."""

    folder: Path
    records: np.ndarray
    codec: str
    width: int
    with_dictionary: bool
    smoke: bool


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each shape, raw and compressed."""
    with question("append", arguments) as run:
        for shape in run.options.shape or SHAPES:
            for codec in run.options.codec or ["raw", "zstd"]:
                _measure(run, shape, codec)


def _measure(run: Run, shape: tuple[int, ...], codec: str) -> None:
    smoke = run.options.smoke
    width = math.prod(shape)
    # Small records come in smaller parts: their number is what takes the time.
    size = 2**20 if smoke else min(PART_SIZE, 2**17 * width)
    count = max(4, size // width)
    source = dense_file(run.options.folder, count * PARTS, shape)
    records = np.load(source)
    with run.folder(f"{source.stem}-append-{codec}") as folder:
        run.measure(
            f"{codec}, {size_name(width)}, parts of {size_name(count * width)}",
            Setting(folder, records, codec, width, width == 2048, smoke),
            [slice(count * part, count * (part + 1)) for part in range(PARTS)],
            lambda result, plan: check_array(result, records[plan]),
            {"records": count, "bytes": count * width},
        )


if __name__ == "__main__":
    main()
