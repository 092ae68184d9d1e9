"""Real images and real sequences, stored and loaded: every batch equals its source bit for bit.

The images are the handwritten digits of scikit-learn, the sequences the source files of Python's
own standard library. An index stream beside them says which records a batch should hold.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from loaderx import DataLoader
from zrecord import DenseStore, RaggedBatch, RaggedStore

pytestmark = pytest.mark.thread_unsafe(reason="the stores are shared")
MODES = ["sequential", "iid", "cyclic"]
SOURCE_FILES = 400
SOURCE_BYTES_MAX = 200_000


@pytest.fixture(scope="module", params=["raw", "zstd"])
def digits(tmp_path_factory, request):
    datasets = pytest.importorskip(
        "sklearn.datasets", reason="the images are those of scikit-learn, which is not installed"
    )
    images, labels = datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)
    folder = tmp_path_factory.mktemp("digits")
    with (
        DenseStore(folder / "image", np.uint8, (8, 8), request.param) as image,
        DenseStore(folder / "label", labels.dtype, (), request.param) as label,
        DenseStore(folder / "index", np.int64, ()) as index,
    ):
        image.append(images)
        label.append(labels)
        index.append(np.arange(len(images)))
        yield images, labels, {"image": image, "label": label, "index": index}


@pytest.fixture(scope="module", params=["raw", "zstd"])
def sources(tmp_path_factory, request):
    library = Path(sysconfig.get_paths()["stdlib"])
    contents = [path.read_bytes() for path in sorted(library.rglob("*.py"))[:SOURCE_FILES]]
    records = [np.frombuffer(text[:SOURCE_BYTES_MAX], np.uint8) for text in contents if text]
    if len(records) < 64:
        pytest.skip(f"only {len(records)} source files of the standard library are installed here")
    folder = tmp_path_factory.mktemp("sources")
    with (
        RaggedStore(folder / "text", np.uint8, request.param) as text,
        DenseStore(folder / "index", np.int64, ()) as index,
    ):
        text.append(records)
        index.append(np.arange(len(records)))
        yield records, {"text": text, "index": index}


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("mode", MODES)
def test_images(digits, mode, workers):
    images, labels, streams = digits
    with DataLoader(streams, workers, 64, mode=mode, seed=5, with_index="i") as loader:
        seen = []
        for batch in loader.epochs(2):
            assert np.array_equal(batch["index"], batch["i"])
            assert np.array_equal(batch["image"], images[batch["i"]])
            assert np.array_equal(batch["label"], labels[batch["i"]])
            seen.append(batch["i"])
        once = list(loader.once())
        state = loader.state_dict()
        following = next(loader)
    assert len(seen) == 2 * loader.steps_per_cycle
    if mode == "cyclic":
        cycle = np.concatenate(seen[: loader.steps_per_cycle])
        assert len(np.unique(cycle)) == len(cycle)
    assert np.array_equal(np.concatenate([batch["image"] for batch in once]), images)
    with DataLoader(streams, 4 - workers, 64, mode=mode, seed=5, with_index="i") as loader:
        loader.load_state_dict(state)
        resumed = next(loader)
    assert all(np.array_equal(resumed[name], following[name]) for name in following)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_sequences(sources, mode, packed):
    records, streams = sources
    with DataLoader(streams, 4, 16, mode=mode, seed=5, packed=packed) as loader:
        for batch in [*loader.epochs(1), *loader.once()]:
            text = batch["text"]
            assert isinstance(text, RaggedBatch if packed else list)
            if packed:
                text = text.to_list()
            assert len(text) == len(batch["index"])
            for record, index in zip(text, batch["index"], strict=True):
                assert record.dtype == np.uint8
                assert record.tobytes() == records[index].tobytes()


def test_a_subset_of_images_by_label(digits):
    images, labels, streams = digits
    with DataLoader(streams, 2, 20, subset=labels == 7) as loader:
        for batch in loader.take(30):
            assert set(batch["label"].tolist()) == {7}
            assert np.array_equal(batch["image"], images[batch["index"]])
        assert sum(len(batch["label"]) for batch in loader.once()) == int((labels == 7).sum())
