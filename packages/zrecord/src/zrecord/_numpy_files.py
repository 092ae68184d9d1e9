"""Stores from .npy and .npz files and back, read and written in parts of bounded size.

* A .npy file is one array: a dense store whose records are the rows of its first axis.
* A .npz file of one array is the same.
* A .npz file with the members ``values`` and ``offsets`` is a ragged store in one piece, record i
  is ``values[offsets[i]:offsets[i + 1]]``. Where not every record has one dimension, ``ranks`` and
  ``dims`` say how many each has and which, one record behind the other.
* Any other .npz file is a ragged store with one record an array, in the order of the file.
"""

from __future__ import annotations

import errno
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from ._batch import RaggedBatch
from ._dense import DenseStore
from ._identity import RECORD_SIZE_MAX, same_dtype
from ._ragged import RaggedStore
from .errors import ZrecordError

Advance = Callable[[int], None]
AnyStore = DenseStore | RaggedStore

_SIZE_MAX = 16 * 2**20
_HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_PACKED = {"values", "offsets"}
_PACKED_SHAPES = {"ranks", "dims"}


class ArrayFile:
    """An array in the .npy format, read from the front; `rows` are along the first axis."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        try:
            version = npy.read_magic(file)  # type: ignore[no-untyped-call,unused-ignore]
            read: Any = _HEADER_READERS.get(version)
            if read is None:
                raise ValueError(f"version {version} is none of {sorted(_HEADER_READERS)}")
            self.shape, self.fortran, self.dtype = read(file)
        except (ValueError, TypeError, SyntaxError, EOFError) as error:
            raise ZrecordError(f"{name} is not an array in the .npy format: {error}") from None
        if self.dtype.hasobject:
            raise ZrecordError(f"{name} holds Python objects; a store keeps plain bytes only")

    def parts(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the array in parts, split on its first axis."""
        if self.fortran and len(self.shape) > 1:
            yield from self._fortran_parts()
            return
        row = self.shape[1:]
        width = int(np.prod(row, dtype=object)) * self.dtype.itemsize
        count = max(1, _SIZE_MAX // max(1, width))
        for start in range(0, self.shape[0], count):
            rows = min(count, self.shape[0] - start)
            part = self._read(rows * width)
            yield part.view(self.dtype).reshape(rows, *row)

    def whole(self) -> npt.NDArray[Any]:
        """Return the array as one."""
        parts = list(self.parts())
        return np.concatenate(parts) if parts else np.empty(self.shape, self.dtype)

    def record(self) -> npt.NDArray[Any]:
        """Return the array as one record."""
        size = int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize
        if size > RECORD_SIZE_MAX:
            raise ZrecordError(
                f"{self._name} has {size} bytes, one record at most {RECORD_SIZE_MAX}"
            )
        order: Any = "F" if self.fortran else "C"
        items: npt.NDArray[Any] = self._read(size).view(self.dtype)
        return items.reshape(self.shape, order=order)

    def _read(self, size: int) -> npt.NDArray[np.uint8]:
        part = np.empty(size, np.uint8)
        view, done = memoryview(part), 0  # type: ignore[arg-type,unused-ignore]
        while done < size:
            data = self._file.read(min(size - done, _SIZE_MAX))
            if not data:
                raise ZrecordError(f"{self._name} ends too early, {size - done} bytes are missing")
            view[done : done + len(data)] = data
            done += len(data)
        return part

    def _fortran_parts(self) -> Iterator[npt.NDArray[Any]]:
        # The rows of a column-major array are scattered over all of it, and a compressed member
        # cannot be read twice: it goes through a file of its own.
        with tempfile.TemporaryFile() as spool:
            size = int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize
            while size:
                part = self._read(min(size, _SIZE_MAX))
                spool.write(part.data)
                size -= len(part)
            spool.flush()
            array = np.memmap(spool, self.dtype, "r", shape=self.shape, order="F")
            count = max(1, _SIZE_MAX * self.shape[0] // max(1, array.nbytes))
            for start in range(0, self.shape[0], count):
                yield np.array(array[start : start + count], order="C", subok=False)


# ---- import -------------------------------------------------------------------------------------


def import_file(
    source: str, create: Callable[[bool, Any, Any], AnyStore], advance: Advance
) -> AnyStore:
    """Fill a new store from a file.

    Parameters
    ----------
    source : str
        Path of a .npy or .npz file.
    create : callable
        Makes the store, given (dense, dtype, item_shape).
    advance : callable
        Called with the number of bytes that were appended.
    """
    if source.endswith(".npy"):
        with open(source, "rb") as file:
            return _import_array(ArrayFile(file, source), create, advance)
    if not source.endswith(".npz"):
        raise ZrecordError(f"{source} does not end in .npy or .npz")
    try:
        archive = zipfile.ZipFile(source)
    except zipfile.BadZipFile as error:
        raise ZrecordError(f"{source} is not a .npz file: {error}") from None
    with archive:
        names = [info.filename for info in archive.infolist()]
        keys = {name.removesuffix(".npy") for name in names}
        if keys in (_PACKED, _PACKED | _PACKED_SHAPES):
            return _import_packed(archive, keys, create, advance)
        if len(names) == 1:
            with archive.open(names[0]) as member:
                return _import_array(ArrayFile(member, names[0]), create, advance)
        if not names:
            raise ZrecordError(f"{source} holds no array")
        return _import_records(archive, names, create, advance)


def _import_array(array: ArrayFile, create: Any, advance: Advance) -> AnyStore:
    if not array.shape:
        raise ZrecordError("an array without dimensions holds no records")
    store: DenseStore = create(True, array.dtype, array.shape[1:])
    for part in array.parts():
        store.append(part)
        advance(part.nbytes)
    return store


def _import_records(
    archive: zipfile.ZipFile, names: list[str], create: Any, advance: Advance
) -> AnyStore:
    with archive.open(names[0]) as member:
        dtype = ArrayFile(member, names[0]).dtype
    store: RaggedStore = create(False, dtype, None)

    def records() -> Iterator[npt.NDArray[Any]]:
        for name in names:
            with archive.open(name) as member:
                record = ArrayFile(member, name).record()
            yield record
            advance(record.nbytes)

    store.append(records())
    return store


def _import_packed(
    archive: zipfile.ZipFile, keys: set[str], create: Any, advance: Advance
) -> AnyStore:
    def whole(key: str, dtype: Any) -> npt.NDArray[Any]:
        with archive.open(f"{key}.npy") as member:
            array = ArrayFile(member, key).whole()
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ZrecordError(f"{key} of {archive.filename} is no 1-D array of integers")
        return array.astype(dtype)

    offsets = whole("offsets", np.int64)
    shaped = keys >= _PACKED_SHAPES
    ranks = whole("ranks", np.int64) if shaped else np.ones(max(0, len(offsets) - 1), np.int64)
    dims = whole("dims", np.int64) if shaped else np.diff(offsets)
    dims_ends = np.concatenate([[0], np.cumsum(ranks)])
    if len(ranks) != len(offsets) - 1 or dims_ends[-1] != len(dims) or (ranks < 0).any():
        raise ZrecordError(f"offsets, ranks and dims of {archive.filename} do not fit each other")
    with archive.open("values.npy") as member:
        values = ArrayFile(member, "values")
        if len(values.shape) != 1 or len(offsets) == 0 or offsets[0] != 0:
            raise ZrecordError(f"values of {archive.filename} is no 1-D array, or offsets not its")
        if offsets[-1] != values.shape[0] or (np.diff(offsets) <= 0).any():
            raise ZrecordError(f"offsets of {archive.filename} do not grow to the end of values")
        store: RaggedStore = create(False, values.dtype, None)
        first, itemsize = 0, values.dtype.itemsize
        while first < len(ranks):
            reach = offsets[first] + max(1, _SIZE_MAX // itemsize)
            last = max(first + 1, int(np.searchsorted(offsets, reach, "right")) - 1)
            items = int(offsets[last] - offsets[first])
            shapes = [
                tuple(dims[dims_ends[i] : dims_ends[i + 1]].tolist()) for i in range(first, last)
            ]
            part = values._read(items * itemsize).view(values.dtype)
            store.append(RaggedBatch(part, offsets[first : last + 1] - offsets[first], shapes))
            advance(part.nbytes)
            first = last
    return store


# ---- export -------------------------------------------------------------------------------------


def export_file(store: AnyStore, target: str, advance: Advance) -> None:
    """Write a store into a new file, whole or not at all.

    Parameters
    ----------
    store : DenseStore or RaggedStore
        What to write.
    target : str
        Path of a .npy file (dense) or .npz file. It must not exist.
    advance : callable
        Called with the number of records that were written.
    """
    npz = target.endswith(".npz")
    if not npz and not target.endswith(".npy"):
        raise ZrecordError(f"{target} does not end in .npy or .npz")
    if not npz and isinstance(store, RaggedStore):
        raise ZrecordError("a ragged store does not fit into .npy; export it to .npz")
    if not _fits_npy(store.dtype):
        raise ZrecordError(f"the .npy format cannot hold dtype {store.dtype!r}")
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "the file exists already, it is not replaced", target)
    partial = f"{target}.{os.getpid()}.partial"
    try:
        with open(partial, "xb") as file:
            if npz:
                with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                    _write_members(archive, store, advance)
            else:
                _write_dense(file, store, advance)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def _fits_npy(dtype: np.dtype[Any]) -> bool:
    """Tell whether the .npy format gives this dtype back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of what the comparison finds
        restored = npy.descr_to_dtype(npy.dtype_to_descr(dtype))
    latin = all(ord(letter) < 256 for letter in repr(dtype))
    return latin and same_dtype(restored, dtype)


def _write_members(archive: zipfile.ZipFile, store: AnyStore, advance: Advance) -> None:
    if isinstance(store, DenseStore):
        with archive.open("records.npy", "w", force_zip64=True) as member:
            _write_dense(member, store, advance)
        return
    total = sum(int(store.lengths(span).sum()) for span in store._batches(_SIZE_MAX))
    with ExitStack() as spools:
        tables = [
            (name, dtype, spools.enter_context(tempfile.TemporaryFile()))
            for name, dtype in (("offsets", np.int64), ("ranks", np.uint8), ("dims", np.uint64))
        ]
        start, flat = 0, True
        tables[0][2].write(np.zeros(1, np.int64).tobytes())
        with archive.open("values.npy", "w", force_zip64=True) as member:
            _write_header(member, store.dtype, (total,))
            for span in store._batches(_SIZE_MAX):
                batch = store.gather_packed(span)
                ranks, dims = batch._layout()
                flat = flat and batch._all_flat()
                member.write(batch.values.reshape(-1).view(np.uint8).data)
                for (_, dtype, spool), table in zip(
                    tables, (batch.offsets[1:] + start, ranks, dims), strict=True
                ):
                    spool.write(np.ascontiguousarray(table, dtype).tobytes())
                start += len(batch.values)
                advance(len(batch))
        for name, dtype, spool in tables[:1] if flat else tables:
            spool.flush()
            count = spool.tell() // np.dtype(dtype).itemsize
            spool.seek(0)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_header(member, np.dtype(dtype), (count,))
                while data := spool.read(_SIZE_MAX):
                    member.write(data)


def _write_dense(file: IO[bytes], store: Any, advance: Advance) -> None:
    _write_header(file, store.dtype, (len(store), *store.item_shape))
    for span in store._batches(_SIZE_MAX):
        batch = store.gather(span)
        file.write(batch.reshape(-1).view(np.uint8).data)
        advance(len(batch))


def _write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    header: Any = {
        "descr": npy.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    npy.write_array_header_2_0(file, header)  # type: ignore[no-untyped-call,unused-ignore]
