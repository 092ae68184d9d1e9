"""Delete, compact, sync, stats, verify, refresh, fingerprint."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from conftest import RECORDS, ROWS, assert_same, assert_same_list
from zrecord import DenseStore, RaggedStore, StoreBusy, VerifyReport, ZrecordError

# ---- delete -------------------------------------------------------------------------------------


def _swap_remove(items: list, indices) -> list:
    items = list(items)
    for index in sorted({int(i) % len(items) for i in indices}, reverse=True):
        last = items.pop()
        if index < len(items):
            items[index] = last
    return items


def _positions(index) -> list[int]:
    if isinstance(index, (list, tuple, range)):
        index = np.array(index, None if len(index) else np.int64)
    return np.atleast_1d(np.arange(10)[index]).tolist()


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        9,
        np.uint8(4),
        np.array(3),
        slice(None),
        slice(2, 7, 2),
        slice(5, 5),
        [],
        [0, 0, 0],
        [3, -7, 3, 1],
        [9, 8, 7],
        [0, 9],
        (2, 4),
        range(3, 6),
        [True, False] * 5,
        np.array([1, 2, 3], np.uint16),
        np.arange(10) % 3 == 0,
        np.ones(10, bool),
        np.arange(10),
    ],
    ids=repr,
)
def test_delete_moves_the_last_record_in_descending_order(tmp_path, index):
    positions = _positions(index)
    expected = _swap_remove(list(ROWS), positions)
    records = [np.full(i + 1, i, np.int32) for i in range(10)]
    expected_ragged = _swap_remove(records, positions)
    with DenseStore(tmp_path / "d", "f4", (2, 3)) as store:
        store.append(ROWS)
        assert store.delete(index) == len(set(positions))
        assert len(store) == len(expected)
        assert_same_list(list(store[:]), expected)
    with RaggedStore(tmp_path / "r", "i4") as store:
        store.append(records)
        assert store.delete(index) == len(set(positions))
        assert_same_list(store[:], expected_ragged)
    with DenseStore(tmp_path / "d", mode="r") as store:
        assert_same_list(list(store[:]), expected)
        assert store.verify().ok
    with RaggedStore(tmp_path / "r", mode="r") as store:
        assert_same_list(store[:], expected_ragged)
        assert store.verify().ok


def test_a_delete_out_of_range_deletes_nothing(dense):
    with pytest.raises(IndexError, match=r"index 10 .*10 records"):
        dense.delete([0, 10, 1])
    assert_same(dense[:], ROWS)


def test_a_deleted_store_is_filled_again(dense):
    assert dense.delete(slice(None)) == 10
    assert len(dense) == 0
    assert dense.append(ROWS[:3]) == 0
    assert_same(dense[:], ROWS[:3])


def test_delete_needs_every_other_reader_gone(dense):
    with DenseStore(dense.path, mode="r") as reader:
        with pytest.raises(StoreBusy, match="readers"):
            dense.delete(0)
        assert_same(reader[:], ROWS)
        assert_same(dense[:], ROWS)
    assert dense.delete(0) == 1


# ---- compact and stats --------------------------------------------------------------------------


def test_stats(tmp_path, codec, codec_options):
    with DenseStore(tmp_path / "s", "f4", (2, 3), **codec_options) as store:
        empty = {"records": 0, "live_bytes": 0, "chunk_bytes": 0, "reclaimable": 0}
        assert store.stats() == empty
        store.append(ROWS)
        full = store.stats()
        assert list(full) == ["records", "live_bytes", "chunk_bytes", "reclaimable"]
        assert full["records"] == 10
        assert full["live_bytes"] == full["chunk_bytes"] > 0
        assert full["reclaimable"] == 0
        if codec == "raw":
            assert full["live_bytes"] == ROWS.nbytes
        store.delete(slice(5))
        half = store.stats()
        assert half["records"] == 5
        assert half["chunk_bytes"] == full["chunk_bytes"]
        assert half["reclaimable"] == half["chunk_bytes"] - half["live_bytes"] > 0


@pytest.mark.parametrize("kind", [DenseStore, RaggedStore])
def test_compact_gives_the_space_back(tmp_path, kind, codec, codec_options):
    rows = np.random.default_rng(0).integers(0, 256, (2000, 500), dtype="u1")
    shape = {"item_shape": (500,)} if kind is DenseStore else {}
    with kind(tmp_path / "s", "u1", **shape, **codec_options) as store:
        store.append(rows)
        keep = np.arange(2000) % 4 == 0
        store.delete(~keep)
        before = [record.copy() for record in store]
        assert store.compact() is None
        assert_same_list(list(store), before)
        after = store.stats()
        assert after["reclaimable"] == 0
        assert after["chunk_bytes"] == after["live_bytes"]
        on_disk = sum(f.stat().st_size for f in (tmp_path / "s").glob("*.chunk"))
        assert on_disk <= after["live_bytes"] + 4096
        store.append(rows[:3])
        assert len(store) == 503
    with kind(tmp_path / "s", mode="r") as store:
        assert_same_list(list(store), [*before, *rows[:3]])
        assert store.verify().ok


def test_compact_with_nothing_to_do_needs_no_reader_gone(dense):
    with DenseStore(dense.path, mode="r"):
        dense.compact()
    dense.delete(0)
    with DenseStore(dense.path, mode="r"), pytest.raises(StoreBusy):
        dense.compact()
    dense.compact()


# ---- sync ---------------------------------------------------------------------------------------


def test_sync_any_number_of_times(dense):
    for _ in range(3):
        assert dense.sync() is None
    dense.append(ROWS)
    dense.sync()
    with DenseStore(dense.path, mode="r") as reader:
        assert len(reader) == 20


# ---- refresh ------------------------------------------------------------------------------------


def test_a_reader_sees_what_it_opened_with_until_refresh(dense):
    with DenseStore(dense.path, mode="r") as reader:
        dense.append(ROWS)
        assert len(reader) == 10
        with pytest.raises(IndexError):
            reader[10]
        assert reader.refresh() == 20
        assert len(reader) == 20
        assert_same(reader[10:], ROWS)
        assert reader.refresh() == 20
    assert dense.refresh() == 20


# ---- verify -------------------------------------------------------------------------------------


def test_verify_of_a_whole_store(dense, ragged):
    for store, count in ((dense, 10), (ragged, 6)):
        report = store.verify()
        assert isinstance(report, VerifyReport)
        assert report._fields == ("ok", "records", "bytes", "damaged", "notes")
        assert report.ok
        assert report.records == count
        assert report.bytes >= store.stats()["live_bytes"]
        assert report.damaged == []
        assert report.notes == []


def test_verify_of_an_empty_store(tmp_path):
    with RaggedStore(tmp_path / "s", "u1") as store:
        assert store.verify().ok
        assert store.verify().records == 0


# ---- progress callbacks -------------------------------------------------------------------------


@pytest.fixture
def littered(tmp_path):
    """A store with something to compact, large enough for several steps of progress."""
    rows = np.random.default_rng(0).integers(0, 256, (60, 1 << 20), dtype="u1")
    with DenseStore(tmp_path / "s", "u1", (1 << 20,), "raw") as store:
        store.append(rows)
        store.delete(slice(0, 40, 2))
        yield store


@pytest.mark.parametrize("work", ["verify", "compact"])
def test_progress_gets_done_and_total(littered, work):
    seen = []
    getattr(littered, work)(progress=lambda done, total: seen.append((done, total)))
    assert seen
    assert all(type(done) is int and type(total) is int for done, total in seen)
    assert all(0 <= done <= total for done, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("answer", [None, True, 0, ""])
def test_only_false_stops(littered, answer):
    assert littered.verify(lambda done, total: answer).ok


def test_progress_stops_verify(littered):
    calls = []
    report = littered.verify(lambda done, total: calls.append(done) or False)
    assert len(calls) == 1
    assert not report.ok
    assert report.damaged == []
    assert "stopped" in report.notes[0]
    assert littered.verify().ok


def test_progress_stops_compact_and_it_is_resumed(littered):
    before = [record.copy() for record in littered]
    calls = []
    littered.compact(lambda done, total: calls.append(done) or False)
    assert len(calls) == 1
    assert_same_list(list(littered), before)
    littered.compact()
    assert littered.stats()["reclaimable"] == 0
    assert_same_list(list(littered), before)


@pytest.mark.parametrize("work", ["verify", "compact"])
@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_what_a_callback_raises_arrives(littered, work, error):
    def progress(done, total):
        raise error

    with pytest.raises(type(error)) as caught:
        getattr(littered, work)(progress)
    assert caught.value is error
    assert littered.verify().ok


@pytest.mark.parametrize("work", ["verify", "compact"])
def test_a_callback_may_read_and_must_not_write(littered, work):
    refused = []

    def progress(done, total):
        assert littered[0].shape == (1 << 20,)
        assert len(littered) == 40
        for write in (
            lambda: littered.append(np.zeros((1, 1 << 20), "u1")),
            lambda: littered.delete(0),
            littered.sync,
            littered.compact,
            littered.close,
        ):
            with pytest.raises(ZrecordError, match="from inside"):
                write()
            refused.append(write)
        return False

    getattr(littered, work)(progress)
    assert len(refused) == 5
    littered.append(np.zeros((1, 1 << 20), "u1"))
    assert len(littered) == 41


def test_a_callback_that_is_no_function(dense):
    dense.delete(0)
    for work in (dense.verify, dense.compact):
        with pytest.raises(TypeError):
            work(5)


# ---- fingerprint --------------------------------------------------------------------------------


def test_fingerprint_is_plain_and_follows_the_content(tmp_path, dense, ragged):
    uuid, epoch, length, identity = first = dense.fingerprint
    assert json.loads(json.dumps(first)) == first
    assert length == 10
    assert identity == {"dtype": "<f4", "item_shape": [2, 3]}
    assert ragged.fingerprint[3] == {"dtype": "<i4"}
    assert ragged.fingerprint[0] != uuid
    dense.append(ROWS[:1])
    assert dense.fingerprint == [uuid, epoch, 11, identity]
    dense.delete(0)
    later = dense.fingerprint
    assert later[0] == uuid
    assert later[1] > epoch
    assert later[2] == 10
    dense.close()
    with DenseStore(dense.path, mode="r") as again:
        assert again.fingerprint == later


def test_descriptors_do_not_grow_with_batches_and_openings(tmp_path, ragged):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not list descriptors")

    def once():
        with RaggedStore(ragged.path, mode="r") as reader:
            for _ in range(20):
                assert_same_list(reader[:], RECORDS)
                reader.will_need([0, 1])

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        once()
    assert len(os.listdir("/proc/self/fd")) == before
