"""What a user may write between the brackets, brought to one form: 64-bit integers in a row.

Negative numbers and the range are the library's work, so that an index array of the right type
passes through here without being looked at.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Union, cast

import numpy as np
import numpy.typing as npt

from .errors import RecordIndexError

RecordIndex = Union[int, "np.integer[Any]"]
RecordSet = Union[
    slice,
    range,
    Sequence[int],
    Sequence[bool],
    "Sequence[np.integer[Any]]",
    "npt.NDArray[np.integer[Any]]",
    "npt.NDArray[np.bool_]",
]
Indices = Union["npt.NDArray[np.int64]", "npt.NDArray[np.uint64]"]

_INT64 = np.dtype(np.int64)
_UINT64 = np.dtype(np.uint64)
_INT64_MAX = 2**63 - 1
_FORMS = "an int, a slice, a list or 1-D array of ints, or a mask of bools"


def out_of_range(index: int, length: int, path: str) -> RecordIndexError:
    """Return the error for an index that no record has."""
    return RecordIndexError(f"index {index} is out of range: {path} holds {length} records")


def single(index: Any) -> int | None:
    """Return the int that names one record, or None where `index` is a set of records."""
    if isinstance(index, (bool, np.bool_)):
        raise TypeError(f"a bool names no record: got {index!r}, expected {_FORMS}")
    if isinstance(index, (int, np.integer)):
        return int(index)
    if isinstance(index, np.ndarray):
        if index.ndim:
            return None
        if index.dtype.kind not in "iu":
            raise TypeError(f"a 0-d array of {index.dtype} names no record, expected {_FORMS}")
        return int(index)
    if isinstance(index, (slice, list, tuple, range)) or hasattr(index, "__array__"):
        return None
    try:
        return operator.index(index)
    except TypeError:
        raise TypeError(f"{type(index).__name__} names no records, expected {_FORMS}") from None


def record_set(index: Any, length: Callable[[], int], path: str) -> Indices:
    """Return a set of records as a 1-D C-contiguous array of int64 or uint64.

    Parameters
    ----------
    index : slice, range, sequence or 1-D array of integers, or mask
        Any order, duplicates and negatives included.
    length : callable
        Gives the number of records, where the form needs it.
    path : str
        The store's path, for messages.
    """
    if isinstance(index, np.ndarray):
        dtype = index.dtype
        if (dtype is _INT64 or dtype is _UINT64) and index.ndim == 1:
            return index if index.flags.c_contiguous else np.ascontiguousarray(index)
        return _from_array(index, length, path)
    if isinstance(index, slice):
        return np.arange(*index.indices(length()), dtype=np.int64)
    if isinstance(index, (list, tuple)):
        return _from_sequence(index, length, path)
    if isinstance(index, range):
        return _from_range(index, length, path)
    if single(index) is None:
        return _from_array(np.asarray(index), length, path)
    raise TypeError(f"{index!r} is one record; use store[{index}], or give a list of records")


def one(index: int, length: Callable[[], int], path: str) -> Indices:
    """Return one record's index as an array."""
    try:
        return np.array([index], np.int64)
    except OverflowError:
        raise out_of_range(index, length(), path) from None


def any_set(index: Any, length: Callable[[], int], path: str) -> Indices:
    """Like `record_set`, where one int is a set of one."""
    position = single(index)
    if position is None:
        return record_set(index, length, path)
    return one(position, length, path)


def _from_array(index: npt.NDArray[Any], length: Callable[[], int], path: str) -> Indices:
    kind = index.dtype.kind
    if kind not in "iub":
        if index.ndim == 1 and index.size == 0 and kind == "f":
            return np.empty(0, np.int64)  # what np.array([]) is
        raise TypeError(f"an array of {index.dtype} names no records, expected {_FORMS}")
    if index.ndim != 1:
        if index.ndim == 0:
            single(index)
            raise TypeError("a 0-d array is one record; use store[i], or give a list of records")
        raise RecordIndexError(
            f"an index array has one dimension, got shape {index.shape}; flatten it first"
        )
    if kind == "b":
        return _from_mask(index, length(), path)
    # Every integer type but uint64 fits into int64, whatever its size and byte order.
    target = _UINT64 if kind == "u" and index.dtype.itemsize == 8 else _INT64
    return cast(Indices, np.ascontiguousarray(index, dtype=target))


def _from_mask(mask: npt.NDArray[Any], length: int, path: str) -> Indices:
    if len(mask) != length:
        raise RecordIndexError(f"a mask of {len(mask)} bools, but {path} holds {length} records")
    return np.flatnonzero(mask).astype(np.int64, copy=False)


def _from_range(index: range, length: Callable[[], int], path: str) -> Indices:
    count = length()
    if len(index):  # checked first, so that a range without end allocates nothing
        for end in (index[0], index[-1]):
            if not -count <= end < count:
                raise out_of_range(end, count, path)
        return np.arange(index.start, index[-1] + index.step, index.step, dtype=np.int64)
    return np.empty(0, np.int64)


def _from_sequence(index: Sequence[Any], length: Callable[[], int], path: str) -> Indices:
    types = set(map(type, index))
    if not types <= {int}:
        bools = {t for t in types if issubclass(t, (bool, np.bool_))}
        if bools and bools == types:
            return _from_mask(np.array(index, dtype=np.bool_), length(), path)
        if bools:
            raise TypeError(f"bools and {_names(types - bools)} in one index, expected {_FORMS}")
        index = [_element(item, position) for position, item in enumerate(index)]
    try:
        return np.array(index, dtype=np.int64)
    except OverflowError:
        worst = next(item for item in index if not -_INT64_MAX <= item <= _INT64_MAX)
        raise out_of_range(worst, length(), path) from None


def _element(item: Any, position: int) -> int:
    if isinstance(item, (list, tuple)) or getattr(item, "ndim", None):
        raise RecordIndexError(
            f"an index has one dimension, but its element {position} is a sequence"
        )
    try:
        return operator.index(item)
    except TypeError:
        raise TypeError(
            f"element {position} of the index is {type(item).__name__}, expected an int"
        ) from None


def _names(types: set[type]) -> str:
    return ", ".join(sorted(t.__name__ for t in types))
