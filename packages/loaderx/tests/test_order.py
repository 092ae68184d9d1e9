"""One stream of batches: in order, each once, bounded ahead of the consumer."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from loaderx import DataLoader, Sampler

RECORDS = 333
GLOBAL_BATCH = 16


def streams():
    x = np.random.default_rng(7).standard_normal((RECORDS, 5))
    return {"x": x, "y": np.arange(RECORDS, dtype=np.uint16)}


def sleepy(batch):
    time.sleep(random.random() * 0.0006)
    return batch


def as_bytes(batch):
    return {name: (values.dtype.str, values.tobytes()) for name, values in batch.items()}


def draw(steps, workers, prefetch, ranks=1, start_step=0, mode="cyclic", transform=sleepy):
    """Return the batches of some steps, those of all ranks concatenated."""
    loaders = [
        DataLoader(
            streams(), workers, GLOBAL_BATCH // ranks, prefetch, mode, 11, transform,
            rank=rank, world_size=ranks, start_step=start_step, with_index="i",
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        drawn = []
        for _ in range(steps):
            parts = [next(loader) for loader in loaders]
            drawn.append({name: np.concatenate([p[name] for p in parts]) for name in parts[0]})
        return drawn
    finally:
        for loader in loaders:
            loader.close()


def expected(steps, mode="cyclic", start_step=0):
    """Return the same batches from their definition: the sampler and fancy indexing."""
    sampler = Sampler(RECORDS, GLOBAL_BATCH, mode, 11)
    source = streams()
    batches = []
    for step in range(start_step, start_step + steps):
        indices = sampler.at(step).astype(np.int64)
        batch = {name: values[indices] for name, values in source.items()}
        batches.append({**batch, "i": indices})
    return batches


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [1, 2, 8])
@pytest.mark.parametrize("workers", [0, 1, 4, 8])
def test_one_stream_for_any_workers_prefetch_and_ranks(workers, prefetch, ranks):
    steps = 60  # three cycles of 20
    got = draw(steps, workers, prefetch, ranks)
    assert [as_bytes(b) for b in got] == [as_bytes(b) for b in expected(steps)]


@pytest.mark.parametrize("mode", ["sequential", "iid", "cyclic"])
def test_every_mode_follows_its_sampler(mode):
    got = draw(50, 4, 4, mode=mode, start_step=1000)
    assert [as_bytes(b) for b in got] == [as_bytes(b) for b in expected(50, mode, 1000)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_global_order_is_the_same_for_any_number_of_ranks(ranks):
    rows = [b["i"].tolist() for b in draw(40, 2, 4, ranks, transform=None)]
    assert rows == [b["i"].tolist() for b in expected(40)]


def test_passes_without_any_call_are_different_orders():
    with DataLoader(streams(), 2, 9, with_index="i") as loader:
        assert loader.steps_per_cycle == 37
        passes = [tuple(i for b in loader.epochs(1) for i in b["i"].tolist()) for _ in range(3)]
    assert len(set(passes)) == 3
    assert all(sorted(order) == list(range(RECORDS)) for order in passes)


def test_zero_is_a_seed():
    def order(**options):
        with DataLoader(streams(), 1, 16, with_index="i", **options) as loader:
            return next(loader)["i"].tolist()

    assert len({str(order(seed=0)), str(order(seed=1)), str(order())}) == 3
    assert order(seed=0) == order(seed=0)
    assert order(seed=42) == order()


@pytest.mark.parametrize("workers", [0, 4])
def test_batches_and_slices_that_are_kept_do_not_change(workers):
    with DataLoader(streams(), workers, 16, 2, with_index="i") as loader:
        kept = list(loader.take(100))
        slices = [batch["x"][3:7] for batch in loader.take(50)]
        copies = [part.copy() for part in slices]
        list(loader.take(50))
    source = streams()["x"]
    for batch in kept:
        assert np.array_equal(batch["x"], source[batch["i"]])
    assert all(np.array_equal(a, b) for a, b in zip(slices, copies, strict=True))


def test_a_slow_first_step_does_not_let_others_overtake():
    def slow_first(batch, info):
        if info.step % 5 == 0:
            time.sleep(0.01)
        return info.step

    with DataLoader(streams(), 8, 16, 8, transform=slow_first) as loader:
        assert list(loader.take(60)) == list(range(60))


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (4, 1), (2, 3), (8, 4), (3, 8)])
def test_in_flight_and_ready_never_exceed_prefetch(workers, prefetch):
    lock = threading.Lock()
    begun = 0
    delivered = 0
    ahead_max = 0

    def count(batch):
        nonlocal begun, ahead_max
        with lock:
            begun += 1
            ahead_max = max(ahead_max, begun - delivered)
        time.sleep(0.0005)
        return batch

    with DataLoader(streams(), workers, 16, prefetch, transform=count) as loader:
        for _ in range(40):
            # The batch counts as delivered before next returns: allow for the one in hand.
            next(loader)
            with lock:
                delivered += 1
        wait_until(lambda: begun == delivered + prefetch)
        time.sleep(0.02)
        assert begun == delivered + prefetch
    assert ahead_max <= prefetch + 1


def test_the_bound_holds_while_tickets_of_before_a_seek_are_in_flight():
    release = threading.Event()
    working = 0
    working_max = 0
    lock = threading.Lock()

    def hold(batch):
        nonlocal working, working_max
        with lock:
            working += 1
            working_max = max(working_max, working)
        release.wait(5)
        with lock:
            working -= 1
        return batch

    with DataLoader(streams(), 3, 16, 3, transform=hold) as loader:
        reader = threading.Thread(target=next, args=(loader,))
        reader.start()
        wait_until(lambda: working == 3)
        for step in range(10, 20):
            loader.seek(step)
        time.sleep(0.02)
        release.set()
        reader.join()
        assert loader.tell() == 20
    assert working_max == 3


def test_no_more_threads_than_slots():
    with DataLoader(streams(), 64, 16, 2) as loader:
        next(loader)
        assert len(loader._ring.threads) == 2


def test_without_workers_no_thread_is_started_and_the_caller_makes_the_batch():
    made_in = []
    transform = lambda batch: made_in.append(threading.get_ident()) or batch  # noqa: E731
    with DataLoader(streams(), 0, 16, transform=transform) as loader:
        list(loader.take(3))
        assert len(loader._ring.threads) == 0
    assert made_in == [threading.get_ident()] * 3


def test_delivered_batches_are_not_kept_alive():
    import gc
    import weakref

    class Tracked:
        pass

    alive = weakref.WeakSet()

    def track(batch):
        tracked = Tracked()
        alive.add(tracked)
        return tracked

    with DataLoader(streams(), 4, 16, 3, transform=track) as loader:
        for _ in range(50):
            next(loader)
        wait_until(lambda: loader.stats()["ready"] == 3)
        gc.collect()
        assert len(alive) == 3
    gc.collect()
    assert len(alive) == 0


def test_a_loader_is_its_iterator_and_a_second_for_continues():
    with DataLoader(streams(), 2, 16, transform=lambda b, info: info.step) as loader:
        assert iter(loader) is loader
        seen = []
        for _ in range(3):
            for step in loader:
                seen.append(step)
                if len(seen) % 4 == 0:
                    break
        assert seen == list(range(12))


def test_a_loader_is_true_and_has_no_length():
    with DataLoader(streams(), 2, 16) as loader:
        assert bool(loader)
        with pytest.raises(TypeError):
            len(loader)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_several_threads_get_each_batch_once(workers):
    steps_each, readers = 100, 6
    got = [[] for _ in range(readers)]

    def read(mine):
        for _ in range(steps_each):
            mine.append(next(loader))

    with DataLoader(streams(), workers, 16, 4, transform=lambda b, info: info.step) as loader:
        threads = [threading.Thread(target=read, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loader.tell() == steps_each * readers
    assert all(mine == sorted(mine) for mine in got)
    assert sorted(step for mine in got for step in mine) == list(range(steps_each * readers))


@pytest.mark.parametrize("workers", [0, 3])
def test_several_threads_share_one_pass_of_once(workers):
    got = [[] for _ in range(5)]
    with DataLoader(streams(), workers, 2, 4, with_index="i") as loader:
        once = loader.once()

        def read(mine):
            for batch in once:
                mine.extend(batch["i"].tolist())

        threads = [threading.Thread(target=read, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(i for mine in got for i in mine) == list(range(RECORDS))


@pytest.mark.parametrize("workers", [0, 4])
def test_seeks_and_reads_of_many_threads_never_hang_or_mix(workers, bounded):
    stop = threading.Event()

    def read(loader):
        while not stop.is_set():
            step, index = next(loader)
            if index != int(Sampler(RECORDS, 16, seed=42).at(step)[0]):
                return f"step {step} has index {index}"
        return None

    def both():
        transform = lambda b, info: (info.step, int(info.indices[0]))  # noqa: E731
        with DataLoader(streams(), workers, 16, 4, transform=transform) as loader:
            wrong = []
            readers = [
                threading.Thread(target=lambda: wrong.append(read(loader))) for _ in range(3)
            ]
            for reader in readers:
                reader.start()
            for step in range(0, 3000, 50):
                loader.seek(step)
                loader.state_dict()
                time.sleep(0.001)
            stop.set()
            for reader in readers:
                reader.join()
            return wrong

    assert bounded(both) == [None] * 3


def wait_until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.001)
