"""What a transform learns, indices in the batch, and subsets."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from loaderx import DataLoader, Sampler

RECORDS = 120


def numbers():
    return {"x": np.arange(RECORDS) * 10}


def augment(batch, info):
    return info.step, info.indices.tolist(), info.rng.random(4).tolist()


def draw(steps, workers=2, transform=augment, start=0, **options):
    with DataLoader(numbers(), workers, 10, transform=transform, **options) as loader:
        loader.seek(start)
        return list(loader.take(steps))


def test_the_generator_is_the_same_for_any_workers_and_after_resume():
    whole = draw(40, workers=0)
    for workers in (1, 4, 8):
        assert draw(40, workers) == whole
        assert draw(10, workers, start=17) == whole[17:27]


def test_it_differs_between_steps_ranks_and_seeds():
    numbers_drawn = [
        tuple(noise)
        for seed in (0, 1)
        for rank in (0, 1, 2)
        for _, _, noise in draw(12, seed=seed, rank=rank, world_size=3)
    ]
    assert len(set(numbers_drawn)) == len(numbers_drawn) == 2 * 3 * 12


def test_it_is_numpys_philox_keyed_by_seed_and_global_position():
    ((step, _, noise),) = draw(1, seed=9, rank=2, world_size=3, start=4)
    position = 4 * 30 + 2 * 10
    key = np.array([9, 0x6C6F616465720001], np.uint64)
    counter = np.array([0, 0, position, 0], np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key, counter=counter)).random(4)
    assert step == 4
    assert noise == expected.tolist()


def test_once_has_another_tag():
    with DataLoader(
        numbers(), 2, 10, mode="sequential", transform=lambda b, info: info.rng.random()
    ) as loader:
        stream = list(loader.take(12))
        once = list(loader.once())
        assert list(loader.once()) == once
    assert not set(stream) & set(once)
    assert len(set(once)) == 12


def test_the_generator_is_one_object_for_a_step():
    def twice(batch, info):
        assert info.rng is info.rng
        return info.rng.random(), info.rng.random()

    first, second = draw(1, transform=twice)[0]
    assert first != second


def test_far_steps_have_generators_too():
    step = 2**62
    far = draw(2, start=step)
    assert far == draw(2, workers=0, start=step)
    assert far[0][2] != far[1][2]


class Callable:
    def __call__(self, batch, *, info=None):
        return info.step


class Method:
    def apply(self, batch, info):
        return info.step


def keyword_only(batch, *, info):
    return info.step


def positional_only(batch, info="none", /):
    return info


def extra_keywords(batch, **kwargs):
    return sorted(kwargs)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Callable(), 0), (Method().apply, 0), (keyword_only, 0),
        (functools.partial(lambda scale, batch, info: info.step, 2), 0),
        (positional_only, "none"), (extra_keywords, []), (len, 1), (lambda batch: "plain", "plain"),
    ],
    ids=["object", "method", "keyword", "partial", "positional", "kwargs", "builtin", "plain"],
)  # fmt: skip
def test_who_gets_info(transform, expected):
    assert draw(1, transform=transform) == [expected]


def test_the_info_of_a_sampler_that_is_given():
    given = Sampler(RECORDS, 10, "iid", 77, rank=1, world_size=2)
    own = draw(5, mode="iid", seed=77, rank=1, world_size=2)
    with DataLoader(numbers(), 2, sampler=given, transform=augment) as loader:
        assert list(loader.take(5)) == own


@pytest.mark.parametrize("workers", [0, 4])
def test_with_index_adds_store_indices(workers):
    with DataLoader(numbers(), workers, 10, with_index="where") as loader:
        for batch in loader.take(24):
            assert batch["where"].dtype == np.int64
            assert np.array_equal(batch["x"], batch["where"] * 10)


@pytest.mark.parametrize("as_mask", [False, True])
def test_a_subset_is_fixed_before_the_permutation(as_mask):
    chosen = np.array([5, 99, 3, 41, 77, 12, 60, 8])
    subset = np.isin(np.arange(RECORDS), chosen) if as_mask else chosen
    order = np.sort(chosen) if as_mask else chosen.copy()
    with DataLoader(numbers(), 2, 4, subset=subset, with_index="i", seed=3) as loader:
        subset[:] = 0  # the loader has a copy
        assert loader.steps_per_cycle == 2
        got = [batch["i"] for batch in loader.take(10)]
        assert np.array_equal(np.concatenate([b["i"] for b in loader.once()]), order)
    sampler = Sampler(8, 4, seed=3)
    assert [g.tolist() for g in got] == [order[sampler.at(s)].tolist() for s in range(10)]


@pytest.mark.parametrize("subset", [[4, 2, 9], (4, 2, 9), np.array([4, 2, 9], np.uint8)], ids=repr)
def test_other_forms_of_a_subset(subset):
    with DataLoader(numbers(), 1, 3, subset=subset, with_index="i") as loader:
        assert sorted(next(loader)["i"].tolist()) == [2, 4, 9]


def test_weights_belong_to_the_entries_of_the_subset():
    with DataLoader(
        numbers(),
        2,
        10,
        4,
        "iid",
        subset=[7, 8, 9],
        weights=[0, 1, 0],
        remainder="wrap",
        with_index="i",
    ) as loader:
        for batch in loader.take(20):
            assert set(batch["i"].tolist()) == {8}


def test_a_transform_may_change_its_batch_and_return_anything():
    def transform(batch):
        batch["x"] += 1
        batch["new"] = "text"
        return batch

    with DataLoader(numbers(), 2, 10, transform=transform, with_index="i") as loader:
        for batch in loader.take(20):
            assert np.array_equal(batch["x"], batch["i"] * 10 + 1)
            assert batch["new"] == "text"
    assert draw(3, transform=lambda batch: None) == [None] * 3
