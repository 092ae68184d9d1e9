"""Checked by mypy and pyright, never run: what the types of the API promise to its users."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import zrecord
from typing_extensions import assert_type
from zrecord import DICT_TIERS, DenseStore, RaggedBatch, RaggedStore, VerifyReport, train_dict

Array = npt.NDArray[Any]


def open_dense(path: pathlib.Path) -> DenseStore:
    DenseStore(path)
    DenseStore(str(path), "f4", (2, 3))
    DenseStore(b"bytes", np.float32, 5, "zstd", None)
    DenseStore(path, np.dtype("f4"), (), codec="zstd_dict", dict_bytes=b"", mode="x")
    return DenseStore(path, mode="r", checksums="off")


def read_dense(store: DenseStore) -> None:
    assert_type(store[0], Array)
    assert_type(store[np.int64(0)], Array)
    assert_type(store[1:3], Array)
    assert_type(store[[0, 1]], Array)
    assert_type(store[0, 5, 2], Array)
    assert_type(store[[True, False]], Array)
    assert_type(store[np.array([1, 2])], Array)
    assert_type(store[np.array([True, False])], Array)
    assert_type(store[range(3)], Array)
    assert_type(store.gather(slice(None)), Array)
    assert_type(store.gather([0], out=np.empty((1, 2), np.float32)), Array)
    assert_type(store.__getitems__([0]), Array)
    for record in store:
        assert_type(record, Array)


def read_ragged(store: RaggedStore) -> None:
    assert_type(store[0], Array)
    assert_type(store[np.uint8(0)], Array)
    assert_type(store[1:3], list[Array])
    assert_type(store[[0, 1]], list[Array])
    assert_type(store[0, 5, 2], list[Array])
    assert_type(store[np.array([1, 2])], list[Array])
    assert_type(store[np.array([True, False])], list[Array])
    assert_type(store.gather([0]), list[Array])
    assert_type(store.__getitems__([0]), list[Array])
    batch = store.gather_packed([0, 1], out=np.empty(100, np.int32))
    assert_type(batch, RaggedBatch)
    assert_type(batch.values, Array)
    assert_type(batch.offsets, npt.NDArray[np.int64])
    assert_type(batch.shapes, list[tuple[int, ...]])
    assert_type(batch.cu_seqlens, npt.NDArray[np.int32])
    assert_type(batch.to_list(), list[Array])
    assert_type(len(batch), int)
    assert_type(store.lengths(), npt.NDArray[np.int64])
    assert_type(store.lengths([0]), npt.NDArray[np.int64])
    for record in store:
        assert_type(record, Array)


def write(dense: DenseStore, ragged: RaggedStore, batch: RaggedBatch) -> None:
    assert_type(dense.append(np.zeros((3, 2))), int)

    def records() -> Iterator[Array]:
        yield np.zeros(3)

    assert_type(ragged.append(records()), int)
    assert_type(ragged.append([b"bytes"]), int)
    assert_type(ragged.append(batch), int)
    assert_type(dense.delete(0), int)
    assert_type(ragged.delete(slice(None)), int)
    dense.sync()
    dense.compact()
    dense.compact(progress=lambda done, total: done < total)


def look(store: DenseStore) -> None:
    assert_type(store.path, str)
    assert_type(store.dtype, np.dtype[Any])
    assert_type(store.item_shape, tuple[int, ...])
    assert_type(store.codec, str)
    assert_type(store.mode, str)
    assert_type(store.closed, bool)
    assert_type(store.has_dict, bool)
    assert_type(store.fingerprint, list[Any])
    assert_type(store.stats(), dict[str, int])
    assert_type(store.refresh(), int)
    assert_type(len(store), int)
    report = store.verify(lambda done, total: None)
    assert_type(report, VerifyReport)
    assert_type(report.ok, bool)
    assert_type(report.damaged, list[tuple[int, str]])
    with store as same:
        assert_type(same, DenseStore)
    store.will_need([1, 2])
    store.close()


def functions() -> None:
    assert_type(train_dict([b"a"], tier="fast", path="dict"), bytes)
    assert_type(DICT_TIERS["max"].dict_bytes, int)
    assert_type(zrecord.get_num_threads(), int)
    zrecord.set_num_threads(np.int64(2))
    assert_type(zrecord.get_include(), str)
    assert_type(zrecord.get_library(), str)
    assert_type(zrecord.__version__, str)


def errors(path: pathlib.Path) -> None:
    try:
        open_dense(path)
    except zrecord.CorruptRecord as error:
        assert_type(error.index, int)
    except zrecord.StoreBusy as busy:
        assert_type(busy.errno, int | None)  # a StoreBusy is an OSError


def refused(dense: DenseStore, ragged: RaggedStore) -> None:
    # Each line must be an error: an ignore that is not needed is reported.
    dense["0"]  # type: ignore[index] # pyright: ignore
    dense[0.5]  # type: ignore[call-overload] # pyright: ignore
    ragged[None]  # type: ignore[call-overload] # pyright: ignore
    ragged.append(5)  # type: ignore[arg-type] # pyright: ignore
    dense.gather([0], out=[0])  # type: ignore[arg-type] # pyright: ignore
    dense.lengths()  # type: ignore[attr-defined] # pyright: ignore
