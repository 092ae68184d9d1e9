"""Question: how fast the indices of the next batch are drawn.

python sampler.py [--batch 256] [--only loaderx,numpy]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import WrongResult, question

GROUPS = [
    ("iid", 1_000_000, 256),
    ("iid", 1_000_000, 8192),
    ("cyclic", 1_000_000, 256),
    ("cyclic", 1_000_000, 8192),
    ("cyclic", 1024, 256),
]


@dataclass
class Setting:
    """What is drawn: batches of indices below `length`."""

    folder: Path
    mode: str
    length: int
    batch: int
    seed: int = 42


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure drawing with replacement, and each index once a cycle."""
    with question("sampler", arguments) as run:
        for mode, length, batch in GROUPS:
            if run.options.batch and batch not in run.options.batch:
                continue
            steps = 100 if run.options.smoke else 20_000 if batch <= 256 else 2000
            run.measure(
                f"{mode}, {length} records, batch {batch}",
                Setting(run.options.folder, mode, length, batch),
                range(steps),
                _checker(mode, length, batch),
                {"records": batch, "bytes": 8 * batch},
            )


def _checker(mode: str, length: int, batch: int) -> Any:
    """Return the check of one batch: what holds for any correct sampler.

    The mean of uniform draws is within six standard deviations of the middle. Contenders that
    define each index are also compared with that definition, by their adapters.
    """
    deviation = length / (12 * batch) ** 0.5

    def check(got: Any, step: int) -> None:
        if not isinstance(got, np.ndarray) or got.dtype != np.uint64 or got.shape != (batch,):
            raise WrongResult(f"step {step}: expected {batch} indices of uint64, got {got!r:.200}")
        if int(got.max()) >= length:
            raise WrongResult(f"step {step}: index {got.max()} of {length}")
        if abs(float(got.mean()) - (length - 1) / 2) > 6 * deviation:
            raise WrongResult(f"step {step}: the mean index is {got.mean():.1f} of {length}")
        if mode == "cyclic" and len(np.unique(got)) != batch:
            raise WrongResult(f"step {step}: an index came twice")

    return check


if __name__ == "__main__":
    main()
