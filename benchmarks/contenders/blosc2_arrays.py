"""blosc2: an array on disk whose blocks are single records, or 16 KiB of small ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import blosc2
import numpy as np
from harness import Contender


def _options(setting: Any, path: Path) -> dict[str, Any]:
    shape = setting.records.shape[1:]
    width = int(np.prod(shape))
    level = 3 if setting.codec == "zstd" else 0
    return {
        "urlpath": str(path),
        "mode": "w",
        "chunks": (max(1, 2**20 // width), *shape),
        "blocks": (max(1, 2**14 // width), *shape),
        "cparams": blosc2.CParams(codec=blosc2.Codec.ZSTD, clevel=level),
    }


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Index an array."""
    path = setting.folder / "records.b2nd"
    if not path.exists():
        blosc2.asarray(np.asarray(setting.records), **_options(setting, path))
    array = blosc2.open(str(path), mode="r")
    yield Contender("blosc2", lambda plan: array[plan])


class _Append(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("blosc2")
        self.setting = setting
        self.path = setting.folder / "records.b2nd"

    def _write(self, plans: Sequence[slice]) -> tuple[float, Any]:
        records = self.setting.records
        array = blosc2.empty((0, *records.shape[1:]), np.uint8, **_options(self.setting, self.path))
        begin = perf_counter()
        for plan in plans:
            part = records[plan]
            start = array.shape[0]
            array.resize((start + len(part), *records.shape[1:]))
            array[start:] = part
        return perf_counter() - begin, array

    def __call__(self, plan: slice) -> np.ndarray:
        return self._write([plan])[1][:]

    def seconds(self, plans: Sequence[slice]) -> float:
        seconds, _ = self._write(plans)
        self.path.unlink()
        return seconds


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Extend an array by each part."""
    yield _Append(setting)
