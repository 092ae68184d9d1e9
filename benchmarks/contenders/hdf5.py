"""HDF5 by h5py: chunks of one record, deflated where the question is compression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import h5py
import numpy as np
from harness import Contender


def _options(setting: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Chunks of about 64 KiB or of one record; raw data needs none and is laid out in one piece."""
    if setting.codec == "raw":
        return {}
    rows = max(1, 2**16 // int(np.prod(shape)))
    return {"chunks": (rows, *shape), "compression": "gzip", "compression_opts": 1}


class _Indexed(Contender):
    """Indexes a dataset: it wants indices that grow, so they are sorted and the rows put back."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self.file = h5py.File(path, "r")
        self.dataset = self.file["records"]

    def __call__(self, plan: np.ndarray) -> Any:
        numbers, places = np.unique(plan, return_inverse=True)
        return self.dataset[numbers][places]

    def close(self) -> None:
        self.file.close()


class _Read(_Indexed):
    """Reads record after record into one array."""

    def __call__(self, plan: np.ndarray) -> np.ndarray:
        out = np.empty((len(plan), *self.dataset.shape[1:]), self.dataset.dtype)
        for position, index in enumerate(plan.tolist()):
            self.dataset.read_direct(out, np.s_[index], np.s_[position])
        return out


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Index by a sorted list, and read record by record."""
    path = setting.folder / "records.h5"
    records = setting.records
    if not path.exists():
        with h5py.File(path, "w") as file:
            file.create_dataset("records", data=records, **_options(setting, records.shape[1:]))
    yield _Indexed("h5py, sorted index", path)
    yield _Read("h5py, read_direct", path)


def ragged_contenders(setting: Any) -> Iterator[Contender]:
    """Index a dataset of variable length by a sorted list."""
    if setting.codec != "raw":
        return
    path = setting.folder / "records.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            kind = h5py.vlen_dtype(setting.values.dtype)
            dataset = file.create_dataset("records", (len(setting.offsets) - 1,), kind)
            rows = np.empty(len(dataset), object)
            rows[:] = setting.records()
            dataset[:] = rows
    yield _IndexedList("h5py vlen, list", path)


class _IndexedList(_Indexed):
    def __call__(self, plan: np.ndarray) -> list[np.ndarray]:
        return list(super().__call__(plan))


class _Append(Contender):
    def __init__(self, setting: Any) -> None:
        super().__init__("h5py" if setting.codec == "raw" else "h5py, gzip 1")
        self.setting = setting
        self.path = setting.folder / "records.h5"

    def _write(self, plans: Sequence[slice]) -> float:
        records = self.setting.records
        options = _options(self.setting, records.shape[1:])
        options.setdefault("chunks", (max(1, 2**20 // self.setting.width), *records.shape[1:]))
        with h5py.File(self.path, "w") as file:
            dataset = file.create_dataset(
                "records", (0, *records.shape[1:]), records.dtype,
                maxshape=(None, *records.shape[1:]), **options,
            )  # fmt: skip
            begin = perf_counter()
            for plan in plans:
                part = records[plan]
                start = len(dataset)
                dataset.resize(start + len(part), axis=0)
                dataset[start:] = part
            file.flush()  # chunks wait in a cache until then
            return perf_counter() - begin

    def __call__(self, plan: slice) -> np.ndarray:
        self._write([plan])
        with h5py.File(self.path, "r") as file:
            return file["records"][:]

    def seconds(self, plans: Sequence[slice]) -> float:
        seconds = self._write(plans)
        self.path.unlink()
        return seconds


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Extend a dataset by each part."""
    yield _Append(setting)


class _Open(Contender):
    def __init__(self, path: Path) -> None:
        super().__init__("h5py")
        self.path = path

    def __call__(self, plan: np.ndarray) -> np.ndarray:
        with h5py.File(self.path, "r") as file:
            numbers, places = np.unique(plan, return_inverse=True)
            return file["records"][numbers][places]

    def seconds(self, plans: Sequence[Any]) -> float:
        total = 0.0
        for _ in plans:
            begin = perf_counter()
            file = h5py.File(self.path, "r")
            file["records"]
            total += perf_counter() - begin
            file.close()
        return total


def open_contenders(setting: Any) -> Iterator[Contender]:
    """Open a file and find its dataset."""
    path = setting.folder / "records.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("records", data=setting.records)
    yield _Open(path)
