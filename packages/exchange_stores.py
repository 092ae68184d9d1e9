"""Makes, fills and reads stores of every kind, on whatever machine runs it: load_wheels.py does.

    python exchange_stores.py create FOLDER   empty stores, one for each kind and codec
    python exchange_stores.py append FOLDER   the same records to each, and some of them deleted
    python exchange_stores.py read FOLDER     compare every record, verify, print sums of indices

The bytes of a store follow from its uuid and its operations: copies of empty stores that two
machines fill must stay equal.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from loaderx import Sampler
from zrecord import DenseStore, RaggedStore, train_dict

_COUNT = 3000
_DELETED = [5, 7, 2999, 1000]


def _dense() -> np.ndarray[Any, Any]:
    # Numbers of few kinds, so that codecs have something to do.
    return (np.arange(_COUNT * 24, dtype=np.uint32).reshape(_COUNT, 4, 6) * 2654435761) >> 27


def _ragged() -> list[bytes]:
    return [b"record %d;" % index * (1 + index % 40) for index in range(_COUNT)]


def _expected(records: Any) -> list[Any]:
    """Return what is left: each deleted record, from the last on, becomes the last one."""
    left = list(records)
    for index in sorted(_DELETED, reverse=True):
        left[index] = left[-1]
        left.pop()
    return left


def create(folder: Path) -> None:
    """Make the empty stores. Their dictionary is trained here only, for all machines."""
    for codec in ("raw", "zstd"):
        DenseStore(folder / f"dense-{codec}", np.uint32, (4, 6), codec).close()
        RaggedStore(folder / f"ragged-{codec}", np.uint8, codec).close()
    dictionary = train_dict(_ragged(), "fast")
    RaggedStore(folder / "ragged-zstd_dict", np.uint8, "zstd_dict", dictionary).close()


def append(folder: Path) -> None:
    """Fill the stores: appends of several sizes, a sync, a delete."""
    for path in sorted(folder.iterdir()):
        dense = path.name.startswith("dense")
        records = _dense() if dense else _ragged()
        with (DenseStore if dense else RaggedStore)(path) as store:
            for first, last in ((0, 1), (1, 1200), (1200, _COUNT)):
                assert store.append(records[first:last]) == first
                store.sync()
            assert store.delete(_DELETED) == len(_DELETED)


def read(folder: Path) -> None:
    """Compare every record in one gather, some by themselves, and verify the store."""
    for path in sorted(folder.iterdir()):
        dense = path.name.startswith("dense")
        expected = _expected(_dense() if dense else map(np.frombuffer, _ragged(), _types()))
        with (DenseStore if dense else RaggedStore)(path, mode="r") as store:
            assert len(store) == len(expected), f"{path.name}: {len(store)} records"
            gathered = store.gather(np.arange(len(store))[::-1])
            for index, record in enumerate(expected):
                np.testing.assert_array_equal(gathered[len(expected) - 1 - index], record)
                if index % 50 == 0:
                    np.testing.assert_array_equal(store[index], record)
            report = store.verify()
            assert report.ok, f"{path.name}: {report}"
            print(f"{path.name}: {len(store)} records are equal and verified")
    for mode in ("sequential", "iid", "cyclic"):
        indices = Sampler(len(expected), 64, mode=mode, seed=11).at(12345)
        print(f"{mode}: {hashlib.sha256(indices.astype('<u8').tobytes()).hexdigest()}")


def _types() -> list[type]:
    return [np.uint8] * _COUNT


if __name__ == "__main__":
    {"create": create, "append": append, "read": read}[sys.argv[1]](Path(sys.argv[2]))
