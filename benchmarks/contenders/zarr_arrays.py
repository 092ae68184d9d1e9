"""zarr: a chunk a record, or 64 KiB of small ones, read by its coordinate selection."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import zarr
from harness import Contender, NotRun
from zarr.codecs import ZstdCodec

# A file a chunk: with more of them than this the file system is measured.
CHUNKS_MAX = 20_000


def _create(path: Path, setting: Any, count: int) -> Any:
    shape = setting.records.shape[1:]
    rows = max(1, 2**16 // int(np.prod(shape)))
    if count // rows > CHUNKS_MAX:
        raise NotRun(f"{count // rows} chunks would be as many files")
    return zarr.create_array(
        path,
        shape=(count, *shape),
        chunks=(rows, *shape),
        dtype=setting.records.dtype,
        compressors=ZstdCodec(level=3) if setting.codec == "zstd" else None,
        overwrite=True,
    )


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Select rows by an index array."""
    path = setting.folder / "records.zarr"
    if not path.exists():
        _create(path, setting, len(setting.records))[:] = setting.records
    array = zarr.open_array(path, mode="r")
    yield Contender("zarr", lambda plan: np.asarray(array.oindex[plan]))


class _Append(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("zarr")
        self.setting = setting
        self.path = setting.folder / "records.zarr"

    def __call__(self, plan: slice) -> np.ndarray:
        array = _create(self.path, self.setting, 0)
        array.append(self.setting.records[plan])
        return np.asarray(array[:])

    def seconds(self, plans: Sequence[slice]) -> float:
        array = _create(self.path, self.setting, 0)
        begin = perf_counter()
        for plan in plans:
            array.append(self.setting.records[plan])
        seconds = perf_counter() - begin
        shutil.rmtree(self.path)
        return seconds


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Append each part to an array."""
    yield _Append(setting)
