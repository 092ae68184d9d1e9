"""bagz: record offsets cached in memory, all records of a batch in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import bagz
import numpy as np
from harness import Contender


def _writer(path: Path, codec: str) -> Any:
    compression = bagz.CompressionZstd(level=3) if codec == "zstd" else bagz.CompressionNone()
    return bagz.Writer(str(path), bagz.Writer.Options(compression=compression))


class _Read(Contender):
    def __init__(
        self, name: str, path: Path, codec: str, dtype: Any, shape: tuple[int, ...] | None
    ) -> None:
        super().__init__(name)
        decompression = bagz.CompressionZstd() if codec == "zstd" else bagz.CompressionNone()
        options = bagz.Reader.Options(
            compression=decompression, limits_storage=bagz.LimitsStorage.IN_MEMORY
        )
        self.reader = bagz.Reader(str(path), options)
        self.dtype = dtype
        self.shape = shape

    def __call__(self, plan: np.ndarray) -> Any:
        values = self.reader.read_indices(plan)
        if self.shape is None:
            return [np.frombuffer(value, self.dtype).copy() for value in values]
        joined = np.frombuffer(bytearray().join(values), self.dtype)
        return joined.reshape(len(plan), *self.shape)


def _fill(path: Path, records: Any, codec: str) -> None:
    with _writer(path, codec) as writer:
        for record in records:
            writer.write(record.tobytes())


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Read an array of indices and join the values."""
    path = setting.folder / "records.bagz"
    records = setting.records
    if not path.exists():
        _fill(path, np.asarray(records), setting.codec)
    yield _Read("bagz", path, setting.codec, records.dtype, records.shape[1:])


def ragged_contenders(setting: Any) -> Iterator[Contender]:
    """Read an array of indices and copy each value."""
    path = setting.folder / "records.bagz"
    if not path.exists():
        _fill(path, setting.records(), setting.codec)
    yield _Read("bagz, list", path, setting.codec, setting.values.dtype, None)


class _Append(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("bagz")
        self.setting = setting
        self.path = setting.folder / "records.bagz"

    def seconds(self, plans: Sequence[slice]) -> float:
        writer = _writer(self.path, self.setting.codec)
        begin = perf_counter()
        for plan in plans:
            for record in self.setting.records[plan]:
                writer.write(record.tobytes())
        writer.close()
        return perf_counter() - begin

    def __call__(self, plan: slice) -> np.ndarray:
        self.seconds([plan])
        records = self.setting.records[plan]
        read = _Read("", self.path, self.setting.codec, records.dtype, records.shape[1:])
        return read(np.arange(len(records)))


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Write record by record, and close."""
    yield _Append(setting)
