"""Records of one dtype, each with a shape of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, cast, overload

import numpy as np
import numpy.typing as npt

from ._batch import RaggedBatch
from ._handle import RaggedPart
from ._identity import RECORD_SIZE_MAX, same_dtype
from ._index import RecordIndex, RecordSet, one, record_set
from ._store import ITERATION_SIZE, PART_SIZE_MAX, _Store, check_out, fresh

__all__ = ["RaggedStore"]

# A part also ends after this many records, so that its tables stay small when records are.
_PART_COUNT_MAX = 2**16
_BYTES = (bytes, bytearray, memoryview)


class RaggedStore(_Store["list[npt.NDArray[Any]]"]):
    """Records of one dtype, each with a shape of its own.

    Parameters
    ----------
    path : path-like
        The store's folder.
    dtype : dtype-like, optional
        Type of one item, needed to create. An existing store must have it.
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
        If the dtype is none that a store can hold, or creating lacks it.
    ValueError
        If the store is of another kind, dtype or codec than asked for.
    UnsupportedFormat
        If the folder holds something else, or a format of another version.
    CorruptStore
        If the store's header, table or dictionary is damaged.
    StoreBusy
        If another handle writes to the store.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from zrecord import RaggedStore
    >>> folder = tempfile.mkdtemp()
    >>> with RaggedStore(folder + "/texts", np.uint8) as store:
    ...     store.append([b"one", b"and two"])
    ...     bytes(store[1])
    ...     [len(text) for text in store[[1, 0]]]
    0
    b'and two'
    [7, 3]
    """

    _dense = False

    def __init__(
        self,
        path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        dtype: npt.DTypeLike | None = None,
        codec: str | None = None,
        dict_bytes: bytes | bytearray | memoryview | None = None,
        *,
        mode: str = "a",
        checksums: str | None = None,
    ) -> None:
        super().__init__(path, dtype, None, codec, dict_bytes, mode, checksums)

    @overload
    def __getitem__(self, index: RecordSet) -> list[npt.NDArray[Any]]: ...
    @overload
    def __getitem__(self, index: RecordIndex) -> npt.NDArray[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one record for an int, a list of records for anything else.

        Parameters
        ----------
        index : int, slice, list, tuple, range, 1-D array of integers, or mask
            ``store[0, 5, 2]`` is three records. A mask has exactly ``len(store)`` bools.

        Returns
        -------
        ndarray or list of ndarray
            Each in its own shape. The records of one call are views of one array that no other
            call returns; none overlap.

        Raises
        ------
        RecordIndexError
            If an index is out of range, or not of one dimension.
        CorruptRecord
            If a record does not have its checksum.
        """
        return super().__getitem__(index)

    def gather(self, indices: RecordSet) -> list[npt.NDArray[Any]]:
        """Return a set of records as a list of arrays.

        Parameters
        ----------
        indices : slice, list, tuple, range, 1-D array of integers, or mask
            In any order, duplicates and negatives included.

        Returns
        -------
        list of ndarray
            In request order, each in its own shape; disjoint views of one new array.

        Raises
        ------
        TypeError
            If `indices` is one int, or names no records.
        RecordIndexError
            If an index is out of range, or not of one dimension.
        CorruptRecord
            If a record does not have its checksum.
        """
        return self.gather_packed(indices).to_list()

    def gather_packed(self, indices: RecordSet, out: npt.NDArray[Any] | None = None) -> RaggedBatch:
        """Return a set of records one behind the other, without an object for each.

        Parameters
        ----------
        indices : slice, list, tuple, range, 1-D array of integers, or mask
            In any order, duplicates and negatives included.
        out : ndarray, optional
            Where to read into: 1-D, the store's dtype, C-contiguous and writable, with at least
            as many items as the records have together. `values` is its beginning then. If the
            call fails, its content is undefined.

        Returns
        -------
        RaggedBatch
            With ``values``, ``offsets`` and ``shapes``.

        Raises
        ------
        TypeError
            If `indices` is one int, or `out` has another dtype.
        ValueError
            If `out` is too small, has more dimensions, or is not C-contiguous and writable.
        RecordIndexError
            If an index is out of range, or not of one dimension.
        CorruptRecord
            If a record does not have its checksum.
        """
        rows = record_set(indices, self._length, self._path)
        if out is not None:
            check_out(out, self._dtype)

        def allocate(total: int) -> npt.NDArray[Any]:
            if out is None:
                return fresh(total, self._dtype)
            if len(out) < total:
                raise ValueError(f"out has {len(out)} items, the records need {total}")
            return out[:total]

        return RaggedBatch._from_store(*self._handle.ragged_gather(rows, allocate))

    def lengths(self, indices: RecordSet | None = None) -> npt.NDArray[np.int64]:
        """Return how many items records have, without reading them.

        Parameters
        ----------
        indices : slice, list, tuple, range, 1-D array of integers, or mask, optional
            Which records; all of them if not given.

        Returns
        -------
        ndarray
            1-D, int64: the product of each record's shape.

        Raises
        ------
        TypeError
            If `indices` is one int, or names no records.
        RecordIndexError
            If an index is out of range, or not of one dimension.
        """
        if indices is None:
            return self._handle.ragged_lengths_between(0, len(self))
        return self._handle.ragged_lengths(record_set(indices, self._length, self._path))

    def append(self, records: Iterable[Any] | RaggedBatch) -> int:
        """Append records, all or nothing.

        Parameters
        ----------
        records : iterable of ndarray, or RaggedBatch
            Arrays of exactly the store's dtype and any shape without zeros; a uint8 store also
            takes bytes, bytearray and memoryview. An array of two or more dimensions is split on
            its first axis. An iterable, a generator too, is consumed in parts of at most 64 MiB,
            and may not write to this store itself.

        Returns
        -------
        int
            The index of the first new record; ``len(store)`` for an empty batch.

        Raises
        ------
        TypeError
            If a record has another dtype or is not an array, or `records` is one record.
        ValueError
            If a record has zero bytes, or 2^31 and more. The message names its position.
        ReadOnlyStore
            If the store is open with ``mode="r"``.
        OSError
            If the disk is full or fails.

        Notes
        -----
        Of an append that raises nothing is kept. The records survive the end of the process when
        this returns, and a power cut after the next `sync` or `close`.

        An exception that a signal handler raises, such as KeyboardInterrupt, may come when the
        commit is done already: compare ``len(store)`` before trying again.
        """
        if isinstance(records, RaggedBatch):
            parts = self._parts_of_batch(records)
        elif isinstance(records, np.ndarray) and records.ndim > 1:
            parts = self._parts_of_rows(records)
        else:
            parts = self._parts_of_records(self._as_iterable(records))
        return self._handle.append_ragged(parts)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for span in self._batches(ITERATION_SIZE):
            yield from self.gather(span)

    def _read_one(self, index: int) -> npt.NDArray[Any]:
        return self.gather(one(index, self._length, self._path))[0]

    def _batches(self, size_max: int) -> Iterator[slice]:
        item_count_max = max(1, size_max // self._dtype.itemsize)
        start, end = 0, len(self)
        while start < end:
            lengths = self._handle.ragged_lengths_between(start, min(2048, end - start))
            first = 0
            while first < len(lengths):
                ends = np.cumsum(lengths[first:])
                count = max(1, int(np.searchsorted(ends, item_count_max, "right")))
                yield slice(start + first, start + first + count)
                first += count
            start += len(lengths)
            end = min(end, len(self))

    # ---- what is appended, as parts ------------------------------------------------------------

    def _as_iterable(self, records: Any) -> Iterable[Any]:
        if isinstance(records, (np.ndarray, np.generic, *_BYTES, str)):
            what = type(records).__name__
            if isinstance(records, np.ndarray):
                what = f"an array of {records.ndim} dimension{'s' * (records.ndim != 1)}"
            raise TypeError(f"append takes several records, got {what}: wrap it in a list")
        try:
            return cast("Iterable[Any]", iter(records))
        except TypeError:
            raise TypeError(
                f"append takes an iterable of arrays, got {type(records).__name__}"
            ) from None

    def _parts_of_records(self, records: Iterable[Any]) -> Iterator[RaggedPart]:
        # Each record is copied as it comes, because a generator may yield one buffer again and
        # again. What is too large for a part goes alone and without a copy.
        dtype = self._dtype
        part = bytearray()
        offsets: list[int] = [0]
        ranks = bytearray()
        dims: list[int] = []
        for position, record in enumerate(records):
            if type(record) is np.ndarray and record.dtype is dtype and record.flags.c_contiguous:
                array = record
            else:
                array = self._as_record(record, position)
            size = array.nbytes
            if not 0 < size <= RECORD_SIZE_MAX:
                raise _wrong_size(size, position)
            if ranks and (len(part) + size > PART_SIZE_MAX or len(ranks) == _PART_COUNT_MAX):
                yield _part(part, offsets, ranks, dims)
                part, offsets, ranks, dims = bytearray(), [0], bytearray(), []
            if size > PART_SIZE_MAX:
                yield _part(array, [0, size], bytes([array.ndim]), array.shape)
                continue
            part.extend(array)
            offsets.append(len(part))
            ranks.append(array.ndim)
            dims.extend(array.shape)
        if ranks:
            yield _part(part, offsets, ranks, dims)

    def _as_record(self, record: Any, position: int) -> npt.NDArray[Any]:
        if isinstance(record, _BYTES):
            if self._dtype != np.uint8:
                raise TypeError(
                    f"record {position} is {type(record).__name__}, which only a uint8 store "
                    f"takes; this one has dtype {self._dtype!r}"
                )
            if isinstance(record, memoryview) and (record.itemsize != 1 or record.ndim != 1):
                raise TypeError(
                    f"record {position} is a memoryview of format {record.format!r} and "
                    f"{record.ndim} dimensions, expected bytes in one"
                )
            if isinstance(record, memoryview) and not record.contiguous:
                record = bytes(record)
            return np.frombuffer(record, np.uint8)
        if not isinstance(record, np.ndarray):
            if isinstance(record, np.generic) or not hasattr(record, "__array__"):
                raise TypeError(
                    f"record {position} is {type(record).__name__}, expected an array of dtype "
                    f"{self._dtype!r}; to append one record, wrap it in a list"
                )
            record = np.asarray(record)
        if not same_dtype(record.dtype, self._dtype):
            raise TypeError(
                f"record {position} has dtype {record.dtype!r}, the store has {self._dtype!r}: "
                "nothing is cast"
            )
        array: npt.NDArray[Any] = record
        if array.nbytes > RECORD_SIZE_MAX:
            raise _wrong_size(array.nbytes, position)
        return array if array.flags.c_contiguous else np.array(array, order="C", subok=False)

    def _parts_of_rows(self, rows: npt.NDArray[Any]) -> Iterator[RaggedPart]:
        if not same_dtype(rows.dtype, self._dtype):
            raise TypeError(
                f"the records have dtype {rows.dtype!r}, the store has {self._dtype!r}: "
                "nothing is cast"
            )
        shape = rows.shape[1:]
        size = int(np.prod(shape, dtype=object)) * rows.itemsize
        if len(rows) and not 0 < size <= RECORD_SIZE_MAX:
            raise _wrong_size(size, 0)
        count = max(1, min(_PART_COUNT_MAX, PART_SIZE_MAX // max(1, size)))
        copied = isinstance(rows, np.memmap) or not rows.flags.c_contiguous
        for start in range(0, len(rows), count):
            part = rows[start : start + count]
            yield RaggedPart(
                np.array(part, order="C", subok=False) if copied else part,
                np.arange(len(part) + 1, dtype=np.uint64) * np.uint64(size),
                np.full(len(part), len(shape), np.uint8),
                np.tile(np.array(shape, np.uint64), len(part)),
            )

    def _parts_of_batch(self, batch: RaggedBatch) -> Iterator[RaggedPart]:
        if not same_dtype(batch.values.dtype, self._dtype):
            raise TypeError(
                f"the batch has dtype {batch.values.dtype!r}, the store has {self._dtype!r}: "
                "nothing is cast"
            )
        itemsize = self._dtype.itemsize
        offsets = batch.offsets
        sizes = np.diff(offsets) * itemsize
        wrong = np.flatnonzero((sizes <= 0) | (sizes > RECORD_SIZE_MAX))
        if len(wrong):
            raise _wrong_size(int(sizes[wrong[0]]), int(wrong[0]))
        ranks, dims = batch._layout()
        ends_of_dims = np.cumsum(ranks, dtype=np.int64)
        first = 0
        while first < len(batch):
            reach = offsets[first] + max(1, PART_SIZE_MAX // itemsize)
            last = int(np.searchsorted(offsets, reach, "right")) - 1
            last = max(first + 1, min(last, first + _PART_COUNT_MAX))
            dims_start = int(ends_of_dims[first]) - int(ranks[first])
            yield RaggedPart(
                np.ascontiguousarray(batch.values[offsets[first] : offsets[last]]),
                ((offsets[first : last + 1] - offsets[first]) * itemsize).astype(np.uint64),
                np.ascontiguousarray(ranks[first:last]),
                np.ascontiguousarray(dims[dims_start : int(ends_of_dims[last - 1])]),
            )
            first = last


def _part(source: Any, offsets: Any, ranks: Any, dims: Any) -> RaggedPart:
    return RaggedPart(
        source,
        np.array(offsets, np.uint64),
        np.frombuffer(bytes(ranks), np.uint8),
        np.array(dims, np.uint64),
    )


def _wrong_size(size: int, position: int) -> ValueError:
    if size == 0:
        return ValueError(f"record {position} has zero bytes, a record needs at least one")
    return ValueError(f"record {position} has {size} bytes, at most {RECORD_SIZE_MAX} fit")
