"""Sixty situations that could hang or leak, each five times under a watchdog.

Every situation returns a text of what was seen. It must be the same each time, no thread may be
left, and the number of open descriptors must not grow.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings

import numpy as np
import pytest
from loaderx import DataLoader, LoaderClosed, LoaderxError, Sampler

RUNS = 5


class Source:
    """A stream whose fault, if it has one, begins at record 60: step 6 in sequential order."""

    dtype = np.dtype(np.int64)
    item_shape = ()

    def __init__(self, at_gather=None, at_len=None):
        self.at_gather = at_gather
        self.at_len = at_len
        self.last = 0

    def __len__(self):
        if self.at_len is not None and self.last >= 60:
            return self.at_len()
        return 100

    def gather(self, indices, out=None):
        self.last = int(indices[-1])
        if self.at_gather is not None and self.last >= 60:
            return self.at_gather(indices)
        return np.asarray(indices)


class Two(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


def two_arguments():
    return Two("first", "second")


def throw(error):
    raise error


def what(call):
    try:
        return repr(call())
    except BaseException as error:
        return f"{type(error).__name__}({error})"


def read_to_the_error(loader):
    """Return what ended the loop, that it repeats, and that a later step can be read."""
    with loader:
        seen = []
        ended = what(lambda: [seen.append(1) for _ in loader])
        again = {what(lambda: next(loader)) for _ in range(3)}
        return len(seen) == loader.tell(), ended, again == {ended}


def bad_step(error, at=6):
    def transform(batch, info):
        if info.step >= at:
            throw(error())
        return info.step

    return transform


def source_raises(workers, error):
    source = Source(at_gather=lambda indices: throw(error()))
    return read_to_the_error(DataLoader({"s": source}, workers, 10, 2, "sequential"))


def transform_raises(workers, error):
    return read_to_the_error(
        DataLoader({"s": Source()}, workers, 10, 2, "sequential", transform=bad_step(error))
    )


def sampler_raises(workers):
    class Bad(Sampler):
        def at(self, step, out=None):
            if step >= 6:
                raise ArithmeticError("no such step")
            return super().at(step)

    return read_to_the_error(DataLoader({"s": Source()}, workers, sampler=Bad(100, 10)))


def length_raises(workers):
    source = Source(at_len=lambda: throw(OSError(9, "Bad file descriptor")))
    return read_to_the_error(DataLoader({"s": source}, workers, 10, 1, "sequential"))


def length_changes(workers):
    return read_to_the_error(
        DataLoader({"s": Source(at_len=lambda: 99)}, workers, 10, 1, "sequential")
    )


def too_few_records(workers):
    source = Source(at_gather=lambda indices: np.asarray(indices)[1:])
    return read_to_the_error(DataLoader({"s": source}, workers, 10, 1, "sequential"))


def no_array(workers):
    return read_to_the_error(
        DataLoader({"s": Source(lambda indices: None)}, workers, 10, 1, "sequential")
    )


def error_in_once(workers):
    with DataLoader(
        {"s": Source()}, workers, 10, 2, "sequential", transform=bad_step(KeyError)
    ) as loader:
        once = loader.once()
        seen = []
        ended = what(lambda: [seen.append(step) for step in once])
        return seen, ended, what(lambda: next(once)), what(lambda: next(loader))


def error_then_close(workers):
    loader = DataLoader({"s": Source()}, workers, 10, 4, transform=bad_step(two_arguments))
    ended = what(lambda: list(loader))
    loader.close()
    return ended, what(lambda: next(loader))


def error_then_drop(workers):
    loader = DataLoader({"s": Source()}, workers, 10, 4, transform=bad_step(ValueError, 0))
    return what(lambda: next(loader))


def undelivered_error_then_close(workers):
    with DataLoader({"s": Source()}, workers, 10, 4, transform=bad_step(ValueError, 1)) as loader:
        return next(loader)


def error_then_seek_past(workers):
    def transform(batch, info):
        return throw(ValueError(info.step)) if info.step % 3 == 2 else info.step

    with DataLoader({"s": Source()}, workers, 10, 4, transform=transform) as loader:
        seen = []
        while len(seen) < 20:
            try:
                seen.append(next(loader))
            except ValueError as error:  # noqa: PERF203
                seen.append(f"skipped {error}")
                loader.seek(loader.tell() + 1)
        return seen


class Blocked:
    """A loader whose transform waits until it is released, with some threads in next()."""

    def __init__(self, workers, readers=2, in_gather=False):
        self.entered, self.release = threading.Event(), threading.Event()
        self.ended = []
        wait = lambda value: (self.entered.set(), self.release.wait(20), value)[2]  # noqa: E731
        self.loader = DataLoader(
            {"s": Source(at_gather=wait if in_gather else None)},
            workers,
            10,
            2,
            "sequential",
            transform=None if in_gather else wait,
            start_step=7,
        )
        self.threads = [threading.Thread(target=self.read) for _ in range(readers)]
        for thread in self.threads:
            thread.start()
        assert self.entered.wait(5)

    def read(self):
        self.ended.append(what(lambda: sorted(next(self.loader))))

    def finish(self):
        self.release.set()
        for thread in self.threads:
            thread.join()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.loader.close()
        return sorted(self.ended)


def close_while_blocked(workers, in_gather=False):
    blocked = Blocked(workers, in_gather=in_gather)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        blocked.loader.close()
    return len(caught) <= 1, blocked.finish()


def close_while_the_source_blocks(workers):
    return close_while_blocked(workers, in_gather=True)


def seek_while_blocked(workers):
    blocked = Blocked(workers)
    for step in (50, 60, 70):
        blocked.loader.seek(step)
    return blocked.finish()


def once_while_blocked(workers):
    blocked = Blocked(workers, readers=1)
    once = blocked.loader.once()
    ended = blocked.finish()  # its next() takes the stream up again
    return ended, what(lambda: next(once))


def state_while_blocked(workers):
    blocked = Blocked(workers)
    state = blocked.loader.state_dict()["step"], blocked.loader.tell(), repr(blocked.loader) != ""
    return state, blocked.finish()


def close_by_every_reader(workers):
    loader = DataLoader({"s": Source()}, workers, 10, 2, "sequential")
    ended = []

    def read():
        try:
            for _ in range(5):
                next(loader)
            loader.close()
            next(loader)
        except LoaderClosed:
            ended.append(True)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def close_from_the_transform(workers):
    box = []

    def transform(batch, info):
        if info.step == 4:
            box[0].close()
        return info.step

    box.append(DataLoader({"s": Source()}, workers, 10, 1, transform=transform))
    ended = what(lambda: list(box[0]))
    box.clear()
    return ended


def next_from_the_transform(workers):
    box = []
    box.append(DataLoader({"s": Source()}, workers, 10, 1, transform=lambda batch: next(box[0])))
    ended = what(lambda: next(box[0]))
    box.pop().close()
    return ended


def drop_in_the_middle(workers):
    loader = DataLoader({"s": Source()}, workers, 10, 4)
    return [len(next(loader)["s"]) for _ in range(3)]


def drop_in_a_pass(workers):
    once = DataLoader({"s": Source()}, workers, 10, 4).once()
    return len(next(once)["s"])


SITUATIONS = {
    "the source raises OSError": lambda w: source_raises(w, lambda: OSError(5, "I/O error")),
    "the source raises a class with two arguments": lambda w: source_raises(w, two_arguments),
    "the source raises StopIteration": lambda w: source_raises(w, StopIteration),
    "the transform raises ValueError": lambda w: transform_raises(w, lambda: ValueError("bad")),
    "the transform raises StopIteration": lambda w: transform_raises(w, StopIteration),
    "the transform raises GeneratorExit": lambda w: transform_raises(w, GeneratorExit),
    "the transform raises SystemExit": lambda w: transform_raises(w, lambda: SystemExit(2)),
    "the transform raises MemoryError": lambda w: transform_raises(w, MemoryError),
    "the transform raises LoaderxError": lambda w: transform_raises(w, LoaderxError),
    "the sampler raises": sampler_raises,
    "len of the source raises": length_raises,
    "the source shrinks": length_changes,
    "the source returns too few records": too_few_records,
    "the source returns no array": no_array,
    "an error in once": error_in_once,
    "an error, then close": error_then_close,
    "an error, then the loader is dropped": error_then_drop,
    "an error that nobody reads, then close": undelivered_error_then_close,
    "errors that are stepped over": error_then_seek_past,
    "close while the transform blocks": close_while_blocked,
    "close while the source blocks": close_while_the_source_blocks,
    "seek while the transform blocks": seek_while_blocked,
    "once while the transform blocks": once_while_blocked,
    "state while the transform blocks": state_while_blocked,
    "close by every reader": close_by_every_reader,
    "close from the transform": close_from_the_transform,
    "next from the transform": next_from_the_transform,
    "dropped in the middle": drop_in_the_middle,
    "dropped in a pass": drop_in_a_pass,
}


def descriptors():
    folder = "/proc/self/fd"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("name", SITUATIONS)
def test_the_same_end_each_time_and_nothing_left(name, workers, bounded, monkeypatch):
    monkeypatch.setattr("loaderx._prefetch.JOIN_SECONDS", 0.05)
    before = descriptors()
    seen = [repr(bounded(SITUATIONS[name], workers)) for _ in range(RUNS)]
    assert len(set(seen)) == 1, seen
    deadline = time.monotonic() + 5
    while any(t.name.startswith("loaderx-") for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
        gc.collect()
    assert descriptors() <= before


def test_there_are_sixty_situations():
    assert len(SITUATIONS) * 3 >= 60
