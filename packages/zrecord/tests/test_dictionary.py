"""Training dictionaries, and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest
from zrecord import DICT_TIERS, DenseStore, RaggedStore, ZrecordError, train_dict

KIB, MIB = 2**10, 2**20


def _records(count: int) -> list[np.ndarray]:
    """Small records that share much, as lines of a log do."""
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 256, 16, dtype="u1") for _ in range(60)]
    return [np.concatenate([words[i] for i in rng.integers(0, 60, 10)]) for _ in range(count)]


RECORDS = _records(1000)


def test_tiers():
    assert list(DICT_TIERS) == ["fast", "balanced", "max"]
    assert DICT_TIERS["fast"] == (32 * KIB, 4 * MIB)
    assert DICT_TIERS["balanced"] == (128 * KIB, 16 * MIB)
    assert DICT_TIERS["max"] == (MIB, 64 * MIB)
    assert DICT_TIERS["max"].dict_bytes == MIB


@pytest.fixture
def dense(tmp_path):
    with DenseStore(tmp_path / "d", "u1", (160,)) as store:
        store.append(np.stack(RECORDS))
        yield store


@pytest.fixture
def ragged(tmp_path):
    with RaggedStore(tmp_path / "r", "u1") as store:
        store.append(RECORDS)
        yield store


@pytest.mark.parametrize(
    "source",
    [
        lambda: np.stack(RECORDS),
        lambda: np.stack(RECORDS).view([("a", "u2"), ("b", "u2")]),
        lambda: RECORDS,
        lambda: tuple(RECORDS),
        lambda: iter(RECORDS),
        lambda: (record.reshape(2, 80).T for record in RECORDS),
        lambda: [record.tobytes() for record in RECORDS],
        lambda: (bytearray(record) for record in RECORDS),
        lambda: (memoryview(record) for record in RECORDS),
    ],
)
def test_arrays_and_iterables(source):
    trained = train_dict(source(), tier="fast")
    assert isinstance(trained, bytes)
    assert 256 < len(trained) <= 32 * KIB


def test_stores(dense, ragged):
    for store in (dense, ragged):
        for tier, (size, _) in DICT_TIERS.items():
            if tier != "max":
                assert 256 < len(train_dict(store, tier=tier)) <= size


def test_the_path_gets_the_same_bytes(tmp_path):
    trained = train_dict(RECORDS, "fast", tmp_path / "dict")
    assert (tmp_path / "dict").read_bytes() == trained


def test_a_dictionary_makes_small_records_smaller(tmp_path, ragged):
    trained = train_dict(ragged, tier="fast")
    with RaggedStore(tmp_path / "t", "u1", "zstd_dict", trained) as store:
        store.append(ragged)
        assert store.stats()["live_bytes"] * 2 < ragged.stats()["live_bytes"]
        assert all(np.array_equal(a, b) for a, b in zip(store, ragged, strict=True))
    with RaggedStore(tmp_path / "t", mode="r") as store:
        assert store.has_dict
        assert np.array_equal(store[234], RECORDS[234])


@pytest.mark.parametrize(
    "source", [[], iter([]), np.empty((0, 5)), RECORDS[:3], [b"a"] * 5, [b""] * 100], ids=repr
)
def test_too_few_samples_says_how_many_and_how_small(source, tmp_path):
    with pytest.raises(ZrecordError, match=r"\d+ samples of \d+ bytes"):
        train_dict(source, "fast", tmp_path / "dict")
    assert not (tmp_path / "dict").exists()


def test_an_empty_store_has_too_few(tmp_path):
    with DenseStore(tmp_path / "d", "f4", (3,)) as store, pytest.raises(ZrecordError):
        train_dict(store)
    with RaggedStore(tmp_path / "r", "f4") as store, pytest.raises(ZrecordError):
        train_dict(store)


@pytest.mark.parametrize(
    "source",
    [
        *(b"bytes", bytearray(5), memoryview(b"abc"), "text", 5, None, [1, 2], ["a"], [None]),
        *(np.array(5), np.array([None, 1]), [np.array([None])], iter([1.5])),
    ],
    ids=repr,
)
def test_what_is_no_record_is_a_type_error(source):
    with pytest.raises(TypeError):
        train_dict(source)


@pytest.mark.parametrize("tier", ["huge", "", None, 3])
def test_an_unknown_tier_lists_the_tiers(tier):
    with pytest.raises(ValueError, match="'fast', 'balanced', 'max'"):
        train_dict(RECORDS, tier=tier)


@pytest.fixture
def small_tier(monkeypatch):
    """A tier whose training takes no time."""
    monkeypatch.setitem(DICT_TIERS, "fast", type(DICT_TIERS["fast"])(8 * KIB, 256 * KIB))


def test_the_sample_is_bounded(small_tier):
    """An iterable without end, and records far larger than the sample."""
    taken = 0

    def endless():
        nonlocal taken
        while True:
            for record in RECORDS:
                taken += 1
                yield record

    assert train_dict(endless(), tier="fast")
    assert taken == -(-256 * KIB // 160)
    large = np.concatenate(RECORDS * 2)
    taken = 0

    def views():
        nonlocal taken
        for start in range(200):
            taken += 1
            yield large[start:]

    with pytest.raises(ZrecordError, match="2 samples of 131072 bytes"):
        train_dict(views(), tier="fast")
    assert taken == 2


def test_samples_come_from_all_of_a_store(tmp_path, small_tier):
    """A store whose second half is unlike its first: the dictionary helps with both."""
    rng = np.random.default_rng(7)
    phrases = [rng.integers(0, 256, 150, dtype="u1") for _ in range(2)]
    rows = np.repeat(phrases, 5000, axis=0)
    rows[:, ::10] = rng.integers(0, 256, (10_000, 15))
    with DenseStore(tmp_path / "d", "u1", (150,), "raw") as store:
        store.append(rows)
        trained = train_dict(store, tier="fast")
    with RaggedStore(tmp_path / "r", "u1", "raw") as store:
        store.append(rows)
        assert train_dict(store, tier="fast") == trained
    assert train_dict(rows, tier="fast") == trained
    assert train_dict(list(rows), tier="fast") == trained
    for number, half in enumerate((rows[:100], rows[-100:])):
        with DenseStore(tmp_path / str(number), "u1", (150,), "zstd_dict", trained) as store:
            store.append(half)
            assert store.stats()["live_bytes"] < half.nbytes * 0.8
