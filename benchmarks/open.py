"""Question: how long opening a large store takes that was closed.

python open.py [--only zrecord]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from data import plans, size_name
from harness import check_array, question


@dataclass
class Setting:
    """What a contender builds from: one int64 a record, mapped from the .npy file at `source`."""

    folder: Path
    source: Path
    records: np.ndarray


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure opening ten million records of eight bytes."""
    with question("open", arguments) as run:
        smoke = run.options.smoke
        count = 10_000 if smoke else 10_000_000
        records = np.arange(count, dtype=np.int64) * 7 - 3
        source = run.options.folder / f"numbers-{count}.npy"
        np.save(source, records)
        run.measure(
            f"{count} records of {size_name(8)}",
            Setting(run.options.folder, source, records),
            plans(count, 256, 3 if smoke else 50),
            lambda result, plan: check_array(result, records[plan]),
            {"records": count, "bytes": 0},
        )


if __name__ == "__main__":
    main()
