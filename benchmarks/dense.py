"""Question: how fast random batches of records of one shape are.

python dense.py [--shape 512,512] [--batch 256] [--codec raw] [--only zrecord,numpy]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from data import dense_file, dense_rows, plan_count, plans, size_name
from harness import Run, check_array, question

# Record shapes in bytes: a row of features, a small image, an image of 512 x 512.
SHAPES = [(128,), (2048,), (512, 512)]


@dataclass
class Setting:
    """What a contender builds from: `records` is the mapped .npy file at `source`."""

    folder: Path
    source: Path
    records: np.ndarray
    codec: str
    batch: int
    smoke: bool


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each shape, raw and compressed."""
    with question("dense", arguments) as run:
        options = run.options
        for shape in options.shape or SHAPES:
            for codec in options.codec or ["raw", "zstd"]:
                batches = options.batch or [256]
                if options.batch is None and codec == "raw" and math.prod(shape) <= 128:
                    batches = [256, 8192]
                with run.folder(f"{'x'.join(map(str, shape))}-{codec}") as folder:
                    for batch in batches:
                        _measure(run, folder, shape, codec, batch)


def _measure(run: Run, folder: Path, shape: tuple[int, ...], codec: str, batch: int) -> None:
    smoke = run.options.smoke
    width = math.prod(shape)
    rows = dense_rows(width, smoke)
    source = dense_file(run.options.folder, rows, shape)
    records = np.load(source, mmap_mode="r")
    plain = np.asarray(records)
    batch = min(batch, rows) if smoke else batch
    chosen = plans(rows, batch, plan_count(batch * width, smoke))
    run.measure(
        f"{codec}, {size_name(width)}, batch {batch}",
        Setting(folder, source, records, codec, batch, smoke),
        chosen,
        lambda result, plan: check_array(result, plain[plan]),
        {"records": batch, "bytes": batch * width},
    )


if __name__ == "__main__":
    main()
