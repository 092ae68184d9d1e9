"""Saving, resuming and seeking: exact, small, and refused over other data."""

from __future__ import annotations

import json
import pickle
import random
import threading
import time

import numpy as np
import pytest
from loaderx import DataLoader, Sampler, StateMismatch

RECORDS = 100


def data(seed=0, records=RECORDS):
    return {"x": np.random.default_rng(seed).standard_normal((records, 3))}


def jitter(batch, info):
    time.sleep(random.random() * 0.0004)
    return {**batch, "noise": info.rng.random(3), "step": info.step}


def make(workers=2, batch_size=10, prefetch=4, **options):
    options.setdefault("transform", jitter)
    options.setdefault("with_index", "i")
    streams = options.pop("streams", None) or data()
    return DataLoader(streams, workers, batch_size, prefetch, **options)


def text(batch):
    return (
        batch["step"], batch["i"].tobytes(), batch["x"].tobytes(), batch["noise"].tobytes(),
    )  # fmt: skip


def reference(steps, **options):
    with make(0, **options) as loader:
        return [text(batch) for batch in loader.take(steps)]


@pytest.mark.parametrize("mode", ["sequential", "iid", "cyclic"])
def test_stop_and_resume_at_random_steps_and_resume_of_a_resume(mode):
    whole = reference(80, mode=mode)
    chooser = random.Random(5)
    for _ in range(20):
        first, second = sorted(chooser.sample(range(60), 2))
        got = []
        state = None
        for until in (first, second, 80):
            workers, prefetch = chooser.choice([0, 1, 4, 8]), chooser.choice([1, 2, 8])
            with make(workers, prefetch=prefetch, mode=mode) as loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                got += [text(batch) for batch in loader.take(until - len(got))]
                state = loader.state_dict()
        assert got == whole


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("step", [0, 1, 5, 9, 10, 11, 20])
def test_save_before_the_first_in_the_middle_and_at_cycle_ends(workers, step):
    whole = reference(30)
    with make(workers) as loader:
        list(loader.take(step))
        states = [loader.state_dict() for _ in range(3)]
        assert states[0] == states[1] == states[2]
        assert [text(b) for b in loader.take(3)] == whole[step : step + 3]
    with make(4 - workers) as other:
        other.load_state_dict(states[0])
        assert other.tell() == step
        assert [text(b) for b in other.take(30 - step)] == whole[step:]


def test_only_delivered_batches_count():
    with make(4, prefetch=8) as loader:
        list(loader.take(5))
        deadline = time.monotonic() + 5
        while loader.stats()["ready"] < 8:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        state = loader.state_dict()
        assert state["step"] == 5
    with make(0) as other:
        other.load_state_dict(state)
        assert next(other)["step"] == 5


def test_interrupt_in_the_second_pass():
    whole = reference(40)
    with make(2) as loader:
        got = [text(b) for b in loader.epochs(1)]
        for number, batch in enumerate(loader.epochs(1)):
            got.append(text(batch))
            if number == 3:
                break
        state = loader.state_dict()
    with make(3) as other:
        other.load_state_dict(state)
        got += [text(b) for b in other.take(40 - len(got))]
    assert got == whole


def test_the_state_is_small_and_plain():
    with make(weights=None, subset=np.arange(50)) as loader:
        next(loader)
        state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert pickle.loads(pickle.dumps(state)) == state
    assert len(json.dumps(state)) < 2000
    assert set(state) == {"version", "step", "sampler", "streams", "subset"}


def test_a_resumed_loader_can_be_rewound_by_its_old_state():
    with make(2) as loader:
        state = loader.state_dict()
        first = [text(b) for b in loader.take(12)]
        loader.load_state_dict(state)
        assert [text(b) for b in loader.take(12)] == first


@pytest.mark.parametrize("remainder", ["drop", "wrap"])
def test_another_world_size_with_the_same_global_batch_is_exact(remainder):
    def ranks_of(count):
        return [
            make(1, 12 // count, rank=rank, world_size=count, remainder=remainder)
            for rank in range(count)
        ]

    def draw(loaders, steps):
        return [
            np.concatenate([next(loader)["i"] for loader in loaders]).tolist() for _ in range(steps)
        ]

    def close(loaders):
        for loader in loaders:
            loader.close()

    whole = ranks_of(1)
    expected = draw(whole, 30)
    close(whole)
    got, state = [], None
    for count in (2, 4, 1, 3):
        loaders = ranks_of(count)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        got += draw(loaders, 7)
        states = [loader.state_dict() for loader in loaders]
        assert all(s == states[0] for s in states)
        state = states[-1]
        close(loaders)
    assert got == expected[:28]


def test_another_global_batch_is_refused():
    with make(batch_size=10) as loader:
        next(loader)
        state = loader.state_dict()
    with make(batch_size=5) as other:
        with pytest.raises(StateMismatch, match="global_batch"):
            other.load_state_dict(state)
        assert other.tell() == 0


def test_every_difference_is_listed_and_nothing_is_changed():
    with make(seed=1, mode="iid", subset=np.arange(60)) as loader:
        list(loader.take(3))
        state = loader.state_dict()
    streams = {**data(seed=9), "y": np.arange(RECORDS)}
    with make(seed=2, mode="cyclic", streams=streams, start_step=4) as other:
        with pytest.raises(StateMismatch) as caught:
            other.load_state_dict(state)
        message, differences = str(caught.value), caught.value.differences
        for part in (
            "seed",
            "mode",
            "length",
            "stream 'x'",
            "stream 'y'",
            "subset",
            "strict=False",
        ):
            assert part in message
        assert len(differences) >= 6
        assert isinstance(caught.value, ValueError)
        assert other.tell() == 4
        assert next(other)["step"] == 4
        other.load_state_dict(state, strict=False)
        assert next(other)["step"] == 3


def test_changed_contents_of_an_array_are_noticed():
    streams = data()
    with make(streams=streams) as loader:
        state = loader.state_dict()
    streams["x"][0] += 1
    with make(streams=streams) as other, pytest.raises(StateMismatch, match="stream 'x'"):
        other.load_state_dict(state)


def test_a_store_that_only_grew_is_said_to_have_grown():
    class Store:
        dtype = np.dtype(np.int64)
        item_shape = ()

        def __init__(self, records):
            self.records = records
            self.fingerprint = ["uuid", 3, records, {"codec": "raw"}["codec"]]

        def __len__(self):
            return self.records

        def gather(self, indices, out=None):
            return np.asarray(indices)

    with DataLoader({"s": Store(100)}, 1, 10) as loader:
        list(loader.take(4))
        state = loader.state_dict()
    with DataLoader({"s": Store(120)}, 1, 10) as other:
        with pytest.raises(StateMismatch, match=r"only grew: 100 records .* 120 now"):
            other.load_state_dict(state)
        other.load_state_dict(state, strict=False)
        assert other.tell() == 4


@pytest.mark.parametrize(
    ("state", "error", "match"),
    [
        (None, TypeError, "state"),
        ([], TypeError, "state"),
        ({}, ValueError, "sampler, step, streams, subset, version missing"),
        ({"version": 1}, ValueError, "missing"),
        ("version", ValueError, "version 99"),
        ("step", ValueError, "step"),
        ("streams", TypeError, "streams"),
        ("sampler", TypeError, "state"),
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(state, error, match):
    with make() as loader:
        next(loader)
        if isinstance(state, str):
            bad = {"version": 99, "step": -1, "streams": 3, "sampler": None}
            state = {**loader.state_dict(), state: bad[state]}
        with pytest.raises(error, match=match):
            loader.load_state_dict(state)
        assert next(loader)["step"] == 1


def test_a_sampler_state_alone_is_not_a_loader_state():
    with make() as loader, pytest.raises(ValueError, match="missing"):
        loader.load_state_dict(Sampler(RECORDS, 10).state_dict())


def test_reading_one_batch_ahead():
    """The recipe for trainers that hold one batch more than they have trained on."""
    whole = reference(20)
    with make(2) as loader:
        list(loader.take(8))
        trained = loader.tell() - 1
    with make(2) as other:
        other.seek(trained)
        assert [text(b) for b in other.take(3)] == whole[7:10]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_seek_goes_anywhere_and_drops_what_was_prefetched(workers):
    chooser = random.Random(1)
    with make(workers) as loader:
        for _ in range(50):
            step = chooser.choice([0, 1, 9, 10, 11, 1000, 2**31, 2**40])
            loader.seek(step)
            assert loader.tell() == step
            for ahead in range(chooser.randrange(4)):
                assert next(loader)["step"] == step + ahead


def test_threads_stay_and_results_of_before_are_dropped():
    gate = threading.Event()

    def transform(batch, info):
        if info.step < 10:
            gate.wait(5)
        return info.step

    with make(3, prefetch=3, transform=transform) as loader:
        reader = threading.Thread(target=next, args=(loader,))
        reader.start()
        deadline = time.monotonic() + 5
        while len(loader._ring.threads) < 3:
            assert time.monotonic() < deadline
        before = list(loader._ring.threads)
        loader.seek(100)
        gate.set()
        reader.join()
        assert list(loader.take(20)) == list(range(101, 121))
        assert list(loader._ring.threads) == before
        assert all(thread.is_alive() for thread in before)
        assert loader.tell() == 121


@pytest.mark.parametrize("move", ["seek", "load", "once"])
def test_a_waiting_next_follows_the_seek_at_once(move):
    """It does not wait for the step that it was waiting for, which is stuck."""
    stuck, release = threading.Event(), threading.Event()

    def transform(batch, info):
        if info.step == 3:
            stuck.set()
            release.wait(20)
        return info.step

    got = []
    with make(2, prefetch=2, transform=transform, start_step=3) as loader:
        reader = threading.Thread(target=lambda: got.append(next(loader)))
        reader.start()
        assert stuck.wait(5)
        deadline = time.monotonic() + 5
        while loader.stats()["ready"] < 1:  # the other worker has made step 4 and is parked
            assert time.monotonic() < deadline
        if move == "seek":
            loader.seek(100)
        elif move == "load":
            state = loader.state_dict()
            state["sampler"]["position"] = 100 * 10
            loader.load_state_dict(state)
        else:
            loader.once()  # ended again by the waiting next, which goes on with the stream
            loader.seek(100)
        reader.join(5)
        assert got == [100]
        release.set()


@pytest.mark.parametrize(
    ("step", "error"), [(-1, ValueError), (2**63, ValueError), (1.0, TypeError), ("1", TypeError),
                        (None, TypeError), (True, TypeError)],
)  # fmt: skip
def test_bad_steps_are_refused_and_change_nothing(step, error):
    with make() as loader:
        next(loader)
        with pytest.raises(error, match="step"):
            loader.seek(step)
        assert next(loader)["step"] == 1


def test_start_step_equals_seek():
    whole = reference(12)
    with make(start_step=9) as loader:
        assert [text(b) for b in loader.take(3)] == whole[9:]
    with make() as loader:
        loader.seek(np.int64(9))
        assert [text(b) for b in loader.take(3)] == whole[9:]
