"""What a loader can read: arrays, memmaps and objects with the few methods of a stream."""

from __future__ import annotations

import threading
from collections import namedtuple

import numpy as np
import pytest
from loaderx import DataLoader, LoaderxError, StateMismatch
from loaderx._stream import ArrayStream, Stream

RECORDS = 64

Packed = namedtuple("Packed", "values offsets")


class Dense:
    """A stream that counts what it is asked for."""

    def __init__(self, array):
        self.array = array
        self.dtype = array.dtype
        self.item_shape = array.shape[1:]
        self.calls = []

    def __len__(self):
        return len(self.array)

    def gather(self, indices, out=None):
        self.calls.append(indices)
        return self.array[indices]


class RaggedBatch(Packed):
    def __len__(self):
        return len(self.offsets) - 1


class Ragged:
    dtype = np.dtype(np.int32)

    def __init__(self, records=RECORDS):
        self.records = [np.arange(1 + i % 7, dtype=np.int32) + i for i in range(records)]

    def __len__(self):
        return len(self.records)

    def gather(self, indices, out=None):
        return [self.records[i].copy() for i in indices]

    def gather_packed(self, indices, out=None):
        parts = self.gather(indices)
        offsets = np.cumsum([0, *(len(part) for part in parts)])
        return RaggedBatch(np.concatenate(parts), offsets)


def first_batch(streams, workers=1, **options):
    with DataLoader(streams, workers, 16, with_index="i", **options) as loader:
        return next(loader)


STRUCTURED = np.dtype([("a", "u1"), ("b", "<f8", (2,))])
ARRAYS = {
    "vector": np.arange(RECORDS, dtype=np.int16),
    "matrix": np.arange(RECORDS * 3.0).reshape(RECORDS, 3),
    "image": np.arange(RECORDS * 48, dtype=np.uint8).reshape(RECORDS, 4, 4, 3),
    "fortran": np.asfortranarray(np.arange(RECORDS * 3.0).reshape(RECORDS, 3)),
    "strided": np.arange(RECORDS * 12).reshape(RECORDS * 2, 6)[::2, ::2],
    "reversed": np.arange(RECORDS)[::-1],
    "big endian": np.arange(RECORDS, dtype=">i4"),
    "unaligned": np.frombuffer(bytes(1 + RECORDS * 8), np.uint8)[1:].view(np.int64),
    "bool": np.arange(RECORDS) % 3 == 0,
    "complex": np.arange(RECORDS) * (1 + 2j),
    "datetime": np.arange(RECORDS).astype("M8[D]"),
    "text": np.array([f"record {i}" for i in range(RECORDS)]),
    "bytes": np.array([b"%d" % i for i in range(RECORDS)]),
    "structured": np.zeros(RECORDS, STRUCTURED),
    "objects": np.array([{"i": i} for i in range(RECORDS)], object),
    "zero width": np.zeros((RECORDS, 0)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_dtype_and_layout(name):
    array = ARRAYS[name]
    batch = first_batch({name: array})
    expected = np.asarray(array)[batch["i"]]
    assert batch[name].dtype == array.dtype
    assert np.array_equal(batch[name], expected)
    assert type(batch[name]) is np.ndarray
    assert batch[name].flags.writeable
    assert batch[name].flags.c_contiguous
    assert not np.shares_memory(batch[name], array)


def test_a_memmap_is_read_as_it_is(tmp_path):
    path = tmp_path / "rows.npy"
    rows = np.random.default_rng(0).integers(0, 255, (RECORDS, 5), dtype=np.uint8)
    np.save(path, rows)
    batch = first_batch({"x": np.load(path, mmap_mode="r")})
    assert type(batch["x"]) is np.ndarray
    assert np.array_equal(batch["x"], rows[batch["i"]])


def test_each_stream_is_called_once_a_batch_with_the_same_indices():
    a, b = Dense(np.arange(RECORDS)), Dense(np.arange(RECORDS) * 2)
    with DataLoader({"a": a, "b": b}, 0, 16, with_index="i") as loader:
        batches = list(loader.take(9))
    assert len(a.calls) == len(b.calls) == 9
    for batch, asked_a, asked_b in zip(batches, a.calls, b.calls, strict=True):
        assert asked_a.dtype == np.int64
        assert np.array_equal(asked_a, batch["i"])
        assert np.array_equal(asked_b, batch["i"])
        assert np.array_equal(batch["b"], batch["a"] * 2)
    assert list(batches[0]) == ["a", "b", "i"]


def test_the_protocol_is_met_by_what_is_accepted():
    for stream in (Dense(np.arange(3)), Ragged(), ArrayStream(np.arange(3))):
        assert isinstance(stream, Stream)
    assert not isinstance([1], Stream)


@pytest.mark.parametrize("workers", [0, 3])
def test_a_ragged_stream_gives_lists_and_packed_batches(workers):
    ragged = Ragged()
    batch = first_batch({"r": ragged, "x": np.arange(RECORDS)}, workers)
    assert isinstance(batch["r"], list)
    for record, index in zip(batch["r"], batch["i"], strict=True):
        assert np.array_equal(record, ragged.records[index])
    packed = first_batch({"r": ragged, "x": np.arange(RECORDS)}, workers, packed=True)
    assert np.array_equal(packed["i"], batch["i"])
    assert np.array_equal(packed["r"].values, np.concatenate(batch["r"]))
    assert len(packed["r"]) == 16
    assert packed["x"].shape == (16,)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("records", [RECORDS + 1, RECORDS - 1])
def test_a_length_that_changed_is_reported_at_its_step(workers, records):
    stream = Dense(np.arange(RECORDS))
    with DataLoader({"other": np.arange(RECORDS), "grown": stream}, workers, 8, 1) as loader:
        list(loader.take(3))
        stream.array = np.arange(records)
        with pytest.raises(LoaderxError, match=f"stream 'grown' has {records} .* had {RECORDS}"):
            list(loader.take(3))
        assert loader.tell() in (3, 4)
        stream.array = np.arange(RECORDS)
        loader.seek(loader.tell())
        next(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_returns_too_few_records_is_reported(workers):
    class Short(Dense):
        def gather(self, indices, out=None):
            return self.array[indices[:-1]]

    with (
        DataLoader({"s": Short(np.arange(RECORDS))}, workers, 8) as loader,
        pytest.raises(LoaderxError, match="stream 's' returned 7 records for 8 indices"),
    ):
        next(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_closes_under_the_loader_raises_its_own_error(workers, bounded):
    class Closing(Dense):
        closed = threading.Event()

        def __len__(self):
            if self.closed.is_set():
                raise ValueError("the stream is closed")
            return len(self.array)

    stream = Closing(np.arange(RECORDS))
    with DataLoader({"c": stream}, workers, 8, 2) as loader:
        list(loader.take(5))
        stream.closed.set()
        with pytest.raises(ValueError, match="the stream is closed"):
            bounded(lambda: list(loader.take(5)))
        assert 5 <= loader.tell() <= 7


def test_a_fingerprint_does_not_read_a_whole_array():
    array = np.lib.stride_tricks.as_strided(np.zeros(1), (2**40, 2**19), (0, 0))
    assert ArrayStream(array).fingerprint[0] == 2**40


@pytest.mark.parametrize("name", [name for name in ARRAYS if ARRAYS[name].ndim])
def test_fingerprints_of_arrays_are_plain_and_repeatable(name):
    import json

    array = ARRAYS[name]
    fingerprint = ArrayStream(array).fingerprint
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    assert ArrayStream(array.copy()).fingerprint == fingerprint


def test_fingerprints_tell_arrays_apart():
    base = np.arange(600.0).reshape(100, 6)
    others = [
        base.reshape(100, 3, 2), base.astype(np.float32), base.astype(">f8"), base[:99],
        base + 1, base[::-1], base.reshape(100, 6)[:, ::-1],
    ]  # fmt: skip
    prints = [str(ArrayStream(array).fingerprint) for array in [base, *others]]
    assert len(set(prints)) == len(prints)


def test_without_a_fingerprint_length_dtype_and_shape_are_compared():
    class Other(Dense):
        pass

    def state_of(array):
        with DataLoader({"x": Other(array)}, 0, 8) as loader:
            next(loader)
            return loader.state_dict()

    state = state_of(np.arange(RECORDS))
    with DataLoader({"x": Other(np.arange(RECORDS) + 5)}, 0, 8) as loader:
        loader.load_state_dict(state)
        assert loader.tell() == 1
    for other in (np.arange(RECORDS, dtype=np.int8), np.zeros((RECORDS, 2), np.int64)):
        loader = DataLoader({"x": Other(other)}, 0, 8)
        with loader, pytest.raises(StateMismatch, match="stream 'x' is not the same"):
            loader.load_state_dict(state)


def test_a_fingerprint_that_no_file_could_hold_is_refused():
    stream = Dense(np.arange(RECORDS))
    stream.fingerprint = [object()]
    with pytest.raises(TypeError, match="fingerprint of stream 'x' holds a object"):
        DataLoader({"x": stream}, 0, 8)


def test_tuples_and_numpy_numbers_in_a_fingerprint_survive_a_file():
    import json

    stream = Dense(np.arange(RECORDS))
    stream.fingerprint = ("id", np.int64(3), (1.5, None, True))
    with DataLoader({"x": stream}, 0, 8) as loader:
        loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))


def test_an_array_and_a_stream_over_it_behave_alike():
    array = np.random.default_rng(1).standard_normal((RECORDS, 4))
    options = {"num_workers": 2, "batch_size": 7, "seed": 5, "with_index": "i"}
    with (
        DataLoader({"x": array}, **options) as plain,
        DataLoader({"x": Dense(array)}, **options) as wrapped,
    ):
        for a, b in zip(plain.take(30), wrapped.take(30), strict=True):
            assert a["x"].tobytes() == b["x"].tobytes()
            assert a["x"].dtype == b["x"].dtype
        for a, b in zip(plain.once(), wrapped.once(), strict=True):
            assert a["x"].tobytes() == b["x"].tobytes()
