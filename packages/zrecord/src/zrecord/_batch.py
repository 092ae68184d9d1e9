"""Several ragged records in one piece: values, where each begins, and what shape it has.

The library gives one *shape word* a record: the rank in bits 0 to 7, the first dimension above. It
says everything up to rank 1; the second dimension of rank 2 follows from the record's length; the
dimensions of higher ranks come in an array of their own, one record behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["RaggedBatch"]


class RaggedBatch:
    """Ragged records, one behind the other in one array.

    Parameters
    ----------
    values : ndarray
        1-D, the items of all records.
    offsets : ndarray
        1-D, int64, of n + 1 elements: record i is ``values[offsets[i]:offsets[i + 1]]``.
    shapes : iterable of tuple of int, optional
        The shape of each record. Without it every record has one dimension.

    Raises
    ------
    TypeError
        If an array is not one, or `offsets` is not int64.
    ValueError
        If offsets or shapes do not fit the values.

    Examples
    --------
    >>> import numpy as np
    >>> from zrecord import RaggedBatch
    >>> batch = RaggedBatch(np.array([1, 2, 3, 4, 5, 6]), np.array([0, 2, 6]), [(2,), (2, 2)])
    >>> len(batch)
    2
    >>> batch.to_list()[1]
    array([[3, 4],
           [5, 6]])
    >>> batch.cu_seqlens
    array([0, 2, 6], dtype=int32)
    """

    __slots__ = ("_dims", "_high_dims", "_ranks", "_shapes", "_words", "offsets", "values")

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    _words: npt.NDArray[np.uint64] | None
    _high_dims: npt.NDArray[np.uint64] | None
    _ranks: npt.NDArray[np.uint8] | None
    _dims: npt.NDArray[np.uint64] | None
    _shapes: list[tuple[int, ...]] | None

    def __init__(
        self,
        values: npt.NDArray[Any],
        offsets: npt.NDArray[np.int64],
        shapes: Iterable[tuple[int, ...]] | None = None,
    ) -> None:
        self._set(values, offsets, None, None)
        _check(values, offsets)
        lengths = np.diff(offsets)
        if shapes is None:
            self._ranks = np.ones(len(lengths), np.uint8)
            self._dims = lengths.astype(np.uint64)
            return
        self._shapes = [tuple(int(n) for n in shape) for shape in shapes]
        if len(self._shapes) != len(lengths):
            raise ValueError(f"{len(self._shapes)} shapes for {len(lengths)} records")
        for position, (shape, length) in enumerate(
            zip(self._shapes, lengths.tolist(), strict=True)
        ):
            size = 1
            for n in shape:
                size *= n
            if size != length or any(n < 0 for n in shape):
                raise ValueError(f"record {position} has {length} items, its shape is {shape}")
        self._ranks = np.array([len(shape) for shape in self._shapes], np.uint8)
        self._dims = np.array([n for shape in self._shapes for n in shape], np.uint64)

    def _set(self, values: Any, offsets: Any, words: Any, high_dims: Any) -> None:
        self.values = values
        self.offsets = offsets
        self._words = words
        self._high_dims = high_dims
        self._ranks = None
        self._dims = None
        self._shapes = None

    @classmethod
    def _from_store(cls, values: Any, offsets: Any, words: Any, high_dims: Any) -> RaggedBatch:
        """Make a batch of what the library filled in, whose parts are known to fit."""
        batch = cls.__new__(cls)
        batch._set(values, offsets, words, high_dims)
        return batch

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each record, made when it is first asked for."""
        if self._shapes is None:
            ranks, dims = self._layout()
            if bool((ranks == 1).all()):
                self._shapes = [(n,) for n in dims.tolist()]
            else:
                ends = np.cumsum(ranks, dtype=np.int64).tolist()
                flat = dims.tolist()
                self._shapes = [
                    tuple(flat[end - rank : end])
                    for end, rank in zip(ends, ranks.tolist(), strict=True)
                ]
        return self._shapes

    @property
    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """The offsets as int32, as attention kernels for sequences of several lengths take them.

        Raises
        ------
        OverflowError
            If the batch has 2^31 items or more.
        """
        total = int(self.offsets[-1])
        if total > np.iinfo(np.int32).max:
            raise OverflowError(
                f"the batch has {total} items, int32 offsets end at {2**31 - 1}; "
                "use offsets, or gather fewer records"
            )
        return self.offsets.astype(np.int32)

    def to_list(self) -> list[npt.NDArray[Any]]:
        """Return the records one by one.

        Returns
        -------
        list of ndarray
            Views of `values`, each in its record's shape.
        """
        values = self.values
        ends = self.offsets.tolist()
        if self._all_flat():
            return [values[start:end] for start, end in pairwise(ends)]
        return [
            values[start:end].reshape(shape)
            for (start, end), shape in zip(pairwise(ends), self.shapes, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return (
            f"<RaggedBatch of {len(self)} records, {len(self.values)} items of {self.values.dtype}>"
        )

    def __getstate__(self) -> tuple[Any, ...]:
        return self.values, self.offsets, *self._layout()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        values, offsets, ranks, dims = state
        self._set(values, offsets, None, None)
        self._ranks, self._dims = ranks, dims

    def _all_flat(self) -> bool:
        """Tell whether every record has one dimension."""
        if self._words is not None:
            return bool(((self._words & 0xFF) == 1).all())
        return self._ranks is not None and bool((self._ranks == 1).all())

    def _layout(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        """Return the rank of each record, and the dimensions of all, one behind the other."""
        ranks, dims = self._ranks, self._dims
        if ranks is None or dims is None:
            ranks, dims = _unfold(self._words, self.offsets, self._high_dims)
            self._ranks, self._dims = ranks, dims
        return ranks, dims


def _unfold(words: Any, offsets: Any, high_dims: Any) -> tuple[Any, Any]:
    ranks = (words & 0xFF).astype(np.uint8)
    first = words >> np.uint64(8)
    if bool((ranks == 1).all()):
        return ranks, first
    ends = np.cumsum(ranks, dtype=np.int64)
    starts = ends - ranks
    dims = np.empty(int(ends[-1]), np.uint64)
    low = (ranks == 1) | (ranks == 2)
    dims[starts[low]] = first[low]
    two = ranks == 2
    dims[starts[two] + 1] = np.diff(offsets)[two].astype(np.uint64) // first[two]
    dims[np.repeat(ranks > 2, ranks)] = high_dims
    return ranks, dims


def _check(values: Any, offsets: Any) -> None:
    if not isinstance(values, np.ndarray) or not isinstance(offsets, np.ndarray):
        raise TypeError("values and offsets are numpy arrays")
    if offsets.dtype != np.int64:
        raise TypeError(f"offsets are int64, got {offsets.dtype}")
    if values.ndim != 1 or offsets.ndim != 1 or len(offsets) == 0:
        raise ValueError(
            f"values and offsets have one dimension and offsets n + 1 elements, "
            f"got shapes {values.shape} and {offsets.shape}"
        )
    if offsets[0] < 0 or offsets[-1] > len(values) or bool((np.diff(offsets) < 0).any()):
        raise ValueError(f"offsets must grow within 0 to {len(values)}")
