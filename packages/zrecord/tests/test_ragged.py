"""Appending to and gathering from ragged stores."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import RECORDS, assert_same, assert_same_list
from zrecord import RaggedBatch, RaggedStore
from zrecord._store import PART_SIZE_MAX


@pytest.fixture
def empty(tmp_path):
    with RaggedStore(tmp_path / "s", np.int32) as store:
        yield store


def test_append_returns_the_first_index(empty):
    assert empty.append(RECORDS) == 0
    assert empty.append(RECORDS[:1]) == 6
    assert empty.append(tuple(RECORDS[:2])) == 7
    assert_same_list(empty[:], [*RECORDS, RECORDS[0], *RECORDS[:2]])


def test_each_codec_gives_the_records_back(tmp_path, codec, codec_options):
    with RaggedStore(tmp_path / "s", np.int32, **codec_options) as store:
        store.append(RECORDS)
        assert_same_list(store[::-1], RECORDS[::-1])
    with RaggedStore(tmp_path / "s", mode="r") as store:
        assert_same_list(store[:], RECORDS)


def test_a_0d_array_keeps_its_shape(empty):
    empty.append([np.array(5, np.int32)])
    assert empty[0].shape == ()
    assert empty[0] == 5
    assert isinstance(empty[0], np.ndarray)
    assert empty.gather_packed([0]).shapes == [()]


def test_generators_iterators_and_other_iterables(empty):
    empty.append(record for record in RECORDS)
    empty.append(iter(RECORDS))
    empty.append(dict(enumerate(RECORDS)).values())
    assert_same_list(empty[:], RECORDS * 3)


@pytest.mark.parametrize("batch", [[], (), iter(()), np.empty((0, 3), np.int32)])
def test_an_empty_batch_returns_the_length(ragged, batch):
    assert ragged.append(batch) == 6
    assert len(ragged) == 6


def test_a_generator_may_yield_one_buffer_again_and_again(empty):
    def records():
        buffer = np.empty(4, np.int32)
        for i in range(100):
            buffer[:] = i
            yield buffer

    empty.append(records())
    assert_same_list(empty[:], [np.full(4, i, np.int32) for i in range(100)])


def test_an_array_is_split_on_its_first_axis(empty):
    rows = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    empty.append(rows)
    empty.append(rows[0])
    empty.append(np.asfortranarray(rows))
    assert_same_list(empty[:], [*rows, *rows[0], *rows])


def test_records_in_any_layout(empty):
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    records = [base.T, base[:, ::2], base[::-1], base[1:3], np.asfortranarray(base), base[:, 0]]
    empty.append(records)
    assert_same_list(empty[:], [np.ascontiguousarray(record) for record in records])


def test_bytes_in_a_uint8_store(tmp_path):
    records = [b"abc", bytearray(b"de"), memoryview(b"fgh"), memoryview(b"a-b-c")[::2]]
    with RaggedStore(tmp_path / "s", "u1") as store:
        store.append(records)
        store.append([np.frombuffer(b"xyz", "u1")])
        assert [bytes(r) for r in store[:]] == [b"abc", b"de", b"fgh", b"abc", b"xyz"]
        assert all(record.dtype == np.uint8 for record in store[:])
        for bad in (memoryview(np.ones(2, "i4")), memoryview(np.ones((2, 2), "u1")), "text"):
            with pytest.raises(TypeError, match="record 0"):
                store.append([bad])


@pytest.mark.parametrize("dtype", ["i1", "S3", "i4", "?"])
@pytest.mark.parametrize("record", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_bytes_belong_to_uint8_only(tmp_path, dtype, record):
    with RaggedStore(tmp_path / "s", dtype) as store, pytest.raises(TypeError, match="uint8"):
        store.append([record])


@pytest.mark.parametrize(
    "records",
    [
        np.arange(3, dtype=np.int32),
        np.array(3, np.int32),
        b"abc",
        bytearray(b"abc"),
        memoryview(b"abc"),
        "abc",
        np.int32(3),
    ],
    ids=repr,
)
def test_one_bare_record_is_refused_with_the_advice(ragged, records):
    with pytest.raises(TypeError, match="wrap it in a list"):
        ragged.append(records)
    assert len(ragged) == 6


@pytest.mark.parametrize(
    "records",
    [
        [1, 2, 3],
        [1.0],
        [[1, 2], [3]],
        [None],
        ["text"],
        [np.int32(1)],
        [np.zeros(2, "i8")],
        [np.zeros(2, ">i4")],
        [np.zeros(2, "u4")],
        [np.zeros(2, object)],
        5,
        None,
        {"a": 1},
        np.zeros((2, 2), "i8"),
    ],
    ids=repr,
)
def test_what_is_no_record_is_a_type_error(ragged, records):
    with pytest.raises(TypeError):
        ragged.append(records)
    assert_same_list(ragged[:], RECORDS)
    assert ragged.append(RECORDS[:1]) == 6


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
def test_zero_byte_records_are_refused_by_position(ragged, shape):
    with pytest.raises(ValueError, match=r"record 2 .*zero bytes"):
        ragged.append([RECORDS[0], RECORDS[1], np.empty(shape, np.int32), RECORDS[0]])
    with pytest.raises(ValueError, match="zero bytes"):
        ragged.append(np.empty((2, *shape), np.int32))
    assert_same_list(ragged[:], RECORDS)


def test_records_of_two_gib_are_refused_before_the_work(tmp_path):
    with RaggedStore(tmp_path / "s", "u1") as store:
        huge = np.broadcast_to(np.zeros(1, "u1"), (2**31,))
        with pytest.raises(ValueError, match=r"record 1 .*2147483648"):
            store.append([np.ones(1, "u1"), huge])
        with pytest.raises(ValueError, match="2147483648"):
            store.append(np.broadcast_to(np.zeros(1, "u1"), (2, 2**31)))
        batch = RaggedBatch(huge, np.array([0, 2**31]))
        with pytest.raises(ValueError, match=r"record 0 .*2147483648"):
            store.append(batch)
        assert len(store) == 0
        assert store.stats()["chunk_bytes"] == 0


def test_one_wrong_dtype_late_in_a_long_stream_keeps_nothing_of_it(ragged):
    def records():
        for i in range(70_000):
            yield np.array([i], np.int32)
        yield np.array([0.5])
        raise AssertionError("the stream is not read on")

    with pytest.raises(TypeError, match=r"record 70000 .*float64"):
        ragged.append(records())
    assert_same_list(ragged[:], RECORDS)
    assert ragged.append(RECORDS) == 6
    assert ragged.verify().ok


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("before", [0, 1, 70_000])
def test_what_the_iterable_raises_arrives_and_keeps_nothing(ragged, error, before):
    def records():
        for _ in range(before):
            yield RECORDS[0]
        raise error

    with pytest.raises(type(error)) as caught:
        ragged.append(records())
    assert caught.value is error
    assert_same_list(ragged[:], RECORDS)
    assert ragged.append(RECORDS[:1]) == 6


def test_an_iterable_of_several_parts_is_one_append(empty):
    size = PART_SIZE_MAX // 4 // 4 * 3
    records = [np.full(size, i, np.int32) for i in range(3)]
    large = np.arange(PART_SIZE_MAX // 4 + 5, dtype=np.int32)
    everything = [records[0], RECORDS[2], large, records[1], RECORDS[3], records[2]]
    assert empty.append(iter(everything)) == 0
    assert_same_list(empty[:], everything)
    assert empty.append(np.stack([large, large])) == 6
    assert_same(empty[7], large)


def test_many_small_records_of_several_parts(empty):
    count = 2**17 + 3
    empty.append(np.full(1 + i % 3, i, np.int32) for i in range(count))
    assert len(empty) == count
    batch = empty.gather_packed(slice(None))
    assert np.array_equal(np.diff(batch.offsets), 1 + np.arange(count) % 3)
    assert np.array_equal(batch.values, np.repeat(np.arange(count), 1 + np.arange(count) % 3))
    assert empty.append(batch) == count
    assert np.array_equal(empty.gather_packed(slice(count, None)).values, batch.values)


# ---- packed -------------------------------------------------------------------------------------


def test_gather_packed(ragged):
    batch = ragged.gather_packed([3, 1, 0, 3])
    assert isinstance(batch, RaggedBatch)
    assert batch.values.ndim == 1
    assert batch.values.dtype == np.int32
    assert batch.values.flags.writeable
    assert batch.offsets.dtype == np.int64
    assert batch.offsets.tolist() == [0, 24, 25, 30, 54]
    assert batch.shapes == [(2, 3, 4), (), (5,), (2, 3, 4)]
    assert batch.cu_seqlens.dtype == np.int32
    assert batch.cu_seqlens.tolist() == [0, 24, 25, 30, 54]
    assert len(batch) == 4
    assert_same_list(batch.to_list(), [RECORDS[i] for i in (3, 1, 0, 3)])
    assert "4 records" in repr(batch)


def test_gather_packed_of_nothing(ragged, empty):
    for store in (ragged, empty):
        batch = store.gather_packed([])
        assert len(batch) == 0
        assert batch.values.shape == (0,)
        assert batch.offsets.tolist() == [0]
        assert batch.shapes == batch.to_list() == []
        assert batch.cu_seqlens.tolist() == [0]
        assert store[[]] == []


def test_gather_packed_into_out(ragged):
    out = np.full(40, -1, np.int32)
    batch = ragged.gather_packed([2, 1], out=out)
    assert np.shares_memory(batch.values, out)
    assert batch.values.shape == (7,)
    assert out[:8].tolist() == [0, 1, 2, 3, 4, 5, 7, -1]
    exact = np.empty(7, np.int32)
    assert np.shares_memory(ragged.gather_packed([2, 1], exact).values, exact)


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.empty(6, np.int32), ValueError),
        (np.empty(0, np.int32), ValueError),
        (np.empty((7, 1), np.int32), ValueError),
        (np.empty(14, np.int32)[::2], ValueError),
        (np.frombuffer(bytes(28), np.int32), ValueError),
        (np.empty(7, np.int64), TypeError),
        (np.empty(7, ">i4"), TypeError),
        ([0] * 7, TypeError),
    ],
)
def test_a_wrong_out_is_refused(ragged, out, error):
    with pytest.raises(error):
        ragged.gather_packed([2, 1], out=out)


def test_a_small_out_names_the_size(ragged):
    with pytest.raises(ValueError, match=r"6 items.* 7"):
        ragged.gather_packed([2, 1], out=np.empty(6, np.int32))


def test_lengths_without_reading(ragged):
    assert ragged.lengths().tolist() == [5, 1, 6, 24, 1, 4]
    assert ragged.lengths().dtype == np.int64
    assert ragged.lengths([3, -1]).tolist() == [24, 4]
    with pytest.raises(IndexError):
        ragged.lengths([6])


def test_a_batch_is_appended_directly(ragged, tmp_path):
    batch = ragged.gather_packed([3, 1, 0, 2, 5])
    assert ragged.append(batch) == 6
    assert_same_list(ragged[6:], [RECORDS[i] for i in (3, 1, 0, 2, 5)])
    with (
        RaggedStore(tmp_path / "other", np.int64) as other,
        pytest.raises(TypeError, match="int32"),
    ):
        other.append(batch)
    mine = RaggedBatch(np.arange(7, dtype=np.int32), np.array([1, 3, 7]), [(2,), (2, 2)])
    assert ragged.append(mine) == 11
    assert_same_list(ragged[11:], [mine.values[1:3], mine.values[3:].reshape(2, 2)])
    strided = RaggedBatch(np.arange(14, dtype=np.int32)[::2], np.array([0, 3, 7]))
    ragged.append(strided)
    assert_same(ragged[-1], np.arange(6, 14, 2, dtype=np.int32))
    with pytest.raises(ValueError, match="record 1 has zero bytes"):
        ragged.append(RaggedBatch(np.arange(3, dtype=np.int32), np.array([0, 3, 3])))


def test_a_store_is_appended_to_another(ragged, empty):
    empty.append(ragged)
    assert_same_list(empty[:], RECORDS)
    ragged.append(ragged)
    assert_same_list(ragged[:], RECORDS * 2)


def test_structured_records_keep_their_padding(tmp_path):
    dtype = np.dtype(
        {"names": ["a", "b"], "formats": ["<u4", "u1"], "offsets": [0, 4], "itemsize": 8}
    )
    record = np.zeros(3, dtype)
    record["a"] = [1, 2, 3]
    record["b"] = [4, 5, 6]
    with RaggedStore(tmp_path / "s", dtype) as store:
        store.append([record, record[1:], record[0:1].reshape(())])
        assert_same_list(store[:], [record, record[1:], record[0:1].reshape(())])


def test_a_record_is_aligned_for_its_dtype(tmp_path):
    for dtype in ("u1", "f8", "c16", "g", "U3", "M8[s]"):
        with RaggedStore(tmp_path / dtype, dtype) as store:
            store.append([np.zeros(n, dtype) for n in (1, 3, 2, 7)])
            assert all(record.flags.aligned for record in store[:])


def test_ranks_up_to_the_largest(tmp_path):
    with RaggedStore(tmp_path / "s", "u1") as store:
        records = [np.arange(2, dtype="u1").reshape((1,) * rank + (2,)) for rank in range(32)]
        store.append(records)
        assert_same_list(store[:], records)
        assert_same_list(store[::-3], records[::-3])
