"""Question: how fast random batches of records of different lengths are.

python ragged.py [--codec raw] [--only zrecord,packed]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from data import plans, ragged_tokens
from harness import WrongResult, check_array, check_list, question


@dataclass
class Setting:
    """What a contender builds from: record i is ``values[offsets[i]:offsets[i + 1]]``."""

    folder: Path
    values: np.ndarray
    offsets: np.ndarray
    codec: str

    def records(self) -> list[np.ndarray]:
        """Return all records as views."""
        ends = self.offsets.tolist()
        return [self.values[a:b] for a, b in pairwise(ends)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a raw store and a compressed one."""
    with question("ragged", arguments) as run:
        options = run.options
        values, offsets = ragged_tokens(options.smoke)
        count = len(offsets) - 1
        ends = offsets.tolist()
        mean = int(values.nbytes / count)
        for batch in options.batch or [256]:
            chosen = plans(count, batch, 3 if options.smoke else 1500)
            for codec in options.codec or ["raw", "zstd"]:
                with run.folder(f"ragged-{codec}") as folder:
                    run.measure(
                        f"{codec}, int32 tokens, batch {batch}",
                        Setting(folder, values, offsets, codec),
                        chosen,
                        lambda result, plan: _check(result, values, ends, plan),
                        {"records": batch, "bytes": batch * mean},
                    )


def _check(result: Any, values: np.ndarray, ends: list[int], plan: np.ndarray) -> None:
    """Check a list of records, or a packed batch."""
    expected = [values[ends[i] : ends[i + 1]] for i in plan.tolist()]
    if isinstance(result, list):
        check_list(result, expected)
        return
    for part in ("values", "offsets", "shapes"):
        if not hasattr(result, part):
            raise WrongResult(f"a packed batch has {part}, got {type(result).__name__}")
    check_array(result.values, np.concatenate(expected))
    lengths = [len(record) for record in expected]
    check_array(result.offsets, np.concatenate([[0], np.cumsum(lengths)]))
    if result.shapes != [(length,) for length in lengths]:
        raise WrongResult("other shapes")


if __name__ == "__main__":
    main()
