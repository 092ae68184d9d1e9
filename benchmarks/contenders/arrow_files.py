"""Arrow IPC: a file of one record batch, mapped, read by `take`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from harness import Contender


def _column(values: np.ndarray, offsets: np.ndarray) -> Any:
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))


def _fixed(records: np.ndarray) -> Any:
    width = int(np.prod(records.shape[1:]))
    buffer = pa.py_buffer(np.ascontiguousarray(records))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(records), [None, buffer])


def _write(path: Path, columns: Iterator[Any], kind: Any, codec: str) -> float:
    options = pa.ipc.IpcWriteOptions(compression="zstd" if codec == "zstd" else None)
    schema = pa.schema([("records", kind)])
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, schema, options=options) as writer,
    ):
        begin = perf_counter()
        for column in columns:
            writer.write_batch(pa.record_batch([column], schema=schema))
        return perf_counter() - begin


def _read(path: Path) -> Any:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()["records"]


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Take from a column of fixed size."""
    if setting.codec != "raw":
        return
    path = setting.folder / "records.arrow"
    records = setting.records
    if not path.exists():
        column = _fixed(np.asarray(records))
        _write(path, iter([column]), column.type, "raw")
    column = _read(path).chunk(0)
    shape = records.shape[1:]
    width = int(np.prod(shape))

    def gather(plan: np.ndarray) -> np.ndarray:
        taken = column.take(pa.array(plan))
        array = np.frombuffer(taken.buffers()[1], np.uint8)[: len(plan) * width]
        return array.reshape(len(plan), *shape)

    yield Contender("arrow take", gather)


def ragged_contenders(setting: Any) -> Iterator[Contender]:
    """Take from a column of lists, and slice what was taken."""
    if setting.codec != "raw":
        return
    path = setting.folder / "records.arrow"
    if not path.exists():
        column = _column(setting.values, setting.offsets)
        _write(path, iter([column]), column.type, "raw")
    column = _read(path).chunk(0)

    def gather(plan: np.ndarray) -> list[np.ndarray]:
        taken = column.take(pa.array(plan))
        values = taken.values.to_numpy()
        ends = taken.offsets.to_numpy().tolist()
        return [values[a:b] for a, b in pairwise(ends)]

    yield Contender("arrow take, list", gather)


class _Append(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("arrow")
        self.setting = setting
        self.path = setting.folder / "records.arrow"

    def seconds(self, plans: Sequence[slice]) -> float:
        columns = (_fixed(self.setting.records[plan]) for plan in plans)
        return _write(self.path, columns, pa.binary(self.setting.width), self.setting.codec)

    def __call__(self, plan: slice) -> np.ndarray:
        self.seconds([plan])
        records = self.setting.records[plan]
        read = np.frombuffer(_read(self.path).chunk(0).buffers()[1], np.uint8)
        return read[: records.size].reshape(records.shape)


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Write a record batch a part; compressed, a part is one frame."""
    yield _Append(setting)


class _Open(Contender):
    def __init__(self, path: Path) -> None:
        super().__init__("arrow")
        self.path = path

    def __call__(self, plan: np.ndarray) -> np.ndarray:
        return _read(self.path).chunk(0).to_numpy()[plan]

    def seconds(self, plans: Sequence[Any]) -> float:
        total = 0.0
        for _ in plans:
            begin = perf_counter()
            column = _read(self.path)
            total += perf_counter() - begin
            del column
        return total


def open_contenders(setting: Any) -> Iterator[Contender]:
    """Map a file and read its footer."""
    path = setting.folder / "records.arrow"
    column = pa.array(setting.records)
    _write(path, iter([column]), column.type, "raw")
    yield _Open(path)
