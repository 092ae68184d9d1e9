"""What the tests share: two small stores, all codecs, and the choice of the long tests."""

from __future__ import annotations

import os

import numpy as np
import pytest
import zrecord
from zrecord import DenseStore, RaggedStore

LONG = os.environ.get("ZRECORD_LONG_TESTS") == "1"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: runs with ZRECORD_LONG_TESTS=1 only")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="a long test: set ZRECORD_LONG_TESTS=1 to run it")
    for item in items:
        if "long" in item.keywords and not LONG:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def dictionary() -> bytes:
    """A dictionary for records of this test set."""
    rng = np.random.default_rng(3)
    words = [rng.integers(0, 256, 12, dtype=np.uint8).tobytes() for _ in range(40)]
    samples = [b"".join(words[i] for i in rng.integers(0, 40, 8)) for _ in range(600)]
    return zrecord.train_dict(samples, tier="fast")


@pytest.fixture(params=["raw", "zstd", "zstd_dict"])
def codec(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def codec_options(codec: str, dictionary: bytes) -> dict[str, object]:
    """Arguments that create a store with each codec."""
    return {"codec": codec, "dict_bytes": dictionary if codec == "zstd_dict" else None}


ROWS = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
RECORDS = [
    np.arange(5, dtype=np.int32),
    np.array(7, np.int32),
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.arange(24, dtype=np.int32).reshape(2, 3, 4) + 100,
    np.array([9], np.int32),
    np.arange(4, dtype=np.int32).reshape(1, 2, 1, 2) - 50,
]


@pytest.fixture
def dense(tmp_path):
    """A dense store of ten records."""
    with DenseStore(tmp_path / "dense", np.float32, (2, 3)) as store:
        store.append(ROWS)
        yield store


@pytest.fixture
def ragged(tmp_path):
    """A ragged store of six records of ranks 0 to 4."""
    with RaggedStore(tmp_path / "ragged", np.int32) as store:
        store.append(RECORDS)
        yield store


def assert_same(got, expected) -> None:
    """Compare values, shape and dtype."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def assert_same_list(got, expected) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert_same(a, b)
