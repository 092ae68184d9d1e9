"""Appending to and gathering from dense stores."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import ROWS, assert_same
from zrecord import DenseStore
from zrecord._store import PART_SIZE_MAX


def test_append_returns_the_first_index(tmp_path):
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        assert store.append(ROWS) == 0
        assert store.append(ROWS[:1]) == 10
        assert store.append(ROWS[5:]) == 11
        assert len(store) == 16
        assert_same(store[:], np.concatenate([ROWS, ROWS[:1], ROWS[5:]]))


def test_an_empty_batch_returns_the_length(dense):
    assert dense.append(ROWS[:0]) == 10
    assert dense.append(np.empty((0, 2, 3), "f4")) == 10
    assert len(dense) == 10


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (1, 1, 1, 1), (2,) * 31])
def test_item_shapes(tmp_path, shape):
    dtype = "u1" if len(shape) == 31 else "i2"
    if len(shape) == 31:
        shape = (2, *(1,) * 30)
    rows = np.arange(7 * int(np.prod(shape)), dtype=dtype).reshape(7, *shape)
    with DenseStore(tmp_path / "s", dtype, shape) as store:
        store.append(rows)
    with DenseStore(tmp_path / "s", mode="r") as store:
        assert store.item_shape == shape
        assert_same(store[:], rows)
        assert_same(store[-1], rows[-1, ...])


@pytest.mark.parametrize(
    ("item_shape", "error"),
    [
        ((0,), ValueError),
        ((2, 0, 3), ValueError),
        ((-1,), ValueError),
        (0, ValueError),
        ((2**31,), ValueError),
        ((2**16, 2**16), ValueError),
        ((1,) * 32, ValueError),
        ((1.5,), TypeError),
        (("a",), TypeError),
        ((True,), TypeError),
        ("ab", TypeError),
        (2.0, TypeError),
        ((None,), TypeError),
        ({}.keys, TypeError),
    ],
    ids=repr,
)
def test_bad_item_shapes_create_nothing(tmp_path, item_shape, error):
    with pytest.raises(error):
        DenseStore(tmp_path / "s", "u1", item_shape)
    assert list(tmp_path.iterdir()) == []


def test_an_int_is_an_item_shape_of_one_dimension(tmp_path):
    with DenseStore(tmp_path / "s", "u1", 3) as store:
        assert store.item_shape == (3,)


@pytest.mark.parametrize(
    "layout",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: np.repeat(a, 2, axis=2)[:, :, ::2],
        lambda a: a[::-1][::-1],
        lambda a: np.ascontiguousarray(a[::-1])[::-1],
        lambda a: a.T.copy().T,
        lambda a: np.moveaxis(np.moveaxis(a, 0, 2).copy(), 2, 0),
        lambda a: a.view(np.recarray) if False else a.view(type("Sub", (np.ndarray,), {})),
    ],
)
def test_non_contiguous_input(tmp_path, layout):
    rows = layout(ROWS)
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(rows)
        assert_same(store[:], ROWS)


def test_a_broadcast_array_larger_than_memory_would_be(tmp_path):
    row = np.arange(2**18, dtype="u1")
    rows = np.broadcast_to(row, (600, 2**18))
    with DenseStore(tmp_path / "s", "u1", (2**18,)) as store:
        store.append(rows)
        assert len(store) == 600
        assert_same(store[599], row)


def test_read_only_input(tmp_path):
    rows = ROWS.copy()
    rows.flags.writeable = False
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(rows)
        assert_same(store[:], ROWS)


def test_memory_mapped_input(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS)
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(rows)
        store.append(rows[::2])
        assert_same(store[:], np.concatenate([ROWS, ROWS[::2]]))


def test_input_of_several_parts_is_one_append(tmp_path):
    width = 1 << 20
    count = PART_SIZE_MAX // width * 2 + 5
    rows = np.arange(count * width // 8, dtype="u8").reshape(count, -1)
    with DenseStore(tmp_path / "s", "u8", (width // 8,), "raw") as store:
        assert store.append(rows) == 0
        assert store.append(rows[:, ::-1][:, ::-1]) == count
        assert_same(store[count - 1], rows[-1])
        assert_same(store[count : count + 3], rows[:3])


def test_an_object_with_array_protocol(tmp_path):
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return ROWS

    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(Tensor())
        assert_same(store[:], ROWS)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (ROWS.astype("f8"), TypeError),
        (ROWS.astype(">f4"), TypeError),
        (ROWS.astype("f2"), TypeError),
        (ROWS.astype("i4"), TypeError),
        (ROWS.view("i4"), TypeError),
        (ROWS.astype(object), TypeError),
        (ROWS[:0].astype("f8"), TypeError),
        (ROWS.tolist(), TypeError),
        (list(ROWS), TypeError),
        ([], TypeError),
        (None, TypeError),
        (5, TypeError),
        ("rows", TypeError),
        (b"rows", TypeError),
        (np.float32(1), TypeError),
        (ROWS[0], ValueError),
        (ROWS[:, 0], ValueError),
        (ROWS.reshape(10, 3, 2), ValueError),
        (ROWS.reshape(10, 6), ValueError),
        (ROWS[None], ValueError),
        (np.array(1, "f4"), ValueError),
        (np.empty((0, 3, 2), "f4"), ValueError),
        (np.empty(0, "f4"), ValueError),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_wrong_dtype_and_shape_are_refused(dense, records, error):
    with pytest.raises(error):
        dense.append(records)
    assert_same(dense[:], ROWS)
    assert dense.append(ROWS[:2]) == 10


def test_a_single_record_gets_the_advice(dense):
    with pytest.raises(ValueError, match=r"record\[None\]"):
        dense.append(ROWS[0])
    assert dense.append(ROWS[0][None]) == 10


def test_float64_is_never_rounded_into_float16(tmp_path):
    with DenseStore(tmp_path / "s", "f2", ()) as store:
        with pytest.raises(TypeError, match=r"float64.*float16.*cast"):
            store.append(np.array([0.1]))
        store.append(np.array([0.1], "f2"))
        assert_same(store[:], np.array([0.1], "f2"))


def test_one_wrong_batch_late_keeps_what_was_there(tmp_path):
    with DenseStore(tmp_path / "s", "i4", ()) as store:
        for i in range(20):
            store.append(np.array([i], "i4"))
        with pytest.raises(TypeError):
            store.append(np.array([20], "i8"))
        assert_same(store[:], np.arange(20, dtype="i4"))
        assert store.append(np.array([20], "i4")) == 20
    with DenseStore(tmp_path / "s", mode="r") as store:
        assert_same(store[:], np.arange(21, dtype="i4"))


# ---- gather with out ----------------------------------------------------------------------------


@pytest.mark.parametrize("indices", [[3, 1], slice(None), np.array([9, 9, 0]), np.zeros(10, bool)])
def test_out_is_filled_and_returned(dense, indices):
    expected = dense[indices]
    out = np.full_like(expected, -1)
    assert dense.gather(indices, out=out) is out
    assert_same(out, expected)
    assert dense.gather(indices, out) is out


def test_out_may_be_any_writable_contiguous_array(dense, tmp_path):
    out = np.zeros((4, 2, 3), "f4")
    dense.gather([1, 2], out=out[1:3])
    assert_same(out, np.concatenate([ROWS[:0], np.zeros((1, 2, 3), "f4"), ROWS[1:3], out[3:]]))
    mapped = np.memmap(tmp_path / "out", "f4", "w+", shape=(2, 2, 3))
    assert dense.gather([5, 6], out=mapped) is mapped
    assert_same(np.asarray(mapped), ROWS[5:7])


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.empty((2, 2, 3), "f8"), TypeError),
        (np.empty((2, 2, 3), ">f4"), TypeError),
        (np.empty((2, 2, 3), "i4"), TypeError),
        ([0] * 12, TypeError),
        (bytearray(48), TypeError),
        (np.empty((3, 2, 3), "f4"), ValueError),
        (np.empty((1, 2, 3), "f4"), ValueError),
        (np.empty((2, 3, 2), "f4"), ValueError),
        (np.empty(12, "f4"), ValueError),
        (np.empty((2, 2, 6), "f4")[:, :, ::2], ValueError),
        (np.empty((3, 2, 2), "f4").T, ValueError),
        (np.frombuffer(bytes(48), "f4").reshape(2, 2, 3), ValueError),
    ],
)
def test_a_wrong_out_is_refused_unchanged(dense, out, error):
    before = np.array(out, copy=True) if isinstance(out, np.ndarray) else None
    with pytest.raises(error):
        dense.gather([0, 1], out=out)
    if before is not None:
        assert out.tobytes() == before.tobytes()


def test_records_up_to_the_largest_size(tmp_path):
    with pytest.raises(ValueError, match=str(2**31 - 1)):
        DenseStore(tmp_path / "s", "u1", (2**31,))
    DenseStore(tmp_path / "s", "u1", (2**31 - 1,)).close()
    with DenseStore(tmp_path / "s") as store:
        assert store.append(np.empty((0, 2**31 - 1), "u1")) == 0


def test_large_records_gather_exactly(tmp_path, codec, codec_options):
    width = 200_001 if codec == "zstd_dict" else 3_000_001
    rows = np.random.default_rng(1).integers(0, 4, (6, width), dtype="u1")
    with DenseStore(tmp_path / "s", "u1", (width,), **codec_options) as store:
        store.append(rows)
        indices = [5, 0, 3, 3]
        assert_same(store[indices], rows[indices])
        assert_same(store[2], rows[2])


def test_a_batch_lives_on_after_close_and_removal(tmp_path):
    import shutil

    with DenseStore(tmp_path / "s", "f4", (2, 3), "raw") as store:
        store.append(ROWS)
        batch = store[:]
    shutil.rmtree(tmp_path / "s")
    assert_same(batch, ROWS)


def test_getitems_serves_a_torch_batch_sampler(dense):
    # torch's data loader calls __getitems__ with a list of ints where it exists.
    assert_same(dense.__getitems__([4, 2]), ROWS[[4, 2]])
