"""The quickstart learns, and goes on with the very batch that it stopped before."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from zrecord import DenseStore, RaggedStore

pytest.importorskip(
    "sklearn.datasets", reason="scikit-learn is not installed here; nox -s quickstart installs it"
)

PROGRAM = Path(__file__).parents[1] / "examples" / "quickstart.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    return folder, runpy.run_path(str(PROGRAM))["main"](folder)


def test_held_out_images_are_recognised(run):
    _, outcome = run
    assert outcome.accuracy > 0.9


def test_the_resumed_batch_is_the_one_that_would_have_come(run):
    _, outcome = run
    assert set(outcome.expected) == set(outcome.resumed) == {"image", "label", "text"}
    np.testing.assert_array_equal(outcome.resumed["image"], outcome.expected["image"])
    np.testing.assert_array_equal(outcome.resumed["label"], outcome.expected["label"])
    assert len(outcome.resumed["text"]) == len(outcome.expected["text"]) == 64
    for resumed, expected in zip(outcome.resumed["text"], outcome.expected["text"], strict=True):
        np.testing.assert_array_equal(resumed, expected)


def test_the_state_on_disk_is_that_of_the_middle(run):
    folder, _ = run
    assert json.loads((folder / "state.json").read_text())["step"] == 300
    with DenseStore(folder / "labels", mode="r") as labels:
        assert len(labels) == 1797


def test_the_sizes_are_those_of_the_files(run):
    folder, outcome = run
    for name, (_, stored) in outcome.sizes.items():
        assert stored == sum(file.stat().st_size for file in (folder / name).iterdir())
    raw, stored = outcome.sizes["texts"]
    assert raw > 2 * stored
    with RaggedStore(folder / "texts", mode="r") as texts:
        assert raw == int(texts.lengths().sum())
