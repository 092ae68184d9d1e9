"""Damage on the disk: detected, named, confined to the record it hit; never served as data."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_same, assert_same_list
from zrecord import (
    CorruptRecord,
    CorruptStore,
    DenseStore,
    RaggedStore,
    UnsupportedFormat,
    ZrecordError,
)

RECORDS = [
    np.arange(1, 40, dtype="u1"),
    np.array(7, "u1"),
    np.arange(60, dtype="u1").reshape(6, 10),
    np.arange(24, dtype="u1").reshape(2, 3, 4),
    np.full(100, 3, "u1"),
]
ROWS = np.arange(5 * 33, dtype="u1").reshape(5, 33)


@pytest.fixture(params=["dense", "ragged"])
def kind(request) -> str:
    return request.param


@pytest.fixture
def written(tmp_path, kind, codec_options):
    """The folder of a store of five records, its class and what is in it."""
    path = tmp_path / "s"
    if kind == "dense":
        with DenseStore(path, "u1", (33,), **codec_options) as store:
            store.append(ROWS)
        return path, DenseStore, list(ROWS)
    with RaggedStore(path, "u1", **codec_options) as store:
        store.append(RECORDS)
    return path, RaggedStore, RECORDS


def _flip(file: Path, position: int, mask: int = 1) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= mask
    file.write_bytes(bytes(data))


def _chunk(path: Path) -> Path:
    (chunk,) = path.glob("*.chunk")
    return chunk


@pytest.mark.parametrize("checksums", ["always", "once"])
def test_one_bad_record_costs_one_record(written, checksums):
    path, kind, expected = written
    _flip(_chunk(path), -1)
    with kind(path, mode="r", checksums=checksums) as store:
        for _ in range(2):
            for index in (4, -1, [0, 4], slice(None), np.array([4])):
                with pytest.raises(CorruptRecord) as caught:
                    store[index]
                assert caught.value.index == 4
                for part in (str(path), "record 4", "0.chunk"):
                    assert part in str(caught.value)
            assert_same_list(list(store[:4]), expected[:4])
        report = store.verify()
        assert not report.ok
        assert [index for index, _ in report.damaged] == [4]
        assert report.records == 5
    with kind(path) as store:
        before = len(store)
        store.append(store.gather([0]) if kind is DenseStore else store.gather_packed([0]))
        assert_same(store[before], expected[0])
        assert store.delete(4) == 1
        assert store.verify().ok


def test_a_failing_gather_leaves_the_store_usable(written):
    path, kind, expected = written
    _flip(_chunk(path), 0)
    with kind(path, mode="r", checksums="always") as store:
        with pytest.raises(CorruptRecord) as caught:
            list(store)
        assert caught.value.index == 0
        assert_same(store[1], expected[1])


def test_a_corrupt_record_from_an_iterable_keeps_nothing_of_the_append(tmp_path, written):
    path, kind, _ = written
    _flip(_chunk(path), -1)
    with (
        kind(path, mode="r", checksums="always") as source,
        RaggedStore(tmp_path / "t", "u1") as target,
    ):
        with pytest.raises(CorruptRecord):
            target.append(iter(source))
        assert len(target) == 0
        assert target.append(source[:4] if kind is RaggedStore else list(source[:4])) == 0


def test_every_flipped_bit_is_detected_or_harmless(written, tmp_path):
    """Any bit of any file of the store: the records as they were, or an error of ours."""
    path, kind, expected = written
    positions = [
        (file.name, byte, 1 << bit)
        for file in sorted(path.iterdir())
        for byte in range(min(file.stat().st_size, 16 * 1024))
        for bit in range(8)
    ]
    detected = 0
    chosen = random.Random(5).sample(positions, 250)
    for part in ("store.zr", "0.loc", "0.chunk"):
        size = min((path / part).stat().st_size, 60)
        chosen += [(part, byte, 1 << byte % 8) for byte in range(size)]
    for name, byte, mask in chosen:
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        _flip(copy / name, byte, mask)
        try:
            with kind(copy, mode="r", checksums="always") as store:
                assert store.dtype == np.uint8
                assert_same_list(list(store[:]), expected)
        except (CorruptStore, UnsupportedFormat):
            detected += 1
        shutil.rmtree(copy)
    assert detected > 100


@pytest.mark.parametrize("name", ["store.zr", "meta.zr", "0.loc", "0.chunk"])
@pytest.mark.parametrize("share", [0, 0.5, 0.99, None])
def test_a_file_cut_short_or_gone(written, name, share):
    path, kind, expected = written
    file = path / name
    whole = file.read_bytes()
    if share is None:
        file.unlink()
    else:
        file.write_bytes(whole[: int(len(whole) * share)])
    refused = None
    try:
        with kind(path, mode="r") as store:
            assert_same_list(list(store[:]), expected)
            assert store.verify().ok
    except (ZrecordError, OSError) as error:
        refused = str(error)
    # Only what nothing reads may be cut off: reserved room at the end of a table.
    harmless = share is not None and share > 0 and name in ("meta.zr", "0.loc")
    assert harmless if refused is None else str(path) in refused


def test_a_record_of_another_store_in_its_place(tmp_path, written):
    """Payload of the same size, but of another store: its sum belongs to another uuid."""
    path, kind, _ = written
    other = tmp_path / "other"
    shutil.copytree(path, other)
    with kind(path) as store:
        codec = store.codec
    arguments = {"item_shape": (33,)} if kind is DenseStore else {}
    if codec == "zstd_dict":
        arguments["dict_bytes"] = (path / "dict.zr").read_bytes()
    with kind(tmp_path / "third", "u1", codec=codec, **arguments) as store:
        store.append(ROWS if kind is DenseStore else RECORDS)
    shutil.copyfile(tmp_path / "third" / "0.loc", path / "0.loc")
    with kind(path, mode="r", checksums="always") as store, pytest.raises(CorruptStore):
        store[:]


def test_a_flipped_dictionary_refuses_to_open(tmp_path, dictionary):
    with RaggedStore(tmp_path / "s", "u1", "zstd_dict", dictionary) as store:
        store.append(RECORDS)
    for position in (0, 100, -1):
        _flip(tmp_path / "s" / "dict.zr", position)
        with pytest.raises(CorruptStore, match="dict"):
            RaggedStore(tmp_path / "s", mode="r")[:]
        _flip(tmp_path / "s" / "dict.zr", position)
    (tmp_path / "s" / "dict.zr").unlink()
    with pytest.raises(CorruptStore, match="dict"):
        RaggedStore(tmp_path / "s", mode="r")[:]


def test_a_dictionary_where_none_belongs_makes_the_store_malformed(tmp_path, dictionary):
    RaggedStore(tmp_path / "s", "u1").close()
    (tmp_path / "s" / "dict.zr").write_bytes(dictionary)
    with pytest.raises(CorruptStore, match="dict"):
        RaggedStore(tmp_path / "s", mode="r")


def test_without_checksums_raw_damage_is_what_the_user_asked_for(tmp_path):
    with DenseStore(tmp_path / "s", "u1", (33,), "raw") as store:
        store.append(ROWS)
    _flip(_chunk(tmp_path / "s"), -1)
    with DenseStore(tmp_path / "s", mode="r", checksums="off") as store:
        assert store[4, 4].shape == (2, 33)
        assert not store.verify().ok
