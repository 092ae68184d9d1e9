"""LMDB: a record's number is its key; values are copied out of the mapping."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import lmdb
import numpy as np
from harness import Contender

# Big-endian, so that the order of the bytes is the order of the numbers.
_KEY = struct.Struct(">Q")


def _open(path: Path, **options: Any) -> Any:
    return lmdb.open(str(path), map_size=2**36, subdir=True, lock=False, **options)


def _fill(path: Path, records: Any) -> None:
    """Append values in the order of their keys, which is the fast way to load LMDB."""
    environment = _open(path, sync=False)
    with environment.begin(write=True) as transaction:
        for number, record in enumerate(records):
            transaction.put(_KEY.pack(number), record.data, append=True)
    environment.close()


class _Get(Contender):
    """One transaction with buffers, and one get a record."""

    def __init__(self, name: str, path: Path, read: Callable[[Any, np.ndarray], Any]) -> None:
        super().__init__(name)
        self.environment = _open(path, readonly=True, readahead=True)
        self.read = read

    def __call__(self, plan: np.ndarray) -> Any:
        pack = _KEY.pack
        with self.environment.begin(buffers=True) as transaction:
            get = transaction.get
            return self.read([get(pack(i)) for i in plan.tolist()], plan)

    def close(self) -> None:
        self.environment.close()


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Get each value and join them."""
    if setting.codec != "raw":
        return
    path = setting.folder / "lmdb"
    records = setting.records
    if not path.exists():
        _fill(path, np.asarray(records))
    shape = records.shape[1:]

    def read(values: list[Any], plan: np.ndarray) -> np.ndarray:
        return np.frombuffer(bytearray().join(values), records.dtype).reshape(len(plan), *shape)

    yield _Get("lmdb", path, read)


def ragged_contenders(setting: Any) -> Iterator[Contender]:
    """Get each value and copy it."""
    if setting.codec != "raw":
        return
    path = setting.folder / "lmdb"
    if not path.exists():
        _fill(path, setting.records())
    dtype = setting.values.dtype

    def read(values: list[Any], plan: np.ndarray) -> list[np.ndarray]:
        return [np.frombuffer(value, dtype).copy() for value in values]

    yield _Get("lmdb, list", path, read)


class _Append(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("lmdb")
        self.setting = setting
        self.path = setting.folder / "lmdb"

    def _write(self, plans: Sequence[slice]) -> float:
        shutil.rmtree(self.path, ignore_errors=True)
        environment = _open(self.path, sync=False)
        pack = _KEY.pack
        number = 0
        begin = perf_counter()
        for plan in plans:
            with environment.begin(write=True) as transaction:
                for record in self.setting.records[plan]:
                    transaction.put(pack(number), record.data, append=True)
                    number += 1
        seconds = perf_counter() - begin
        environment.close()
        return seconds

    def __call__(self, plan: slice) -> np.ndarray:
        self._write([plan])
        records = self.setting.records[plan]
        get = _Get("", self.path, lambda values, _: b"".join(values))
        joined = get(np.arange(len(records)))
        get.close()
        return np.frombuffer(joined, records.dtype).reshape(records.shape)

    def seconds(self, plans: Sequence[slice]) -> float:
        seconds = self._write(plans)
        shutil.rmtree(self.path)
        return seconds


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Put each record, one transaction a part."""
    if setting.codec == "raw":
        yield _Append(setting)
