"""Bad arguments are refused up front and named."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from loaderx import DataLoader, Sampler


def numbers(records=100):
    return {"x": np.arange(records)}


class Ragged:
    dtype = np.dtype(np.int32)

    def __len__(self):
        return 100

    def gather(self, indices, out=None):
        return [np.arange(i + 1, dtype=np.int32) for i in indices]


class Partial:
    dtype = np.dtype(np.int32)

    def __len__(self):
        return 100


class NegativeSampler:
    steps_per_cycle = 1

    def __init__(self, indices):
        self.indices = indices

    def at(self, step):
        return self.indices

    def state_dict(self):
        return {}

    def load_state_dict(self, state, strict=True):
        pass


BAD = [
    ("no streams", {"streams": {}}, ValueError, "streams is empty"),
    ("streams None", {"streams": None}, TypeError, "streams must be a dict.*NoneType"),
    ("a bare array", {"streams": np.arange(3)}, TypeError, "streams must be a dict.*ndarray"),
    ("a list", {"streams": [np.arange(3)]}, TypeError, "streams must be a dict.*list"),
    ("number as a name", {"streams": {1: np.arange(3)}}, TypeError, "names must be str, got 1"),
    ("a list as stream", {"streams": {"x": [1, 2]}}, TypeError, "stream 'x'.*list.*gather"),
    ("None as stream", {"streams": {"x": None}}, TypeError, "stream 'x'.*NoneType"),
    ("no gather", {"streams": {"p": Partial()}}, TypeError, "stream 'p'.*Partial.*no gather"),
    ("0-d array", {"streams": {"x": np.array(3)}}, ValueError, "stream 'x' is a 0-d array"),
    ("masked", {"streams": {"x": np.ma.zeros(300)}}, TypeError, "stream 'x'.*mask"),
    (
        "unequal lengths",
        {"streams": {"a": np.zeros(300), "b": np.zeros(400), "c": np.zeros(300)}},
        ValueError,
        "'a' has 300, 'b' has 400, 'c' has 300",
    ),
    ("length 0", {"streams": {"a": np.zeros((0, 3))}}, ValueError, "'a' has 0"),
    ("batch_size 0", {"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    ("batch_size -1", {"batch_size": -1}, ValueError, "batch_size"),
    ("batch_size 2.0", {"batch_size": 2.0}, TypeError, "batch_size must be an integer, got float"),
    ("batch_size '8'", {"batch_size": "8"}, TypeError, "batch_size"),
    ("batch_size True", {"batch_size": True}, TypeError, "batch_size"),
    ("batch_size None", {"batch_size": None}, TypeError, "batch_size"),
    ("batch over n", {"batch_size": 101}, ValueError, "100.*101"),
    ("batch over n iid", {"batch_size": 101, "mode": "iid"}, ValueError, "101.*100.*wrap"),
    ("batch over n seq", {"batch_size": 101, "mode": "sequential"}, ValueError, "101.*100.*wrap"),
    (
        "3 records, 7 ranks",
        {"streams": {"x": np.arange(3)}, "batch_size": 1, "rank": 2, "world_size": 7},
        ValueError,
        "7.*3|3.*7",
    ),
    ("5 records, batch 8", {"streams": {"x": np.arange(5)}, "batch_size": 8}, ValueError, "8"),
    ("prefetch 0", {"prefetch_size": 0}, ValueError, "prefetch_size must be at least 1, got 0"),
    ("prefetch -4", {"prefetch_size": -4}, ValueError, "prefetch_size"),
    ("prefetch 1e9", {"prefetch_size": 10**9}, ValueError, "prefetch_size must be at most"),
    ("prefetch 1.5", {"prefetch_size": 1.5}, TypeError, "prefetch_size"),
    ("workers -1", {"num_workers": -1}, ValueError, "num_workers must be at least 0, got -1"),
    ("workers None", {"num_workers": None}, TypeError, "num_workers"),
    ("workers 2.5", {"num_workers": 2.5}, TypeError, "num_workers"),
    ("unknown mode", {"mode": "random"}, ValueError, "mode.*'random'"),
    ("mode 7", {"mode": 7}, ValueError, "mode.*7"),
    ("seed -1", {"seed": -1}, ValueError, "seed.*-1"),
    ("seed 2**64", {"seed": 2**64}, ValueError, "seed"),
    ("seed 1.0", {"seed": 1.0}, TypeError, "seed"),
    ("transform 3", {"transform": 3}, TypeError, "transform must be callable.*int"),
    ("transform list", {"transform": [abs]}, TypeError, "transform must be callable.*list"),
    ("rank -1", {"rank": -1}, ValueError, "rank.*-1"),
    ("rank = world", {"rank": 2, "world_size": 2}, ValueError, "rank.*2"),
    ("rank 0.0", {"rank": 0.0}, TypeError, "rank"),
    ("world 0", {"world_size": 0}, ValueError, "world_size.*0"),
    ("remainder keep", {"remainder": "keep"}, ValueError, "remainder.*'keep'"),
    ("start -1", {"start_step": -1}, ValueError, "start_step must be at least 0, got -1"),
    ("start 2**63", {"start_step": 2**63}, ValueError, "start_step must be below"),
    ("start 1.0", {"start_step": 1.0}, TypeError, "start_step"),
    ("subset empty", {"subset": []}, ValueError, "subset selects no record"),
    ("subset mask empty", {"subset": np.zeros(100, bool)}, ValueError, "subset selects no record"),
    ("subset 2-D", {"subset": np.zeros((2, 2), int)}, ValueError, "subset must be 1-D"),
    ("subset scalar", {"subset": 5}, ValueError, "subset must be 1-D"),
    ("subset floats", {"subset": [0.0, 1.0]}, TypeError, "subset.*float64"),
    ("subset strings", {"subset": ["a"]}, TypeError, "subset"),
    ("subset repeats", {"subset": [5, 1, 5]}, ValueError, "subset holds index 5 more than once"),
    ("subset negative", {"subset": [3, -1]}, ValueError, "subset holds index -1.*0 to 99"),
    ("subset over", {"subset": [3, 100]}, ValueError, "subset holds index 100.*0 to 99"),
    ("subset mask short", {"subset": np.ones(99, bool)}, ValueError, "subset.*99.*100"),
    ("subset under batch", {"subset": [1, 2]}, ValueError, "10.*2|2.*10"),
    ("weights cyclic", {"weights": np.ones(100)}, ValueError, "weights"),
    ("weights short", {"weights": np.ones(9), "mode": "iid"}, ValueError, "weights"),
    ("weights zero", {"weights": np.zeros(100), "mode": "iid"}, ValueError, "weights"),
    ("weights negative", {"weights": -np.ones(100), "mode": "iid"}, ValueError, "weights"),
    ("index number", {"with_index": 3}, TypeError, "with_index must be a str.*int"),
    ("index taken", {"with_index": "x"}, ValueError, "with_index='x' is the name of a stream"),
    ("packed", {"streams": {"r": Ragged()}, "packed": True}, TypeError, "packed=True.*'r'"),
    ("sampler object", {"sampler": object(), "batch_size": 256}, TypeError, "sampler.*at"),
]


@pytest.mark.parametrize(
    ("options", "error", "match"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_arguments_are_named(options, error, match):
    arguments = {"streams": numbers(), "batch_size": 10, **options}
    with pytest.raises(error, match=match):
        DataLoader(**arguments)


@pytest.mark.parametrize(
    "option",
    [
        {"batch_size": 8}, {"mode": "iid"}, {"seed": 1}, {"weights": np.ones(100)}, {"rank": 1},
        {"world_size": 2}, {"remainder": "wrap"}, {"subset": [1]},
    ],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_a_sampler_takes_the_place_of_other_arguments(option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=rf"sampler= takes the place of {name}"):
        DataLoader(numbers(), sampler=Sampler(100, 10), **option)


def test_a_sampler_for_another_length_is_refused():
    with pytest.raises(ValueError, match="sampler is for 90 records, but the streams have 100"):
        DataLoader(numbers(), sampler=Sampler(90, 10))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("indices", "error", "match"),
    [
        ([0, -1], IndexError, "returned index -1; expected 0 to 99"),
        ([0, 100], IndexError, "returned index 100"),
        (np.array([2**64 - 1], np.uint64), IndexError, "returned index 18446744073709551615"),
        ([0.5], TypeError, "float64"),
        ([[1, 2]], TypeError, "2-D"),
        (None, TypeError, "object"),
    ],
    ids=str,
)
def test_what_a_foreign_sampler_returns_is_checked(workers, indices, error, match):
    with DataLoader(numbers(), workers, sampler=NegativeSampler(indices)) as loader:
        with pytest.raises(error, match=match) as caught:
            next(loader)
        assert "sampler" in caught.value.__notes__[0]


@pytest.mark.parametrize("indices", [[3, 4], (3, 4), np.array([3, 4], np.uint8)], ids=repr)
def test_a_foreign_sampler_may_return_any_integers(indices):
    with DataLoader(numbers(), 1, sampler=NegativeSampler(indices)) as loader:
        assert next(loader)["x"].tolist() == [3, 4]


def test_numpy_integers_are_integers():
    with DataLoader(
        numbers(), np.int8(2), np.uint16(10), np.int64(4), np.int64(2), np.uint64(5),
        rank=np.int32(0), world_size=np.int32(1), start_step=np.int64(3),
    ) as loader:  # fmt: skip
        assert loader.tell() == 3
        assert len(next(loader)["x"]) == 10


def test_n_below_the_global_batch_is_fine_with_wrap():
    for mode in ("sequential", "iid", "cyclic"):
        with DataLoader(numbers(5), 1, 8, mode=mode, remainder="wrap") as loader:
            assert len(next(loader)["x"]) == 8


def test_the_positional_order_of_the_constructor():
    transform = lambda batch, info: (info.step, batch["x"].tolist())  # noqa: E731
    with (
        DataLoader(numbers(), 3, 20, 2, Sampler.Mode.IID, 7, transform) as positional,
        DataLoader(
            numbers(), num_workers=3, batch_size=20, prefetch_size=2, mode="iid", seed=7,
            transform=transform,
        ) as named,
    ):  # fmt: skip
        assert list(positional.take(5)) == list(named.take(5))


def test_a_loader_is_not_pickled_or_copied():
    with DataLoader(numbers(), 1, 10) as loader:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="state_dict"):
                attempt(loader)


def test_repr_shows_what_was_asked_for():
    with DataLoader(numbers(), 3, 10, 2, "iid", 5, subset=range(50), with_index="i") as loader:
        for part in ("DataLoader(", "'x'", "num_workers=3", "prefetch_size=2", "50", "IID", "'i'"):
            assert part in repr(loader)
        assert "closed" not in repr(loader)
    assert "closed" in repr(loader)
