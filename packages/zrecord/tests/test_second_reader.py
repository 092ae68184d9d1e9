"""A second reader, which shares no code with the engine, reads what the package writes."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from zrecord import DenseStore, RaggedStore

READER = Path(__file__).parents[3] / "native" / "test"
MODULES = ("compression.zstd", "backports.zstd", "zstandard")


def _has_zstd() -> bool:
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return True
    return False


@pytest.fixture
def second_reader(monkeypatch: pytest.MonkeyPatch):
    if not READER.is_dir():
        pytest.skip("the second reader lies in the repository, which is not here")
    monkeypatch.syspath_prepend(str(READER))
    return importlib.import_module("second_reader")


@pytest.fixture
def readable_codec(codec: str) -> str:
    if codec != "raw" and not _has_zstd():
        pytest.skip(f"no zstd decoder to read with: none of {', '.join(MODULES)} is installed")
    return codec


def _as_read(arrays: list[np.ndarray], ragged: bool) -> list[tuple[tuple[int, ...], bytes]]:
    return [(array.shape if ragged else (), array.tobytes()) for array in arrays]


def _delete(arrays: list[np.ndarray], indices: list[int]) -> None:
    for index in sorted(set(indices), reverse=True):
        arrays[index] = arrays[-1]
        arrays.pop()


@pytest.mark.parametrize("ragged", [False, True], ids=["dense", "ragged"])
@pytest.mark.parametrize("seed", range(6))
def test_random_stores_are_read_alike(
    second_reader, readable_codec, codec_options, ragged, seed, tmp_path
):
    rng = np.random.default_rng(seed)
    folder = tmp_path / "store"

    def record() -> np.ndarray:
        shape = tuple(rng.integers(1, 4, rng.integers(0, 5))) if ragged else (3, 2)
        return rng.integers(0, 9, shape, dtype=np.int32)

    def open_store():
        if ragged:
            return RaggedStore(folder, np.int32, **codec_options)
        return DenseStore(folder, np.int32, (3, 2), **codec_options)

    arrays: list[np.ndarray] = []
    store = open_store()
    for _ in range(30):
        match rng.integers(0, 6):
            case 0 | 1:
                new = [record() for _ in range(rng.integers(1, 20))]
                store.append(new if ragged else np.stack(new))
                arrays += new
            case 2:
                store.sync()
            case 3 if arrays:
                chosen = rng.integers(0, len(arrays), rng.integers(1, 6)).tolist()
                store.delete(chosen)
                _delete(arrays, chosen)
            case 4:
                store.compact()
            case _:
                store.close()
                store = RaggedStore(folder, mode="a") if ragged else DenseStore(folder, mode="a")
        # Also while the writer holds what it never synced.
        assert second_reader.read(folder) == _as_read(arrays, ragged)
    store.close()
    assert second_reader.read(folder) == _as_read(arrays, ragged)


def test_damage_is_noticed_by_the_second_reader(second_reader, tmp_path):
    with DenseStore(tmp_path / "store", np.int32, (3, 2), codec="raw") as store:
        store.append(np.zeros((4, 3, 2), np.int32))
    path = tmp_path / "store" / "0.chunk"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(second_reader.Damaged, match="record 0"):
        second_reader.read(path.parent)
