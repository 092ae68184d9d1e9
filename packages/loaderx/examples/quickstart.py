"""From files to a trained classifier: stores on disk, prefetched batches, an exact resume.

    python quickstart.py [FOLDER]

Images and labels of handwritten digits (from scikit-learn) become two dense stores, definitions
from the Python standard library's source a ragged one. A softmax classifier in plain numpy is
trained on their batches, stopped in the middle, and resumed from the saved state in a new loader.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from loaderx import DataLoader
from sklearn.datasets import load_digits
from zrecord import DenseStore, RaggedStore

STEPS = 600
BATCH_SIZE = 64
HELD_OUT = 297
LEARNING_RATE = 0.3


@dataclass
class Outcome:
    """What a run showed."""

    accuracy: float
    samples_per_second: float
    sizes: dict[str, tuple[int, int]]  # bytes of the records, bytes on disk
    expected: dict[str, Any]  # the batch that would have come next
    resumed: dict[str, Any]  # the batch that came after the resume


def main(folder: Path) -> Outcome:
    """Write the stores, train in two parts, and print what happened."""
    sizes = write_stores(folder)
    with (
        DenseStore(folder / "images", mode="r") as images,
        DenseStore(folder / "labels", mode="r") as labels,
        RaggedStore(folder / "texts", mode="r") as texts,
    ):
        streams = {"image": images, "label": labels, "text": texts}
        model = Softmax(pixels=64, classes=10)
        shuffled = np.random.default_rng(0).permutation(len(images))
        held_out, training = shuffled[:HELD_OUT], shuffled[HELD_OUT:]
        began = time.perf_counter()

        with open_loader(streams, training) as loader:
            train(model, loader, first=0, last=STEPS // 2)
            state = folder / "state.json"
            state.write_text(json.dumps(loader.state_dict()))
            expected = next(loader)

        # As a new process would: a new loader, and the state from the file.
        with open_loader(streams, training) as loader:
            loader.load_state_dict(json.loads(state.read_text()))
            resumed = next(loader)
            model.learn(resumed)
            train(model, loader, first=STEPS // 2 + 1, last=STEPS)

        speed = STEPS * BATCH_SIZE / (time.perf_counter() - began)
        accuracy = model.accuracy(scaled(images[held_out]), labels[held_out])

    print(f"\n{'':8}{'records':>12}{'on disk':>12}{'ratio':>8}")
    for name, (raw, stored) in sizes.items():
        print(f"{name:8}{raw:>12,}{stored:>12,}{raw / stored:>8.2f}")
    print("(a store has 80 KiB of files of its own, and 24 or 32 bytes a record)")
    print(f"held-out accuracy {accuracy:.3f} on {HELD_OUT} images")
    print(f"{speed:,.0f} samples per second, training included")
    verdict = "identical" if same(expected, resumed) else "not equal"
    print(f"the batch after the resume is {verdict} to the one that would have come")
    return Outcome(accuracy, speed, sizes, expected, resumed)


def write_stores(folder: Path) -> dict[str, tuple[int, int]]:
    """Write one record of each kind per image; return the sizes in memory and on disk."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.int64)
    texts = list(islice(definitions(), len(images)))
    with DenseStore(folder / "images", images.dtype, images.shape[1:], codec="raw") as store:
        store.append(images)
    with DenseStore(folder / "labels", labels.dtype, (), codec="raw") as store:
        store.append(labels)
    with RaggedStore(folder / "texts", np.uint8, codec="zstd") as store:
        store.append(texts)
    raw = {"images": images.nbytes, "labels": labels.nbytes, "texts": sum(map(len, texts))}
    return {
        name: (size, sum(file.stat().st_size for file in (folder / name).iterdir()))
        for name, size in raw.items()
    }


def definitions() -> Iterator[bytes]:
    """Yield the top-level classes and functions of the running interpreter's own library."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("*.py")) + sorted(library.glob("*/*.py")):
        for text in re.split(rb"\n(?=class |def |@)", path.read_bytes()):
            if len(text) > 500:
                yield text


def scaled(images: np.ndarray) -> np.ndarray:
    """Return the images as rows of numbers from 0 to 1."""
    return images.reshape(len(images), -1).astype(np.float32) / 16


def prepare(batch: dict[str, Any]) -> dict[str, Any]:
    """Scale the images; this runs on the loader's threads."""
    return batch | {"image": scaled(batch["image"])}


def open_loader(streams: dict[str, Any], training: np.ndarray) -> DataLoader:
    """Return a loader over the training records."""
    return DataLoader(
        streams, num_workers=2, batch_size=BATCH_SIZE, seed=7, transform=prepare, subset=training
    )


class Softmax:
    """Multinomial logistic regression, trained by plain gradient descent."""

    def __init__(self, pixels: int, classes: int) -> None:
        self.weights = np.zeros((pixels, classes), np.float32)
        self.bias = np.zeros(classes, np.float32)

    def learn(self, batch: dict[str, Any]) -> float:
        """Take one step down the gradient of the cross-entropy; return the loss before it."""
        x, y = batch["image"], batch["label"]
        scores = x @ self.weights + self.bias
        scores -= scores.max(axis=1, keepdims=True)
        probability = np.exp(scores)
        probability /= probability.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = -float(np.log(probability[rows, y]).mean())
        probability[rows, y] -= 1
        self.weights -= LEARNING_RATE * x.T @ probability / len(y)
        self.bias -= LEARNING_RATE * probability.mean(axis=0)
        return loss

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return the share of rows whose best score is their label's."""
        return float(np.mean((x @ self.weights + self.bias).argmax(axis=1) == y))


def train(model: Softmax, loader: DataLoader, first: int, last: int) -> None:
    """Train on the loader's next batches, and show how it goes."""
    for step, batch in enumerate(loader.take(last - first), start=first + 1):
        loss = model.learn(batch)
        characters = sum(map(len, batch["text"]))
        if step % 50 == 0 or step == last:
            line = (
                f"step {step:4}/{STEPS}  loss {loss:.3f}  text in the batch {characters:7,} bytes"
            )
            stay = sys.stdout.isatty() and step < STEPS
            print(f"\r{line}", end="" if stay else "\n", flush=True)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two batches hold the same values."""
    return one.keys() == other.keys() and all(
        len(one[name]) == len(other[name]) and all(map(np.array_equal, one[name], other[name]))
        for name in one
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
