"""Question: how fast batches come from the whole pipeline: draw, gather, transform, hand over.

    python loader.py [--shape 3072] [--workers 0 --workers 2] [--transform augment]

Each loader shuffles in its own way, so a batch is checked by the numbers that its rows begin with.
A block is timed when the batches that were ready before it are gone, and while no other loader
works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from data import dense_file, dense_rows, plan_count, row_numbers, size_name
from harness import Run, WrongResult, check_array, question

SHAPES = [(3072,), (512, 512)]
PREFETCH = 4
# A block is much longer than what may be ready when it begins.
ROUND_SECONDS = 1.0
BATCHES_MIN = 64


@dataclass
class Setting:
    """What a loader reads: `records` is the mapped .npy file at `source`.

    `transform` changes a whole batch, `transform_row` one row in the same way.
    """

    folder: Path
    source: Path
    records: np.ndarray
    codec: str
    batch: int
    workers: list[int]
    prefetch: int
    augments: bool
    transform: Callable[[np.ndarray], np.ndarray] | None
    transform_row: Callable[[np.ndarray], np.ndarray] | None


def augment_row(row: np.ndarray) -> np.ndarray:
    """Mirror a record behind its number and brighten it: work in Python, some for each record."""
    flat = row.reshape(-1)
    changed = flat.copy()
    changed[8:] = flat[:7:-1]
    changed[8:] += np.uint8(int(flat[0]) % 7)
    return changed.reshape(row.shape)


def augment(rows: np.ndarray) -> np.ndarray:
    """Change each record of a batch by `augment_row`, one after the other."""
    changed = np.empty_like(rows)
    for position, row in enumerate(rows):
        changed[position] = augment_row(row)
    return changed


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure small rows and batches of 64 MiB."""
    with question("loader", arguments) as run:
        for shape in run.options.shape or SHAPES:
            for codec in run.options.codec or ["raw", "zstd"]:
                _measure(run, shape, codec)


def _measure(run: Run, shape: tuple[int, ...], codec: str) -> None:
    options = run.options
    width = math.prod(shape)
    rows = dense_rows(width, options.smoke)
    batch = (options.batch or [256])[0]
    if options.smoke:
        batch = min(batch, rows // 2)
    source = dense_file(options.folder, rows, shape)
    records = np.load(source, mmap_mode="r")
    augments = options.transform == "augment"
    least = 3 if options.smoke else BATCHES_MIN
    with run.folder(f"{source.stem}-{codec}") as folder:
        setting = Setting(
            folder, source, records, codec, batch, options.workers or [0, 1, 2], PREFETCH, augments,
            augment if augments else None, augment_row if augments else None,
        )  # fmt: skip
        run.measure(
            f"{codec}, {size_name(width)}, batch {batch}, {options.transform}",
            setting,
            range(max(least, plan_count(batch * width, options.smoke))),
            lambda result, _: _check(result, np.asarray(records), setting),
            {"records": batch, "bytes": batch * width},
            ROUND_SECONDS,
        )


def _check(result: Any, records: np.ndarray, setting: Setting) -> None:
    shape = (setting.batch, *records.shape[1:])
    if not isinstance(result, np.ndarray) or result.dtype != np.uint8 or result.shape != shape:
        raise WrongResult(f"expected bytes of shape {shape}, got {type(result).__name__}")
    numbers = row_numbers(result)
    if int(numbers.max()) >= len(records) or int(numbers.min()) < 0:
        raise WrongResult("a row begins with a number that no record has")
    expected = records[numbers]
    check_array(result, augment(expected) if setting.augments else expected)
    if len(np.unique(numbers)) < setting.batch // 2:
        raise WrongResult("most rows of a batch are the same")


if __name__ == "__main__":
    main()
