"""What dense and ragged stores share: everything but append and gathering."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from ._handle import Progress
from ._identity import same_dtype, unpack
from ._index import Indices, RecordSet, any_set, single
from ._opening import CODEC_NAMES, open_store, request

# One native call appends at most this much, so that memory stays bounded for any input.
PART_SIZE_MAX = 64 * 2**20
# Iteration reads this much at a time. A record that is kept keeps its batch alive.
ITERATION_SIZE = 2**20

_Set = TypeVar("_Set")
_Self = TypeVar("_Self", bound="_Store[Any]")


class VerifyReport(NamedTuple):
    """What `verify` found.

    Attributes
    ----------
    ok : bool
        True if everything was read and nothing is damaged.
    records : int
        How many records the store has.
    bytes : int
        How many bytes were read.
    damaged : list of (int, str)
        Index and reason of each damaged record.
    notes : list of str
        What else there is to say.
    """

    ok: bool
    records: int
    bytes: int
    damaged: list[tuple[int, str]]
    notes: list[str]


class _Store(ABC, Generic[_Set]):
    """An open store; `_Set` is what several records are returned as."""

    _dense: ClassVar[bool]

    def __init__(
        self,
        path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        dtype: Any,
        item_shape: Any,
        codec: str | None,
        dict_bytes: bytes | bytearray | memoryview | None,
        mode: str,
        checksums: str | None,
    ) -> None:
        wanted = request(
            path,
            dense=self._dense,
            dtype=dtype,
            item_shape=item_shape,
            codec=codec,
            dict_bytes=dict_bytes,
            mode=mode,
            checksums=checksums,
        )
        opened = open_store(wanted)
        self._handle = opened.handle
        self._path = wanted.path
        self._location = wanted.location
        self._mode = mode
        self._checksums = checksums
        self._dtype = opened.dtype
        self._item_shape = opened.item_shape
        self._codec = CODEC_NAMES[opened.info.codec]
        self._has_dict = opened.info.dict_size > 0
        self._identity = opened.identity
        self._length = opened.handle.length

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The store's folder, as it was given."""
        return self._path

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of one item."""
        return self._dtype

    @property
    def codec(self) -> str:
        """``"raw"``, ``"zstd"`` or ``"zstd_dict"``."""
        return self._codec

    @property
    def mode(self) -> str:
        """``"a"``, ``"r"`` or ``"x"``, as it was given."""
        return self._mode

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._handle.closed

    @property
    def has_dict(self) -> bool:
        """True if the store compresses with a trained dictionary."""
        return self._has_dict

    @property
    def fingerprint(self) -> list[Any]:
        """What tells this content from another: ``[uuid, epoch, length, identity]``.

        All of it goes through JSON unchanged. The epoch grows with each change that moves records.
        """
        info = self._handle.info()
        return [info.uuid, info.epoch, info.length, unpack(self._identity, self._path)]

    def __len__(self) -> int:
        return self._length()

    def __repr__(self) -> str:
        name = type(self).__name__
        if self.closed:
            return f"<closed {name} {self._path!r}>"
        shape = f", item_shape={self._item_shape}" if self._dense else ""
        dtype = str(self._dtype) if self._dtype.names is None else repr(self._dtype)
        return (
            f"{name}({self._path!r}, dtype={dtype!r}{shape}, "
            f"codec={self._codec!r}, mode={self._mode!r})"
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is not an array: read records with store[:] or store[i]"
        )

    # ---- reading -------------------------------------------------------------------------------

    @abstractmethod
    def gather(self, indices: Any) -> _Set:
        """Return a set of records, in request order."""

    @abstractmethod
    def _read_one(self, index: int) -> npt.NDArray[Any]:
        """Return one record."""

    @abstractmethod
    def _batches(self, size_max: int) -> Iterator[slice]:
        """Yield all records as ranges of at most `size_max` bytes, or of one record."""

    def __getitem__(self, index: Any) -> Any:
        position = index if type(index) is int else single(index)
        return self.gather(index) if position is None else self._read_one(position)

    def __getitems__(self, indices: RecordSet) -> _Set:
        """Return a set of records: `gather` under the name that torch's data loader calls."""
        return self.gather(indices)

    def will_need(self, indices: Any) -> None:
        """Tell the kernel that these records are read soon: a hint, which changes no result.

        Parameters
        ----------
        indices : index
            Every form of ``store[...]``. Indices out of range are ignored.

        Raises
        ------
        TypeError
            If `indices` names no records.
        StoreClosed
            After `close`.
        """
        self._handle.will_need(any_set(indices, self._length, self._path))

    def refresh(self) -> int:
        """See what another process committed since this store was opened or refreshed.

        Returns
        -------
        int
            The number of records now.

        Raises
        ------
        StoreClosed
            After `close`.
        CorruptStore
            If what was committed since cannot be read.
        """
        return self._handle.refresh()

    def stats(self) -> dict[str, int]:
        """Return the number of records and sizes in bytes, without reading any.

        Returns
        -------
        dict
            ``records``; ``live_bytes`` of stored records; ``chunk_bytes`` that the chunk files
            take; ``reclaimable``, what `compact` would give back.

        Raises
        ------
        StoreClosed
            After `close`.
        """
        records, live, chunk = self._handle.stats()
        return {
            "records": records,
            "live_bytes": live,
            "chunk_bytes": chunk,
            "reclaimable": max(0, chunk - live),
        }

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read every record and compare it with its checksum.

        Parameters
        ----------
        progress : callable, optional
            Called with (bytes done, bytes in total) now and then; returning False stops the scan.
            It may read this store, and must not write to it or close it.

        Returns
        -------
        VerifyReport
            With ``ok`` False if anything is damaged or the scan was stopped.

        Raises
        ------
        StoreClosed
            After `close`.
        """
        scan = self._handle.verify(progress)
        notes = []
        if scan.table_damaged:
            notes.append("the record table does not have the digest it was committed with")
        if scan.stopped:
            notes.append(f"stopped by the progress callback after {scan.bytes} bytes")
        ok = not (scan.damaged or notes)
        return VerifyReport(ok, scan.records, scan.bytes, scan.damaged, notes)

    # ---- writing -------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make all records appended so far survive a power cut.

        Raises
        ------
        ReadOnlyStore
            If the store is open with ``mode="r"``.
        OSError
            If the system could not write them; afterwards this handle only reads.
        """
        self._handle.sync()

    def delete(self, idx: Any) -> int:
        """Delete records, atomically and durably.

        From the highest index down, each record is replaced by the last one, which is dropped. So
        the records left are exactly ``0 .. len(store)``, and some have other indices than before.

        Parameters
        ----------
        idx : index
            Every form of ``store[...]``. A duplicate counts once.

        Returns
        -------
        int
            How many records were deleted.

        Raises
        ------
        RecordIndexError
            If an index is out of range; nothing is deleted then.
        ReadOnlyStore
            If the store is open with ``mode="r"``.
        StoreBusy
            If other readers have the store open.
        OSError
            If the system could not write; afterwards this handle may only read.

        Notes
        -----
        An exception that a signal handler raises, such as KeyboardInterrupt, may come when the
        delete is done already: compare ``len(store)`` before trying again.
        """
        indices: Indices = any_set(idx, self._length, self._path)
        return self._handle.delete(indices)

    def compact(self, progress: Progress | None = None) -> None:
        """Give the space of deleted records back to the file system.

        Parameters
        ----------
        progress : callable, optional
            Called with (bytes done, bytes in total) now and then; returning False stops the work.
            What was done until then stays done.

        Raises
        ------
        ReadOnlyStore
            If the store is open with ``mode="r"``.
        StoreBusy
            If there is something to do and other readers have the store open.
        CorruptRecord
            If a record that has to move does not have its checksum. It stays where it is.
        OSError
            If the system could not write; afterwards this handle may only read.
        """
        self._handle.compact(progress)

    def close(self) -> None:
        """Make everything durable and let go of the files. A second call does nothing.

        Raises
        ------
        OSError
            If something could not be made durable. The store is closed all the same.
        """
        self._handle.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- another process -----------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        if self.closed:
            self._length()  # raises StoreClosed
        return _reopen, (type(self), self._location, self._checksums)


def _reopen(kind: Any, location: bytes, checksums: str | None) -> Any:
    """Open a pickled store for reading, where it was."""
    try:
        return kind(os.fsdecode(location), mode="r", checksums=checksums)
    except FileNotFoundError as error:
        message = f"a pickled {kind.__name__} cannot be opened again, its store is gone"
        raise FileNotFoundError(errno.ENOENT, message, os.fsdecode(location)) from error


def fresh(shape: tuple[int, ...] | int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a new array for records to be read into: the one place where results are allocated.

    numpy asks the kernel for huge pages under arrays of 4 MiB and more.
    """
    return np.empty(shape, dtype)


def check_out(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...] | None = None) -> None:
    """Refuse an `out=` that records of `dtype` cannot be read into; no shape is any length."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a numpy array, got {type(out).__name__}")
    if not same_dtype(out.dtype, dtype):
        raise TypeError(f"out has dtype {out.dtype!r}, the store has {dtype!r}")
    if shape is None and out.ndim != 1:
        raise ValueError(f"out has shape {out.shape}, expected one dimension")
    if shape is not None and out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, the records need {shape}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError("out must be C-contiguous and writable")
