"""Finite views of an endless stream: take, epochs and once."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from loaderx import DataLoader, LoaderxError, Sampler


def numbers(records=100):
    return {"x": np.arange(records)}


def stepper(records=100, workers=2, batch_size=10, **options):
    return DataLoader(
        numbers(records), workers, batch_size, transform=lambda b, info: info.step, **options
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_take_is_sized_and_goes_on_where_the_loader_is(workers):
    with stepper(workers=workers) as loader:
        ten = loader.take(10)
        assert len(ten) == operator.length_hint(ten) == 10
        assert list(ten) == list(range(10))
        assert list(ten) == list(range(10, 20))
        assert next(loader) == 20
        assert list(loader.take(0)) == []
        for step in loader.take(5):
            if step == 22:
                break
        assert next(loader) == 23


def test_epochs_are_cycles_from_the_current_step():
    with stepper(records=105) as loader:
        assert loader.steps_per_cycle == 10
        list(loader.take(3))
        two = loader.epochs(2)
        assert len(two) == 20
        assert list(two) == list(range(3, 23))
    with stepper(records=105, remainder="wrap") as loader:
        assert loader.steps_per_cycle == len(loader.epochs(1)) == 11


@pytest.mark.parametrize(("call", "name"), [("take", "k"), ("epochs", "n")])
def test_bad_counts_are_refused(call, name):
    with stepper() as loader:
        for value, error in ((-1, ValueError), (1.5, TypeError), ("3", TypeError)):
            with pytest.raises(error, match=f"{name} must be"):
                getattr(loader, call)(value)


@pytest.mark.parametrize("mode", ["sequential", "iid", "cyclic"])
@pytest.mark.parametrize(
    ("records", "batch_size", "ranks"),
    [(100, 10, 1), (101, 10, 1), (21, 4, 2), (7, 5, 1), (13, 2, 4), (17, 4, 4), (33, 8, 4)],
)
def test_once_is_an_exact_cover_split_as_the_sampler_splits_it(mode, records, batch_size, ranks):
    parts = []
    for rank in range(ranks):
        with DataLoader(
            numbers(records), 2, batch_size, mode=mode, rank=rank, world_size=ranks,
            with_index="i", remainder="wrap",
        ) as loader:  # fmt: skip
            parts.append([batch["i"].tolist() for batch in loader.once()])
            sampler = Sampler(records, batch_size, rank=rank, world_size=ranks, remainder="wrap")
            assert parts[-1] == [indices.tolist() for indices in sampler.epoch()]
    assert len({len(part) for part in parts}) == 1
    in_order = [i for step in zip(*parts, strict=True) for part in step for i in part]
    assert in_order == list(range(records))


def test_once_with_fewer_records_left_than_ranks_has_empty_batches():
    shapes = []
    for rank in range(4):
        with DataLoader({"x": np.zeros((9, 3))}, 1, 2, rank=rank, world_size=4) as loader:
            shapes.append([batch["x"].shape for batch in loader.once()])
    assert shapes == [[(2, 3), (1, 3)], [(2, 3), (0, 3)], [(2, 3), (0, 3)], [(2, 3), (0, 3)]]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_the_stream_goes_on_at_its_position(workers):
    with stepper(workers=workers) as loader:
        assert list(loader.take(7)) == list(range(7))
        state = loader.state_dict()
        once = loader.once()
        for expected in range(5):
            assert next(once) == expected
            assert loader.state_dict() == state
            assert loader.tell() == 7
        assert list(once) == list(range(5, 10))
        assert list(once) == []
        assert loader.state_dict() == state
        assert list(loader.take(3)) == [7, 8, 9]
        assert list(once) == []


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "end",
    [next, lambda ld: ld.seek(3), lambda ld: ld.once(),
     lambda ld: ld.load_state_dict(ld.state_dict())],
    ids=["next", "seek", "once", "load"],
)  # fmt: skip
def test_what_ends_a_pass(workers, begun, end):
    with stepper(workers=workers) as loader:
        once = loader.once()
        if begun:
            assert next(once) == 0
        end(loader)
        for _ in range(3):
            with pytest.raises(LoaderxError, match="once"):
                next(once)


def test_a_pass_that_is_left_early_costs_nothing():
    with stepper() as loader:
        for epoch in range(5):
            list(loader.take(4))
            for step in loader.once():
                if step == epoch:
                    break
        assert next(loader) == 20


def test_once_is_lazy():
    made = []
    with DataLoader(
        numbers(100_000), 1, 1, 4, transform=lambda b, info: made.append(info.step)
    ) as loader:
        once = loader.once()
        next(once)
        next(once)
        assert len(made) <= 2 + 4 + 1


def test_two_loaders_do_not_disturb_each_other():
    with stepper(seed=1) as train, stepper(seed=2) as evaluate:
        pairs = list(zip(train.take(10), evaluate.once(), strict=True))
    assert pairs == [(i, i) for i in range(10)]


def test_once_with_a_sampler_of_ones_own():
    class Backwards:
        steps_per_cycle = 10

        def at(self, step):
            return np.arange(9, -1, -1) + step % 10 * 10

        def state_dict(self):
            return {}

        def load_state_dict(self, state, strict=True):
            pass

    with DataLoader(numbers(), 2, sampler=Backwards()) as loader:
        assert next(loader)["x"].tolist() == list(range(9, -1, -1))
        with pytest.raises(TypeError, match="batch_size"):
            loader.once()
        assert next(loader)["x"][0] == 19
        Backwards.batch_size = 30
        assert [len(batch["x"]) for batch in loader.once()] == [30, 30, 30, 10]
