"""ArrayRecord: groups of one record, and the options that it documents for random access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from harness import Contender

READING = "readahead_buffer_size:0,max_parallelism:0"


def _writing(codec: str) -> str:
    return "group_size:1," + ("zstd:3" if codec == "zstd" else "uncompressed")


def _fill(path: Path, records: Any, codec: str) -> None:
    writer = ArrayRecordWriter(str(path), _writing(codec))
    for record in records:
        writer.write(record.tobytes())
    writer.close()


class _Read(Contender):
    def __init__(self, name: str, path: Path, dtype: Any, shape: tuple[int, ...] | None) -> None:
        super().__init__(name)
        self.reader = ArrayRecordReader(str(path), READING)
        self.dtype = dtype
        self.shape = shape

    def __call__(self, plan: np.ndarray) -> Any:
        values = self.reader.read(plan.tolist())
        if self.shape is None:
            return [np.frombuffer(value, self.dtype).copy() for value in values]
        joined = np.frombuffer(bytearray().join(values), self.dtype)
        return joined.reshape(len(plan), *self.shape)

    def close(self) -> None:
        self.reader.close()


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Read a list of indices and join the values."""
    path = setting.folder / "records.array_record"
    records = setting.records
    if not path.exists():
        _fill(path, np.asarray(records), setting.codec)
    yield _Read("array-record", path, records.dtype, records.shape[1:])


def ragged_contenders(setting: Any) -> Iterator[Contender]:
    """Read a list of indices and copy each value."""
    path = setting.folder / "records.array_record"
    if not path.exists():
        _fill(path, setting.records(), setting.codec)
    yield _Read("array-record, list", path, setting.values.dtype, None)


class _Append(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("array-record")
        self.setting = setting
        self.path = setting.folder / "records.array_record"

    def seconds(self, plans: Sequence[slice]) -> float:
        writer = ArrayRecordWriter(str(self.path), _writing(self.setting.codec))
        begin = perf_counter()
        for plan in plans:
            for record in self.setting.records[plan]:
                writer.write(record.tobytes())
        # Records wait in the writer until it is closed.
        writer.close()
        return perf_counter() - begin

    def __call__(self, plan: slice) -> np.ndarray:
        self.seconds([plan])
        records = self.setting.records[plan]
        reader = _Read("", self.path, records.dtype, records.shape[1:])
        result = reader(np.arange(len(records)))
        reader.close()
        return result


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Write record by record, and close."""
    yield _Append(setting)
