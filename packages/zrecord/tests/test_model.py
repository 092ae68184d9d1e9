"""A store against a list: random operations, and after each the same records.

Delete is a swap with the last record, from the highest index down. ZRECORD_MODEL_EXAMPLES and
ZRECORD_MODEL_STEPS make it a long run, for instance 1000 and 400.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile

import numpy as np
import pytest
from conftest import assert_same_list
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from zrecord import DenseStore, RaggedStore

EXAMPLES = int(os.environ.get("ZRECORD_MODEL_EXAMPLES", "25"))
STEPS = int(os.environ.get("ZRECORD_MODEL_STEPS", "40"))
ITEM_SHAPE = (3, 2)

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


class _Failure(Exception):
    """What a failing iterable raises."""


class Store(RuleBasedStateMachine):
    """Rules for both kinds; a subclass makes the store and its records."""

    kind: type
    codec: str
    dictionary: bytes

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="zrecord-model-")
        self.path = os.path.join(self.folder, "s")
        self.records: list[np.ndarray] = []
        self.counter = 0

    def teardown(self) -> None:
        self.store.close()
        with self.kind(self.path, mode="r") as again:
            assert_same_list(list(again[:]), self.records)
        shutil.rmtree(self.folder)

    @initialize()
    def create(self) -> None:
        shape = {"item_shape": ITEM_SHAPE} if self.kind is DenseStore else {}
        dictionary = self.dictionary if self.codec == "zstd_dict" else None
        self.store = self.kind(
            self.path, np.int16, codec=self.codec, dict_bytes=dictionary, mode="x", **shape
        )

    def make(self, shape: tuple[int, ...]) -> np.ndarray:
        """A record that is like no other one."""
        self.counter += 1
        return (np.arange(int(np.prod(shape)), dtype=np.int16) % 5 + self.counter).reshape(shape)

    def draw_shapes(self, data, maximum: int = 6) -> list[tuple[int, ...]]:
        if self.kind is DenseStore:
            return [ITEM_SHAPE] * data.draw(st.integers(0, maximum))
        return data.draw(st.lists(shapes, max_size=maximum))

    def draw_index(self, data):
        """An index of any form, and the positions that it means."""
        n = len(self.records)
        one = st.integers(-n, n - 1)
        form = data.draw(
            st.sampled_from(["list", "tuple", "array", "unsigned", "slice", "mask"])
            if n
            else st.sampled_from(["list", "slice", "mask"])
        )
        if form == "slice":
            bound = st.none() | st.integers(-n - 2, n + 2)
            step = data.draw(st.none() | st.integers(1, 4) | st.integers(-4, -1))
            index = slice(data.draw(bound), data.draw(bound), step)
            return index, list(range(n))[index]
        if form == "mask":
            mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
            return np.array(mask, bool), [i for i, wanted in enumerate(mask) if wanted]
        if form == "unsigned":
            positions = data.draw(st.lists(st.integers(0, n - 1), max_size=8))
            return np.array(positions, np.uint64), positions
        index = data.draw(st.lists(one, max_size=8) if n else st.just([]))
        positions = [i % n for i in index]
        if form == "tuple":
            return tuple(index), positions
        return (np.array(index, np.int64) if form == "array" else index), positions

    @rule(data=st.data())
    def append(self, data) -> None:
        records = [self.make(shape) for shape in self.draw_shapes(data)]
        if self.kind is DenseStore:
            batch = np.array(records, np.int16).reshape(-1, *ITEM_SHAPE)
            batch = np.asarray(batch, order=data.draw(st.sampled_from("CF")))
        else:
            batch = iter(records) if data.draw(st.booleans()) else records
        assert self.store.append(batch) == len(self.records)
        self.records += records

    @precondition(lambda self: self.kind is RaggedStore)
    @rule(data=st.data())
    def append_that_fails(self, data) -> None:
        records = [self.make(shape) for shape in self.draw_shapes(data)]

        def failing():
            yield from records
            raise _Failure

        with pytest.raises(_Failure):
            self.store.append(failing())

    @precondition(lambda self: self.kind is RaggedStore)
    @rule(data=st.data())
    def append_own_batch(self, data) -> None:
        index, positions = self.draw_index(data)
        batch = self.store.gather_packed(index)
        assert batch.shapes == [self.records[i].shape for i in positions]
        assert self.store.append(batch) == len(self.records)
        self.records += [self.records[i] for i in positions]

    @rule(data=st.data())
    def gather(self, data) -> None:
        index, positions = self.draw_index(data)
        expected = [self.records[i] for i in positions]
        assert_same_list(list(self.store[index]), expected)
        if self.kind is DenseStore:
            out = np.empty((len(positions), *ITEM_SHAPE), np.int16)
            assert self.store.gather(index, out=out) is out
            assert_same_list(list(out), expected)
        else:
            assert_same_list(self.store.gather_packed(index).to_list(), expected)
            assert self.store.lengths(index).tolist() == [r.size for r in expected]

    @rule(data=st.data())
    def delete(self, data) -> None:
        index, positions = self.draw_index(data)
        assert self.store.delete(index) == len(set(positions))
        for position in sorted(set(positions), reverse=True):
            last = self.records.pop()
            if position < len(self.records):
                self.records[position] = last

    @rule()
    def compact(self) -> None:
        self.store.compact()
        assert self.store.stats()["reclaimable"] == 0

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.kind(self.path)

    @rule()
    def drop_without_close(self) -> None:
        """What the end of a process does: nothing is synced."""
        self.store.sync()  # so that the warning about unsynced records is not what is tested
        del self.store
        self.store = self.kind(self.path)

    @rule()
    def read_elsewhere(self) -> None:
        with pickle.loads(pickle.dumps(self.store)) as reader:
            assert_same_list(list(reader), self.records)

    @rule()
    def verify(self) -> None:
        report = self.store.verify()
        assert report.ok, report
        assert report.records == len(self.records)

    @invariant()
    def lengths_agree(self) -> None:
        if hasattr(self, "store"):
            assert len(self.store) == len(self.records) == self.store.stats()["records"]


@pytest.mark.parametrize("kind", [DenseStore, RaggedStore])
def test_a_store_is_a_list(kind, codec, dictionary):
    class Machine(Store):
        pass

    Machine.kind, Machine.codec, Machine.dictionary = kind, codec, dictionary
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
