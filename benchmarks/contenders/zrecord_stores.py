"""Ours: the stores of zrecord, as a user opens them, with checksums at their defaults."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import zrecord
from harness import Contender, thread_choices, thread_count
from zrecord import DenseStore, RaggedBatch, RaggedStore, set_num_threads


class _Threaded(Contender):
    """A contender that is timed with a given number of threads."""

    def __init__(self, name: str, call: Callable[[Any], Any], threads: int, store: Any) -> None:
        super().__init__(name, call)
        self.threads = threads
        self.store = store

    def prepare(self) -> None:
        set_num_threads(self.threads)

    def close(self) -> None:
        self.store.close()
        set_num_threads(thread_count())


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Gather into fresh arrays and into `out`, with one thread and with all."""
    path = setting.folder / "zrecord"
    records = setting.records
    if not path.exists():
        with DenseStore(path, records.dtype, records.shape[1:], setting.codec) as store:
            store.append(records)
    out = np.empty((setting.batch, *records.shape[1:]), records.dtype)

    for name, threads in thread_choices().items():
        store = DenseStore(path, mode="r")
        yield _Threaded(f"zrecord, {name}", store.gather, threads, store)
        store = DenseStore(path, mode="r")

        def into_out(plan: np.ndarray, gather: Any = store.gather) -> np.ndarray:
            return gather(plan, out=out)

        yield _Threaded(f"zrecord out=, {name}", into_out, threads, store)


def ragged_contenders(setting: Any) -> Iterator[Contender]:
    """Gather as a list of arrays, and packed."""
    path = setting.folder / "zrecord"
    if not path.exists():
        with RaggedStore(path, setting.values.dtype, setting.codec) as store:
            store.append(RaggedBatch(setting.values, setting.offsets))
    for kind, name in (("gather", "zrecord, list"), ("gather_packed", "zrecord, packed")):
        store = RaggedStore(path, mode="r")
        yield _Threaded(name, getattr(store, kind), thread_count(), store)


class _Append(Contender):
    """Appends to a new store; making it, making it durable and closing it is not timed."""

    def __init__(self, name: str, setting: Any, threads: int, dictionary: bytes | None) -> None:
        super().__init__(name)
        self.setting = setting
        self.threads = threads
        self.dictionary = dictionary
        self.path: Path = setting.folder / "zrecord"

    def prepare(self) -> None:
        set_num_threads(self.threads)

    def close(self) -> None:
        set_num_threads(thread_count())

    def _new(self) -> DenseStore:
        shutil.rmtree(self.path, ignore_errors=True)
        records = self.setting.records
        codec = "zstd_dict" if self.dictionary else self.setting.codec
        return DenseStore(self.path, records.dtype, records.shape[1:], codec, self.dictionary)

    def __call__(self, plan: slice) -> np.ndarray:
        with self._new() as store:
            store.append(self.setting.records[plan])
            return store[:]

    def seconds(self, plans: Sequence[slice]) -> float:
        with self._new() as store:
            begin = perf_counter()
            for plan in plans:
                store.append(self.setting.records[plan])
            seconds = perf_counter() - begin
        shutil.rmtree(self.path)
        return seconds


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Append arrays; compressed also with a trained dictionary."""
    for name, threads in thread_choices().items():
        yield _Append(f"zrecord, {name}", setting, threads, None)
    if setting.codec == "zstd" and setting.with_dictionary:
        trained = zrecord.train_dict(setting.records[: 2**24 // setting.width])
        yield _Append("zrecord, dictionary", setting, thread_count(), trained)


class _Open(Contender):
    """Opens a store that was closed; reading from it and closing it is not timed."""

    def __init__(self, name: str, path: Path, mode: str) -> None:
        super().__init__(name)
        self.path = path
        self.mode = mode

    def __call__(self, plan: np.ndarray) -> np.ndarray:
        with DenseStore(self.path, mode=self.mode) as store:
            return store.gather(plan)

    def seconds(self, plans: Sequence[np.ndarray]) -> float:
        total = 0.0
        for _ in plans:
            begin = perf_counter()
            store = DenseStore(self.path, mode=self.mode)
            total += perf_counter() - begin
            store.close()
        return total


def open_contenders(setting: Any) -> Iterator[Contender]:
    """Open for reading, and for writing."""
    path = setting.folder / "zrecord"
    if not path.exists():
        with DenseStore(path, setting.records.dtype, (), "raw") as store:
            store.append(setting.records)
    yield _Open("zrecord, reading", path, "r")
    yield _Open("zrecord, writing", path, "a")
