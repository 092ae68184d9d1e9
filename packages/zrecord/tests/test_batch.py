"""RaggedBatch on its own."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from conftest import RECORDS, assert_same_list
from zrecord import RaggedBatch


def test_without_shapes_every_record_has_one_dimension():
    batch = RaggedBatch(np.arange(5), np.array([0, 2, 5]))
    assert batch.shapes == [(2,), (3,)]
    assert_same_list(batch.to_list(), [np.arange(2), np.arange(2, 5)])


def test_shapes_are_kept():
    shapes = [(), (2, 2), (1, 1, 1)]
    batch = RaggedBatch(np.arange(6), np.array([0, 1, 5, 6]), iter(shapes))
    assert batch.shapes == shapes
    assert [record.shape for record in batch.to_list()] == shapes


def test_records_are_views_of_the_values():
    batch = RaggedBatch(np.arange(5), np.array([0, 2, 5]))
    batch.to_list()[1][0] = 77
    assert batch.values[2] == 77


def test_offsets_past_int32_are_refused_with_the_size():
    # No memory is behind these values: one byte, repeated.
    values = np.broadcast_to(np.zeros(1, "u1"), (2**31 + 5,))
    batch = RaggedBatch(values, np.array([0, 7, 2**31 + 5]))
    assert batch.offsets.dtype == np.int64
    assert batch.offsets[-1] == 2**31 + 5
    assert len(batch.to_list()[1]) == 2**31 - 2
    with pytest.raises(OverflowError, match=str(2**31 + 5)):
        _ = batch.cu_seqlens
    edge = RaggedBatch(values, np.array([0, 2**31 - 1]))
    assert edge.cu_seqlens.tolist() == [0, 2**31 - 1]


@pytest.mark.parametrize(
    ("values", "offsets", "shapes", "error"),
    [
        ([1, 2], np.array([0, 2]), None, TypeError),
        (np.arange(2), [0, 2], None, TypeError),
        (np.arange(2), np.array([0, 2], np.int32), None, TypeError),
        (np.arange(4).reshape(2, 2), np.array([0, 2]), None, ValueError),
        (np.arange(2), np.array([[0, 2]]), None, ValueError),
        (np.arange(2), np.array([], np.int64), None, ValueError),
        (np.arange(2), np.array([0, 3]), None, ValueError),
        (np.arange(2), np.array([-1, 2]), None, ValueError),
        (np.arange(2), np.array([0, 2, 1]), None, ValueError),
        (np.arange(2), np.array([0, 2]), [], ValueError),
        (np.arange(2), np.array([0, 2]), [(3,)], ValueError),
        (np.arange(2), np.array([0, 2]), [(-1, -2)], ValueError),
        (np.arange(2), np.array([0, 2]), [(2,), (1,)], ValueError),
    ],
)
def test_what_does_not_fit_is_refused(values, offsets, shapes, error):
    with pytest.raises(error):
        RaggedBatch(values, offsets, shapes)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))]
)
def test_a_batch_is_copied_and_pickled(ragged, again):
    for batch in (
        ragged.gather_packed(slice(None)),
        RaggedBatch(np.arange(4), np.array([0, 4]), [(2, 2)]),
        RaggedBatch(np.arange(4), np.array([0, 4])),
    ):
        other = again(batch)
        assert other.shapes == batch.shapes
        assert other.offsets.tolist() == batch.offsets.tolist()
        assert_same_list(other.to_list(), batch.to_list())


def test_a_batch_lives_on_after_close(ragged):
    batch = ragged.gather_packed(slice(None))
    ragged.close()
    assert_same_list(batch.to_list(), RECORDS)
