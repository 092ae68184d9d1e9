"""A plain file: the same bytes by os.pwritev, or by os.write where that is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from harness import Contender


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Write each part by one call."""
    if setting.codec == "raw":
        yield _Write(setting)


class _Write(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("os.pwritev" if hasattr(os, "pwritev") else "os.write")
        self.records = setting.records
        self.path = setting.folder / "plain"

    def _write(self, plans: Sequence[slice]) -> float:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0))
        try:
            end = 0
            begin = perf_counter()
            for plan in plans:
                rest = memoryview(self.records[plan]).cast("B")
                while rest:
                    if hasattr(os, "pwritev"):
                        done = os.pwritev(file, [rest], end)
                    else:
                        done = os.write(file, rest)
                    end += done
                    rest = rest[done:]
            return perf_counter() - begin
        finally:
            os.close(file)

    def __call__(self, plan: slice) -> np.ndarray:
        self._write([plan])
        shape = (-1, *self.records.shape[1:])
        return np.fromfile(self.path, self.records.dtype).reshape(shape)

    def seconds(self, plans: Sequence[slice]) -> float:
        seconds = self._write(plans)
        self.path.unlink()
        return seconds
