"""The end of a loader inside a process: close, waiters, stuck threads, dropping."""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
from conftest import BOUNDED_SECONDS
from loaderx import DataLoader, LoaderClosed, LoaderxError


def numbers():
    return {"x": np.arange(1000)}


def expect_closed(loader):
    with pytest.raises(LoaderClosed):
        next(loader)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_close_is_idempotent_and_next_then_raises(workers):
    loader = DataLoader(numbers(), workers, 10)
    next(loader)
    assert not loader.closed
    for _ in range(3):
        loader.close()
        assert loader.closed
    for _ in range(3):
        with pytest.raises(LoaderClosed, match="closed"):
            next(loader)
    for call in (lambda: loader.seek(3), loader.once, lambda: list(loader.take(1))):
        with pytest.raises(LoaderClosed):
            call()
    with pytest.raises(LoaderClosed):
        loader.load_state_dict(loader.state_dict())
    assert issubclass(LoaderClosed, RuntimeError)
    assert issubclass(LoaderClosed, LoaderxError)


@pytest.mark.parametrize("workers", [0, 4])
def test_close_before_the_first_next(workers):
    loader = DataLoader(numbers(), workers, 10)
    loader.close()
    with pytest.raises(LoaderClosed):
        next(loader)


def test_position_state_and_metrics_can_be_read_after_close():
    with DataLoader(numbers(), 2, 10) as loader:
        list(loader.take(7))
    assert loader.tell() == 7
    assert loader.state_dict()["step"] == 7
    assert loader.stats()["steps"] == 7
    assert "closed" in repr(loader)


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("readers", [1, 5])
def test_close_wakes_every_waiter_at_once(workers, readers, monkeypatch):
    monkeypatch.setattr("loaderx._prefetch.JOIN_SECONDS", 0.1)
    entered = threading.Event()
    release = threading.Event()

    def blocked(batch):
        entered.set()
        release.wait(20)
        return batch

    loader = DataLoader(numbers(), workers, 10, transform=blocked)
    ended = []

    def read():
        try:
            next(loader)
        except LoaderClosed as error:
            ended.append(error)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(readers)]
    for thread in threads:
        thread.start()
    assert entered.wait(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader.close()
    # Without workers one reader is inside the transform itself; no other waits for it.
    waiting = readers if workers else readers - 1
    deadline = time.monotonic() + 5
    while len(ended) < waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(ended) == waiting
    release.set()
    for thread in threads:
        thread.join(5)
    assert len(ended) == readers


def test_a_stuck_transform_is_named_and_does_not_hold_up_close():
    entered, release = threading.Event(), threading.Event()

    def augment_slowly(batch):
        entered.set()
        release.wait(20)
        return batch

    loader = DataLoader(numbers(), 1, 10, transform=augment_slowly, start_step=5)
    reader = threading.Thread(target=expect_closed, args=(loader,))
    reader.start()
    assert entered.wait(5)
    try:
        with pytest.warns(RuntimeWarning, match="augment_slowly still runs at step 5") as caught:
            loader.close()
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.close()
    finally:
        release.set()
    reader.join(5)
    assert not reader.is_alive()


def test_a_stuck_stream_is_named():
    entered, release = threading.Event(), threading.Event()

    class Slow:
        dtype = np.dtype(np.int64)
        item_shape = ()

        def __len__(self):
            return 100

        def gather(self, indices, out=None):
            entered.set()
            release.wait(20)
            return np.asarray(indices)

    loader = DataLoader({"tape": Slow()}, 1, 10)
    reader = threading.Thread(target=expect_closed, args=(loader,))
    reader.start()
    assert entered.wait(5)
    try:
        with pytest.warns(RuntimeWarning, match="stream 'tape' still runs at step 0"):
            loader.close()
    finally:
        release.set()
    reader.join(5)


@pytest.mark.parametrize("workers", [1, 4])
def test_close_from_the_transform_does_not_join_itself(workers, bounded):
    loader = None

    def transform(batch, info):
        if info.step == 3:
            loader.close()
        return info.step

    loader = DataLoader(numbers(), workers, 10, 1, transform=transform)
    assert bounded(lambda: [next(loader) for _ in range(3)]) == [0, 1, 2]
    with pytest.raises(LoaderClosed):
        bounded(next, loader)
    loader.close()
    del transform


def test_the_streams_stay_open():
    class Closable:
        dtype = np.dtype(np.int64)
        item_shape = ()
        closed = False

        def __len__(self):
            return 100

        def gather(self, indices, out=None):
            return np.asarray(indices)

        def close(self):
            self.closed = True

    stream = Closable()
    with DataLoader({"x": stream}, 2, 10) as loader:
        next(loader)
    assert not stream.closed


def test_close_races_with_next_seek_and_once(bounded):
    def race():
        for attempt in range(60):
            loader = DataLoader(numbers(), 3, 10, 1 + attempt % 4)
            threads = [
                threading.Thread(target=swallow, args=(loader, action))
                for action in (next, next, lambda ld: ld.seek(7), lambda ld: next(ld.once()))
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.0001 * (attempt % 10))
            loader.close()
            for thread in threads:
                thread.join()

    def swallow(loader, action):
        try:
            for _ in range(1000):
                action(loader)
        except LoaderxError:
            pass

    bounded(race)


def test_a_dropped_loader_stops_its_threads():
    loader = DataLoader(numbers(), 4, 10)
    next(loader)
    threads = list(loader._ring.threads)
    assert len(threads) == 4
    reference = weakref.ref(loader)
    del loader
    assert reference() is None, "something other than the caller holds the loader"
    wait_for_the_end_of(threads)


def test_a_loader_dropped_in_a_cycle_stops_its_threads():
    loader = DataLoader(numbers(), 4, 10)
    next(loader)
    threads = list(loader._ring.threads)
    loader.me = loader
    del loader
    gc.collect()
    wait_for_the_end_of(threads)


def test_a_loader_dropped_after_an_error_stops_its_threads():
    def fail(batch):
        raise ValueError("bad")

    def use():
        loader = DataLoader(numbers(), 4, 10, transform=fail)
        try:
            next(loader)
        except ValueError:
            return weakref.ref(loader), list(loader._ring.threads)

    reference, threads = use()
    # A thread that is still making a later batch holds on to the run until that batch is made.
    deadline = time.monotonic() + BOUNDED_SECONDS
    while reference() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
        gc.collect()
    kept = reference() is not None
    assert not kept, "the error keeps its loader alive"
    wait_for_the_end_of(threads)


def test_a_loader_dropped_in_the_middle_of_once_stops_its_threads():
    loader = DataLoader(numbers(), 4, 10)
    once = loader.once()
    assert len(next(once)["x"]) == 10
    threads = list(loader._ring.threads)
    del loader, once
    gc.collect()
    wait_for_the_end_of(threads)


def test_a_loader_collected_by_one_of_its_own_threads():
    """The collector may run in a worker, even while that worker holds the ring's lock."""
    threshold = gc.get_threshold()
    gc.disable()
    try:
        for _ in range(30):
            loader = DataLoader(
                numbers(), 3, 10, 3, transform=lambda batch: [[] for _ in range(50)]
            )
            loader.me = loader
            next(loader)
            threads = list(loader._ring.threads)
            gc.set_threshold(1)
            gc.enable()
            del loader
            wait_for_the_end_of(threads)
            gc.disable()
            gc.set_threshold(*threshold)
    finally:
        gc.set_threshold(*threshold)
        gc.enable()


def test_many_loaders_open_and_close_without_leaving_threads():
    threads = []
    for i in range(100):
        with DataLoader(numbers(), 1 + i % 4, 10, 1 + i % 3) as loader:
            next(loader)
            threads += loader._ring.threads
    assert not any(thread.is_alive() for thread in threads)


def wait_for_the_end_of(threads):
    deadline = time.monotonic() + 5
    while any(thread.is_alive() for thread in threads):
        assert time.monotonic() < deadline, threads
        gc.collect()
        time.sleep(0.001)
