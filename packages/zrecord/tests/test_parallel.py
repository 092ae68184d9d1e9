"""One store used by many threads at once.

With the plugin pytest-run-parallel, ``pytest --parallel-threads=8 test_parallel.py`` runs each test
in eight threads. Without it they run in one, and test_threads.py starts threads of its own.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from conftest import RECORDS, assert_same, assert_same_list
from zrecord import DenseStore, RaggedStore

ROWS = np.arange(3000, dtype=np.int32).reshape(1000, 3)


@pytest.fixture(scope="module")
def rows_store(tmp_path_factory):
    with DenseStore(tmp_path_factory.mktemp("parallel") / "d", "i4", (3,)) as store:
        store.append(ROWS)
        yield store


@pytest.fixture(scope="module")
def records_store(tmp_path_factory):
    with RaggedStore(tmp_path_factory.mktemp("parallel") / "r", "i4") as store:
        store.append(RECORDS * 50)
        yield store


@pytest.fixture(scope="module")
def log_store(tmp_path_factory):
    with RaggedStore(tmp_path_factory.mktemp("parallel") / "log", "i8") as store:
        yield store


def test_dense_reading(rows_store):
    rng = np.random.default_rng()
    for _ in range(20):
        indices = rng.integers(-1000, 1000, 100)
        assert_same(rows_store[indices], ROWS[indices])
        out = np.empty((100, 3), np.int32)
        assert rows_store.gather(indices, out=out) is out
        assert_same(out, ROWS[indices])
        assert_same(rows_store[int(indices[0])], ROWS[indices[0]])
        rows_store.will_need(indices)
    assert_same_list(list(rows_store), list(ROWS))


def test_ragged_reading(records_store):
    rng = np.random.default_rng()
    for _ in range(20):
        indices = rng.integers(0, 300, 50)
        expected = [RECORDS[i % 6] for i in indices]
        assert_same_list(records_store[indices], expected)
        batch = records_store.gather_packed(indices)
        assert batch.shapes == [record.shape for record in expected]
        assert records_store.lengths(indices).tolist() == [r.size for r in expected]


def test_a_shared_batch(records_store):
    batch = records_store.gather_packed(slice(0, 60))
    assert_same_list(batch.to_list(), RECORDS * 10)


def test_looking(rows_store, records_store):
    for store in (rows_store, records_store):
        assert store.verify(lambda done, total: None).ok
        assert store.stats()["records"] == len(store) == store.refresh()
        assert store.fingerprint == store.fingerprint
        with pickle.loads(pickle.dumps(store)) as again:
            assert len(again) == len(store)


def test_appending(log_store):
    mine = np.random.default_rng().integers(0, 2**60)
    for i in range(20):
        batch = [np.full(1 + i % 4, mine + i), np.array(mine)]
        first = log_store.append(iter(batch))
        assert_same_list(log_store[first : first + 2], batch)
        if i % 10 == 0:
            log_store.sync()


def test_errors(rows_store):
    for _ in range(50):
        with pytest.raises(IndexError, match=r"index 1000 .*1000 records"):
            rows_store[[5, 1000]]
        with pytest.raises(TypeError):
            rows_store["0"]
