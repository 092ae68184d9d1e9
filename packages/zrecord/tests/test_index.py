"""Every form of index, for both kinds of store, against a list."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import RECORDS, ROWS, assert_same, assert_same_list
from zrecord import RecordIndexError

N = 6
SINGLES = [0, 5, -1, -6, np.int64(1), np.uint8(2), np.int16(-2), np.uint64(3), np.array(4)]
SETS = [
    slice(None),
    slice(1, 4),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(4, 1, -2),
    slice(3, 3),
    slice(10, 20),
    slice(-3, None),
    slice(np.int64(1), np.int64(3)),
    [],
    (),
    [2, 1],
    [0, 0],
    [-1, 0],
    [5, -6, 5, 2, 2],
    (0, 5, 2),
    [np.int64(1), np.uint8(2), 3],
    [np.uint64(1), -1],
    [np.array(2), 1],
    [True, False, True, False, False, True],
    (False,) * 6,
    [np.True_, np.False_, True, False, False, False],
    range(1, 5, 2),
    range(5, -1, -1),
    range(0),
    np.array([3, 0], np.uint8),
    np.array([3, 0, -1], np.int8),
    np.array([1, 2], ">i4"),
    np.array([1, 2], ">u8"),
    np.array([5, 0], np.uint64),
    np.array([5, 0, -6]),
    np.array([5, 0, -6], np.longlong),
    np.arange(6)[::-2],
    np.arange(6, dtype=np.uint16)[1:4],
    np.empty(0, np.int64),
    np.empty(0, np.uint8),
    np.array([]),
    np.array([True, False, True, False, False, True]),
    np.zeros(6, bool),
]
REFUSED = [
    (True, TypeError),
    (np.True_, TypeError),
    (np.array(True), TypeError),
    (1.0, TypeError),
    (np.float64(1), TypeError),
    (np.array(1.5), TypeError),
    ("0", TypeError),
    (b"0", TypeError),
    (None, TypeError),
    (1j, TypeError),
    ({0}, TypeError),
    ({0: 1}, TypeError),
    (object(), TypeError),
    (iter([0]), TypeError),
    (Ellipsis, TypeError),
    (slice(0.5, 2), TypeError),
    ([1.0], TypeError),
    (["a"], TypeError),
    ([None, 1], TypeError),
    ([True, 2], TypeError),
    ([np.float32(1)], TypeError),
    (np.array([0.0, 1.0]), TypeError),
    (np.array(["0"]), TypeError),
    (np.array([None]), TypeError),
    (np.array([0], "m8[s]"), TypeError),
    (6, IndexError),
    (-7, IndexError),
    (2**63, IndexError),
    (-(2**63) - 1, IndexError),
    (10**30, IndexError),
    (np.uint64(2**64 - 1), IndexError),
    ([0, 6], IndexError),
    ([-7], IndexError),
    ([2**64], IndexError),
    ([-(2**63)], IndexError),
    (np.array([0, 6]), IndexError),
    (np.array([-7]), IndexError),
    (np.array([2**64 - 1], np.uint64), IndexError),
    (np.array([2**63], np.uint64), IndexError),
    (range(7), IndexError),
    (range(10**15), IndexError),
    (range(-7, 0), IndexError),
    (np.zeros((2, 2), int), IndexError),
    (np.zeros((1, 0), int), IndexError),
    (np.zeros((6, 1), bool), IndexError),
    ([[0, 1]], IndexError),
    ([np.array([0, 1])], IndexError),
    ([(0, 1), (1, 2)], IndexError),
    ([True], IndexError),
    ([True] * 7, IndexError),
    (np.ones(5, bool), IndexError),
    (np.ones(7, bool), IndexError),
    (np.ones(0, bool), IndexError),
]


def _expected(index):
    """The positions that an index names, by numpy's own rules."""
    if isinstance(index, (list, tuple, range)):
        index = list(index)
        if index and isinstance(index[0], (bool, np.bool_)):
            return np.flatnonzero(index)
        index = np.array([int(i) for i in index], np.int64)
    elif isinstance(index, np.ndarray) and index.size == 0 and index.dtype != bool:
        index = np.empty(0, np.int64)
    return np.arange(N)[index]


@pytest.fixture
def six(dense):
    dense.delete([6, 7, 8, 9])
    return dense


@pytest.mark.parametrize("index", SINGLES, ids=repr)
def test_one_record_for_an_int(six, ragged, index):
    assert_same(six[index], ROWS[:6][int(index)])
    assert_same(ragged[index], RECORDS[int(index)])
    for gather in (six.gather, ragged.gather, ragged.gather_packed, ragged.lengths):
        with pytest.raises(TypeError):
            gather(index)


@pytest.mark.parametrize("index", SETS, ids=repr)
def test_a_set_of_records_in_request_order(six, ragged, index):
    wanted = _expected(index)
    assert_same(six[index], ROWS[wanted])
    assert_same(six.gather(index), ROWS[wanted])
    assert_same(six.__getitems__(index), ROWS[wanted])
    records = [RECORDS[i] for i in wanted]
    assert isinstance(ragged[index], list)
    assert_same_list(ragged[index], records)
    assert_same_list(ragged.gather(index), records)
    assert_same_list(ragged.__getitems__(index), records)
    assert_same_list(ragged.gather_packed(index).to_list(), records)
    assert ragged.lengths(index).tolist() == [record.size for record in records]
    six.will_need(index)
    ragged.will_need(index)


@pytest.mark.parametrize(("index", "error"), REFUSED, ids=lambda value: repr(value)[:40])
def test_what_names_no_record_is_refused(six, ragged, index, error):
    for store in (six, ragged):
        with pytest.raises(error) as caught:
            store[index]
        assert error is TypeError or isinstance(caught.value, RecordIndexError)
        with pytest.raises(error):
            store.delete(index)
        assert len(store) == N
        with pytest.raises((TypeError, IndexError)):
            store.gather(index)


def test_out_of_range_names_index_and_length(six, ragged):
    for store in (six, ragged):
        for index in (6, [0, 6], np.array([6]), np.array([0, 6], np.uint64), np.array([6], ">i2")):
            with pytest.raises(IndexError, match=r"index 6 .* 6 records"):
                store[index]
        with pytest.raises(IndexError, match=r"index -7 .* 6 records"):
            store[np.array([0, -7])]
        with pytest.raises(IndexError, match=rf"index {2**64 - 1} "):
            store[np.array([2**64 - 1], np.uint64)]
        with pytest.raises(IndexError, match=r"5 bools.* 6 records"):
            store[[True] * 5]


def test_out_of_range_in_an_empty_store(tmp_path):
    from zrecord import DenseStore

    with DenseStore(tmp_path / "s", "f4", (3,)) as store:
        for index in (0, -1, [0], np.array([-1])):
            with pytest.raises(IndexError):
                store[index]
        assert store[:].shape == (0, 3)
        assert store[[]].shape == (0, 3)
        assert store[np.zeros(0, bool)].shape == (0, 3)
        assert list(store) == []


def test_a_hint_ignores_what_is_out_of_range(six, ragged):
    for store in (six, ragged):
        store.will_need([0, 100, -100])
        store.will_need(3)
        store.will_need(np.array([2**64 - 1], np.uint64))
        with pytest.raises(TypeError):
            store.will_need("0")


def test_an_int_on_scalar_records_returns_a_0d_array(tmp_path):
    from zrecord import DenseStore

    with DenseStore(tmp_path / "s", "i8", ()) as store:
        store.append(np.arange(5))
        assert_same(store[3], np.array(3))
        assert_same(store[[3, 1]], np.array([3, 1]))
        assert [type(record) for record in store] == [np.ndarray] * 5


@pytest.mark.parametrize("count", [10**3, 10**4, 10**5])
def test_many_random_indices(tmp_path, count):
    from zrecord import DenseStore, RaggedStore

    indices = np.random.default_rng(count).integers(-1000, 1000, count)
    with DenseStore(tmp_path / "d", "i4", (), "raw") as store:
        store.append(np.arange(1000, dtype="i4"))
        assert_same(store[indices], np.arange(1000, dtype="i4")[indices])
        assert_same(store[indices.tolist()], np.arange(1000, dtype="i4")[indices])
    with RaggedStore(tmp_path / "r", "i4", "raw") as store:
        store.append(np.arange(1000, dtype="i4").reshape(1000, 1))
        assert_same(store.gather_packed(indices).values, np.arange(1000, dtype="i4")[indices])


def test_results_belong_to_the_caller(six, ragged):
    first, second = six[:], six[:]
    for result in (first, second, six[0], next(iter(six))):
        assert result.flags.writeable
        assert result.flags.c_contiguous
    assert not np.shares_memory(first, second)
    first[:] = -1
    assert_same(six[:], ROWS[:6])
    assert_same(second, ROWS[:6])

    records, others = ragged[:], ragged[:]
    for record in records:
        assert record.flags.writeable
        assert record.flags.c_contiguous
        assert record.flags.aligned
    bases = {
        id(record.base if record.base.base is None else record.base.base) for record in records
    }
    assert len(bases) == 1
    for record in records:
        assert not any(np.shares_memory(record, other) for other in others)
        assert not any(np.shares_memory(record, o) for o in records if o is not record)
        record[...] = -1
    assert_same_list(ragged[:], RECORDS)
    assert_same_list(others, RECORDS)


def test_a_duplicate_is_a_record_of_its_own(six, ragged):
    rows = six[[1, 1]]
    rows[0] = 0
    assert_same(rows[1], ROWS[1])
    a, b = ragged[[2, 2]]
    a[...] = 0
    assert_same(b, RECORDS[2])


def test_iteration_is_record_by_record(dense, ragged):
    assert_same_list(list(dense), list(ROWS))
    assert_same_list(list(ragged), RECORDS)
    assert_same_list(list(reversed(ragged)), RECORDS[::-1])
    records = list(dense)
    records[0][...] = -1
    assert_same(records[1], ROWS[1])
    assert_same(dense[0], ROWS[0])


def test_iteration_in_several_batches(tmp_path):
    from zrecord import DenseStore, RaggedStore

    rows = np.random.default_rng(0).integers(0, 9, (40, 100_000), dtype="i4")
    with DenseStore(tmp_path / "d", "i4", (100_000,)) as store:
        store.append(rows)
        assert_same_list(list(store), list(rows))
    records = [np.full(1 + (7919 * i) % 3000, i, "i4") for i in range(5000)]
    with RaggedStore(tmp_path / "r", "i4") as store:
        store.append(records)
        assert_same_list(list(store), records)


def test_iteration_ends_where_the_store_ends_now(dense):
    seen = 0
    for _ in dense:
        seen += 1
        if len(dense) > 5:
            dense.delete(slice(5, None))
    assert 5 <= seen <= 10


def test_a_store_is_not_an_array(dense, ragged):
    for store in (dense, ragged):
        for name in ("shape", "ndim", "__contains__"):
            assert not hasattr(store, name)
        with pytest.raises(TypeError, match=r"store\[:\]"):
            np.asarray(store)
        with pytest.raises(TypeError, match=r"store\[:\]"):
            np.array(store, dtype=object)
        with pytest.raises(TypeError):
            np.sum(store)
