"""Records of one dtype and one shape."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ._identity import same_dtype
from ._index import RecordIndex, RecordSet, one, record_set
from ._store import ITERATION_SIZE, PART_SIZE_MAX, _Store, check_out, fresh

__all__ = ["DenseStore"]


class DenseStore(_Store["npt.NDArray[Any]"]):
    """Records of one dtype and one shape, read in any order as one array.

    Parameters
    ----------
    path : path-like
        The store's folder.
    dtype : dtype-like, optional
        Type of one item, needed to create. An existing store must have it.
    item_shape : tuple of int, optional
        Shape of one record, needed to create; ``()`` for one number a record.
    codec : {"zstd", "raw", "zstd_dict"}, optional
        How records are stored. Default ``"zstd"`` when creating.
    dict_bytes : bytes, optional
        The dictionary of `train_dict`, to create a store with codec ``"zstd_dict"``.
    mode : {"a", "r", "x"}
        ``"a"`` reads and writes, and creates what is not there; ``"r"`` only reads, shared with
        any number of other readers and one writer; ``"x"`` must create.
    checksums : {"always", "once", "off"}, optional
        Whether a record is checked each time it is read, the first time, or never. Default
        ``"always"`` for compressed stores, ``"once"`` for raw ones.

    Raises
    ------
    FileNotFoundError
        If nothing is there and no dtype was given.
    FileExistsError
        If ``mode="x"`` finds something.
    TypeError
        If the dtype is none that a store can hold, or creating lacks dtype or item_shape.
    ValueError
        If the store is of another kind, dtype, item_shape or codec than asked for.
    UnsupportedFormat
        If the folder holds something else, or a format of another version.
    CorruptStore
        If the store's header, table or dictionary is damaged.
    StoreBusy
        If another handle writes to the store.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from zrecord import DenseStore
    >>> folder = tempfile.mkdtemp()
    >>> with DenseStore(folder + "/rows", np.float32, (2,)) as store:
    ...     store.append(np.arange(6, dtype=np.float32).reshape(3, 2))
    ...     store[-1]
    ...     store[[2, 0]]
    0
    array([4., 5.], dtype=float32)
    array([[4., 5.],
           [0., 1.]], dtype=float32)
    """

    _dense = True

    def __init__(
        self,
        path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        dtype: npt.DTypeLike | None = None,
        item_shape: tuple[int, ...] | int | None = None,
        codec: str | None = None,
        dict_bytes: bytes | bytearray | memoryview | None = None,
        *,
        mode: str = "a",
        checksums: str | None = None,
    ) -> None:
        super().__init__(path, dtype, item_shape, codec, dict_bytes, mode, checksums)
        self._width = math.prod(self._item_shape) * self._dtype.itemsize

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return self._item_shape

    @overload
    def __getitem__(self, index: RecordSet) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: RecordIndex) -> npt.NDArray[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one record for an int, an array of records for anything else.

        Parameters
        ----------
        index : int, slice, list, tuple, range, 1-D array of integers, or mask
            ``store[0, 5, 2]`` is three records. A mask has exactly ``len(store)`` bools.

        Returns
        -------
        ndarray
            Shape `item_shape` for an int, ``(n, *item_shape)`` for a set. It belongs to the caller.

        Raises
        ------
        RecordIndexError
            If an index is out of range, or not of one dimension.
        CorruptRecord
            If a record does not have its checksum.
        """
        return super().__getitem__(index)

    def gather(self, indices: RecordSet, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return a set of records as one array.

        Parameters
        ----------
        indices : slice, list, tuple, range, 1-D array of integers, or mask
            In any order, duplicates and negatives included. A 1-D C-contiguous array of int64 or
            uint64 is passed on without a copy.
        out : ndarray, optional
            Where to read into: shape ``(n, *item_shape)``, the store's dtype, C-contiguous and
            writable. If the call fails, its content is undefined.

        Returns
        -------
        ndarray
            Shape ``(n, *item_shape)``, in request order; `out` itself if given.

        Raises
        ------
        TypeError
            If `indices` is one int, or `out` has another dtype.
        ValueError
            If `out` has another shape, or is not C-contiguous and writable.
        RecordIndexError
            If an index is out of range, or not of one dimension.
        CorruptRecord
            If a record does not have its checksum.
        """
        rows = record_set(indices, self._length, self._path)
        if out is None:
            out = fresh((len(rows), *self._item_shape), self._dtype)
        else:
            check_out(out, self._dtype, (len(rows), *self._item_shape))
        self._handle.dense_gather(rows, out)
        return out

    def append(self, records: npt.ArrayLike) -> int:
        """Append records, all or nothing.

        Parameters
        ----------
        records : ndarray
            Shape ``(n, *item_shape)``, exactly the store's dtype. It may be non-contiguous or
            memory-mapped; it is never copied whole.

        Returns
        -------
        int
            The index of the first new record; ``len(store)`` for an empty batch.

        Raises
        ------
        TypeError
            If `records` is not an array or has another dtype: nothing is cast.
        ValueError
            If the shape is another one.
        ReadOnlyStore
            If the store is open with ``mode="r"``.
        OSError
            If the disk is full or fails. The store is as before.

        Notes
        -----
        The records survive the end of the process when this returns, and a power cut after the
        next `sync` or `close`.

        An exception that a signal handler raises, such as KeyboardInterrupt, may come when the
        commit is done already: compare ``len(store)`` before trying again.
        """
        array = self._as_records(records)
        return self._handle.append_dense(self._parts(array))

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for span in self._batches(ITERATION_SIZE):
            batch = self.gather(span)
            for position in range(len(batch)):
                yield batch[position, ...]  # the ellipsis keeps a 0-d record an array

    def _read_one(self, index: int) -> npt.NDArray[Any]:
        record = fresh(self._item_shape, self._dtype)
        self._handle.dense_gather(one(index, self._length, self._path), record)
        return record

    def _batches(self, size_max: int) -> Iterator[slice]:
        count = max(1, size_max // self._width)
        start, end = 0, len(self)
        while start < end:
            yield slice(start, min(start + count, end))
            start += count
            end = min(end, len(self))

    def _as_records(self, records: Any) -> npt.NDArray[Any]:
        if isinstance(records, np.ndarray):
            array = records
        elif hasattr(records, "__array__") and not isinstance(records, np.generic):
            array = np.asarray(records)
        else:
            raise TypeError(
                f"append takes an array of shape (n, *{self._item_shape}), "
                f"got {type(records).__name__}; make it one with numpy.stack"
            )
        if not same_dtype(array.dtype, self._dtype):
            raise TypeError(
                f"the records have dtype {array.dtype!r}, the store has {self._dtype!r}: "
                "nothing is cast"
            )
        if array.ndim == 0 or array.shape[1:] != self._item_shape:
            hint = "; wrap one record as record[None]" if array.shape == self._item_shape else ""
            raise ValueError(
                f"the records have shape {array.shape}, "
                f"expected {('n', *self._item_shape)}{hint}".replace("'n'", "n")
            )
        return array

    def _parts(self, array: npt.NDArray[Any]) -> Iterator[tuple[npt.NDArray[Any], int]]:
        count = max(1, PART_SIZE_MAX // self._width)
        # A mapped file may change between summing and writing, so a part of it is copied as well.
        copied = isinstance(array, np.memmap) or not array.flags.c_contiguous
        for start in range(0, len(array), count):
            part = array[start : start + count]
            yield (np.array(part, order="C", subok=False) if copied else part), len(part)
