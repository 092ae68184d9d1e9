"""Errors sit at their step and arrive as themselves."""

from __future__ import annotations

import sys
import threading
import time
import traceback

import numpy as np
import pytest
from loaderx import DataLoader, LoaderxError

WORKERS = [0, 1, 4]


class TwoArguments(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


def failing_at(bad_step, error):
    def transform(batch, info):
        if info.step == bad_step:
            raise error
        return info.step

    return transform


def numbers():
    return {"x": np.arange(1000)}


def raised_by(function):
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"), TwoArguments(7, "seven"), KeyError("k"), SystemExit(3),
        AssertionError(), MemoryError("no"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        KeyboardInterrupt("by the transform"), BaseException("base"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_earlier_steps_come_first_then_the_same_object(workers, error):
    with DataLoader(numbers(), workers, 10, 4, transform=failing_at(5, error)) as loader:
        assert list(loader.take(5)) == [0, 1, 2, 3, 4]
        assert raised_by(lambda: next(loader)) is error
        assert loader.tell() == 5


def test_an_error_does_not_overtake_slower_earlier_steps():
    def transform(batch, info):
        if info.step < 3:
            time.sleep(0.02)
        if info.step == 3:
            raise ValueError("at once")
        return info.step

    with DataLoader(numbers(), 4, 10, 4, transform=transform) as loader:
        assert list(loader.take(3)) == [0, 1, 2]
        with pytest.raises(ValueError, match="at once"):
            next(loader)


@pytest.mark.parametrize("workers", WORKERS)
def test_the_traceback_is_the_transforms_and_does_not_grow(workers):
    def deep(batch):
        return deeper(batch)

    def deeper(batch):
        raise LookupError("here")

    with DataLoader(numbers(), workers, 10, transform=deep) as loader:
        lengths = []
        for _ in range(5):
            error = raised_by(lambda: next(loader))
            names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            assert names[-2:] == ["deep", "deeper"]
            lengths.append(len(names))
        assert len(set(lengths)) == 1
        assert error.__context__ is None
        assert error.__cause__ is None


@pytest.mark.parametrize("workers", WORKERS)
def test_a_note_names_step_stage_and_first_indices(workers):
    with DataLoader(
        numbers(), workers, 20, mode="sequential", transform=failing_at(3, ValueError("bad"))
    ) as loader:
        for _ in range(2):
            with pytest.raises(ValueError, match="bad") as caught:
                list(loader.take(4))
        assert len(caught.value.__notes__) == 1
        note = caught.value.__notes__[0]
        assert "step 3" in note
        assert "failing_at" in note
        assert "[60, 61, 62, 63, 64, 65, 66, 67, ...]" in note
        if sys.version_info >= (3, 11):
            assert note in "".join(traceback.format_exception(caught.value))


def test_an_error_that_is_raised_at_many_steps_has_one_note():
    error = ValueError("always")
    with DataLoader(
        numbers(), 2, 10, transform=lambda batch: (_ for _ in ()).throw(error)
    ) as loader:
        for step in range(20):
            loader.seek(step)
            assert raised_by(lambda: next(loader)) is error
        assert [note for note in error.__notes__ if "loaderx" in note] == error.__notes__
        assert len(error.__notes__) == 1
        assert "step 19" in error.__notes__[0]


def test_notes_of_the_user_stay():
    error = ValueError("noted")
    error.__notes__ = ["mine"]
    with DataLoader(numbers(), 1, 10, transform=failing_at(0, error)) as loader:
        raised_by(lambda: next(loader))
        assert error.__notes__[0] == "mine"
        assert len(error.__notes__) == 2


def test_an_error_that_takes_no_attributes_arrives_all_the_same():
    class Rigid(Exception):
        def __setattr__(self, name, value):
            if name == "__notes__":
                raise AttributeError("rigid")
            super().__setattr__(name, value)

    with DataLoader(numbers(), 2, 10, transform=failing_at(1, Rigid())) as loader:
        next(loader)
        with pytest.raises(Rigid):
            next(loader)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_a_stream_is_noted_with_its_name(workers):
    class Broken:
        dtype = np.dtype(np.float32)
        item_shape = ()

        def __len__(self):
            return 1000

        def gather(self, indices, out=None):
            raise OSError(5, "Input/output error", "chunk-3")

    with DataLoader({"good": np.arange(1000), "bad": Broken()}, workers, 10) as loader:
        with pytest.raises(OSError, match="chunk-3") as caught:
            next(loader)
        assert caught.value.errno == 5
        assert "stream 'bad'" in caught.value.__notes__[0]
        assert "step 0" in caught.value.__notes__[0]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
def test_a_loop_is_not_ended_in_silence(workers, kind):
    original = kind("from inside")
    with DataLoader(numbers(), workers, 10, 4, transform=failing_at(2, original)) as loader:
        seen = []
        with pytest.raises(RuntimeError, match=kind.__name__) as caught:
            seen.extend(loader)
        assert seen == [0, 1]
        assert caught.value.__cause__ is original
        assert "step 2" in caught.value.__notes__[0]
        assert raised_by(lambda: next(loader)) is caught.value


def test_the_same_in_once():
    loader = DataLoader(numbers(), 2, 10, transform=failing_at(2, StopIteration()))
    with loader, pytest.raises(RuntimeError, match="StopIteration"):
        list(loader.once())


@pytest.mark.parametrize("workers", WORKERS)
def test_every_next_raises_again_until_a_seek(workers):
    error = ValueError("bad")
    with DataLoader(numbers(), workers, 10, 4, transform=failing_at(2, error)) as loader:
        list(loader.take(2))
        for _ in range(10):
            assert raised_by(lambda: next(loader)) is error
        loader.seek(loader.tell() + 1)
        assert list(loader.take(3)) == [3, 4, 5]
        loader.seek(1)
        assert next(loader) == 1
        assert raised_by(lambda: next(loader)) is error


def test_a_retried_step_is_made_again():
    attempts = []

    def transform(batch, info):
        attempts.append(info.step)
        if attempts.count(2) == 1 and info.step == 2:
            raise ConnectionError("once")
        return info.step

    with DataLoader(numbers(), 0, 10, transform=transform) as loader:
        list(loader.take(2))
        with pytest.raises(ConnectionError):
            next(loader)
        loader.seek(loader.tell())
        assert next(loader) == 2


def test_no_tickets_are_taken_after_an_error():
    made = []

    def transform(batch, info):
        made.append(info.step)
        if info.step == 3:
            raise ValueError("bad")
        return info.step

    with DataLoader(numbers(), 1, 10, 8, transform=transform) as loader:
        list(loader.take(3))
        raised_by(lambda: next(loader))
        time.sleep(0.02)
        assert made == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", WORKERS)
def test_every_waiting_thread_gets_the_error(workers):
    error = ValueError("bad")
    got = []
    with DataLoader(numbers(), workers, 10, 2, transform=failing_at(3, error)) as loader:

        def read():
            try:
                while True:
                    next(loader)
            except ValueError as caught:
                got.append(caught)

        threads = [threading.Thread(target=read) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == [error] * 5


def test_an_error_of_once_belongs_to_its_pass():
    error = ValueError("bad")
    with DataLoader(numbers(), 2, 10, start_step=50, transform=failing_at(3, error)) as loader:
        next(loader)
        once = loader.once()
        assert [next(once) for _ in range(3)] == [0, 1, 2]
        for _ in range(3):
            assert raised_by(lambda: next(once)) is error
        assert next(loader) == 51
        assert raised_by(lambda: next(once)) is error


def test_an_error_of_the_stream_stays_while_a_pass_runs():
    error = ValueError("bad")
    with DataLoader(numbers(), 2, 10, start_step=200, transform=failing_at(200, error)) as loader:
        assert raised_by(lambda: next(loader)) is error
        assert list(loader.once()) == list(range(100))
        assert raised_by(lambda: next(loader)) is error
        assert loader.state_dict()["step"] == 200


@pytest.mark.parametrize("workers", WORKERS)
def test_next_from_the_transform_is_refused_and_does_not_wait_for_itself(workers, bounded):
    loader = None

    def transform(batch):
        return next(loader)

    loader = DataLoader(numbers(), workers, 10, 1, transform=transform)
    with loader, pytest.raises(LoaderxError, match="transform"):
        bounded(next, loader)
    del transform  # the cycle loader -> transform -> loader
