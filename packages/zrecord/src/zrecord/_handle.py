"""One open store in the library: each method is one call, or one commit made of several.

Who may call what, and when, as the header says it:

* gathering, lengths, statistics, refresh and verify run at any time from any thread, together;
* append, sync, delete, compact and close take turns. The turn is a lock with an owner, because the
  iterable given to append and the callbacks of compact and verify are user code: a write of the
  same store from there would wait for itself, so it is refused instead;
* after a fork the child reads and closes; what writes raises `ForkedHandle`.

Progress callbacks are always installed, also where the user gave none: Python delivers Ctrl-C in
them, so that a long scan can be interrupted.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._index import Indices, out_of_range
from ._lock import Lock
from ._native import ffi, lib
from ._status import failure, record_reason
from .errors import StoreChanged, ZrecordError

Progress = Callable[[int, int], "bool | None"]

IDENTITY_SIZE_MAX = 64 * 1024
_PLAN_ATTEMPTS = 16

_from_buffer = ffi.from_buffer
_INT64S = ffi.typeof("int64_t[]")
_UINT64S = ffi.typeof("uint64_t[]")
_UINT8S = ffi.typeof("uint8_t[]")
_U64 = lib.ZR_INDEX_U64
_I64 = lib.ZR_INDEX_I64
_CHANGED = lib.ZR_CHANGED
_dense_gather = lib.zr_dense_gather


class _Scratch(threading.local):
    """What each thread lets the library write into, made once."""

    def __init__(self) -> None:
        self.error = ffi.new("zr_error *")
        self.error.size = ffi.sizeof("zr_error")
        self.count = ffi.new("uint64_t *")


_scratch = _Scratch()
_open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Info(NamedTuple):
    """What the header and the slot of a store say; sizes in bytes."""

    format_version: int
    kind: int
    codec: int
    checksums: int
    record_width: int
    dict_size: int
    epoch: int
    length: int
    uuid: str


class RaggedPart(NamedTuple):
    """Records of a staged append: `source[offsets[i]:offsets[i + 1]]` are the bytes of record i."""

    source: Any
    offsets: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.uint8]
    dims: npt.NDArray[np.uint64]


class Scan(NamedTuple):
    """What `Handle.verify` found; `stopped` if a callback ended it early."""

    records: int
    bytes: int
    table_damaged: bool
    damaged: list[tuple[int, str]]
    stopped: bool


def encode_path(path: str | bytes) -> bytes:
    """Return an absolute path in the form the library takes."""
    encoded = os.path.abspath(os.fsencode(path))
    if b"\0" in encoded:
        raise ValueError(f"a path holds no NUL byte, got {path!r}")
    return encoded


def _info(raw: Any) -> Info:
    return Info(
        format_version=raw.format_version,
        kind=raw.kind,
        codec=raw.codec,
        checksums=raw.checksums,
        record_width=raw.record_width,
        dict_size=raw.dict_size,
        epoch=raw.epoch,
        length=raw.length,
        uuid=bytes(raw.uuid).hex(),
    )


def _new_info() -> Any:
    raw = ffi.new("zr_info *")
    raw.size = ffi.sizeof("zr_info")
    return raw


def peek(location: bytes) -> tuple[int, Info, bytes]:
    """Read header and identity without a lock: (status, info, identity)."""
    raw = _new_info()
    target = bytearray(IDENTITY_SIZE_MAX)
    status = lib.zr_peek(
        location, raw, _from_buffer(target, require_writable=True), len(target), _scratch.error
    )
    if status:
        return status, Info(0, 0, 0, 0, 0, 0, 0, 0, ""), b""
    return 0, _info(raw), bytes(target[: raw.identity_size])


def last_failure(status: int, path: str) -> Exception:
    """Return the exception for the status of this thread's last call."""
    return failure(status, _scratch.error, path)


class Handle:
    """A `zr_store`. Freed with the object; see the module for the rules of calling.

    Parameters
    ----------
    path : str
        As the user wrote it, for messages.
    location : bytes
        Absolute, for the library.
    options : dict
        Fields of ``zr_options``; byte strings are passed with their sizes.
    """

    def __init__(self, path: str, location: bytes, options: dict[str, Any]) -> None:
        self._store: Any = None
        self.path = path
        self.closed = False
        self._forked = False
        self._turn = Lock()
        self._turn_owner: int | None = None
        self._scanning: set[int] = set()
        raw = ffi.new("zr_options *")
        raw.size = ffi.sizeof("zr_options")
        kept = []
        for name, value in options.items():
            if isinstance(value, bytes):
                buffer = _from_buffer(value)
                kept.append(buffer)
                setattr(raw, name, buffer)
                setattr(raw, name + "_size", len(value))
            else:
                setattr(raw, name, value)
        out = ffi.new("zr_store **")
        self.status = lib.zr_store_open(location, raw, out, _scratch.error)
        if self.status == 0:
            self._store = out[0]
            _open_handles.add(self)

    def __del__(
        self,
        _free: Any = lib.zr_store_free,
        _warn: Any = warnings.warn,
        _finalizing: Any = sys.is_finalizing,
    ) -> None:
        # At the end of the process the system takes back files and locks, without delay.
        store, self._store = self._store, None
        if store and not _finalizing() and _free(store):
            _warn(
                f"the store {self.path!r} was dropped without close(); "
                "records appended since the last sync() may not survive a power cut",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def _fail(self, status: int) -> Exception:
        return failure(status, _scratch.error, self.path)

    def after_fork(self) -> None:
        """Drop, in a child process, what belongs to the parent."""
        self._forked = True
        self._turn = Lock()
        self._turn_owner = None
        self._scanning = set()
        lib.zr_store_after_fork(self._store)

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Take this store's turn to write, for one call of this thread."""
        me = threading.get_ident()
        if self._turn_owner == me or me in self._scanning:
            raise ZrecordError(
                f"{self.path}: {what}() was called from inside another call of the same store "
                "in the same thread; finish that call first"
            )
        with self._turn:
            self._turn_owner = me
            try:
                yield
            finally:
                self._turn_owner = None

    # ---- state ---------------------------------------------------------------------------------

    def info(self) -> Info:
        """Return header and state."""
        raw = _new_info()
        status = lib.zr_store_info(self._store, raw)
        if status:
            raise self._fail(status)
        return _info(raw)

    def length(self) -> int:
        """Return the number of records that this handle sees."""
        count = _scratch.count
        status = lib.zr_store_length(self._store, count)
        if status:
            raise self._fail(status)
        return int(count[0])

    def stats(self) -> tuple[int, int, int]:
        """Return (records, live bytes, chunk bytes)."""
        raw = ffi.new("zr_stats *")
        raw.size = ffi.sizeof("zr_stats")
        status = lib.zr_store_stats(self._store, raw)
        if status:
            raise self._fail(status)
        return raw.records, raw.live_bytes, raw.chunk_bytes

    def refresh(self) -> int:
        """See what was committed since; return the new length."""
        count = _scratch.count
        status = lib.zr_store_refresh(self._store, count, _scratch.error)
        if status:
            raise self._fail(status)
        return int(count[0])

    def will_need(self, indices: Indices) -> None:
        """Tell the kernel that these records are read soon."""
        status = lib.zr_store_will_need(
            self._store, _from_buffer(indices), _index_type(indices), len(indices)
        )
        if status:
            raise self._fail(status)

    # ---- reading -------------------------------------------------------------------------------

    def dense_gather(self, indices: Indices, target: npt.NDArray[Any]) -> None:
        """Fill `target` with records in request order."""
        status = _dense_gather(
            self._store,
            _from_buffer(indices),
            _U64 if indices.dtype.kind == "u" else _I64,
            len(indices),
            _from_buffer(target, require_writable=True),
            target.nbytes,
            _scratch.error,
        )
        if status:
            raise self._index_fail(status, indices)

    def ragged_gather(
        self, indices: Indices, allocate: Callable[[int], npt.NDArray[Any]]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.uint64], Any]:
        """Read records back to back.

        `allocate` gives a target for a number of items. Records may move between the plan, which
        says how many those are, and the reading: then both are done again.

        Returns
        -------
        values, offsets, words, high_dims
            The target; n + 1 offsets in items; n shape words; the dimensions of all records of
            rank 3 and more.
        """
        count = len(indices)
        source = _from_buffer(indices)
        index_type = _U64 if indices.dtype.kind == "u" else _I64
        offsets = np.empty(count + 1, np.int64)
        words = np.empty(count, np.uint64)
        offsets_out = _from_buffer(_INT64S, offsets)
        words_out = _from_buffer(_UINT64S, words)
        scratch = _scratch
        error = scratch.error
        dims_count = scratch.count
        for _ in range(_PLAN_ATTEMPTS):
            status = lib.zr_ragged_plan(
                self._store, source, index_type, count, offsets_out, words_out, dims_count, error
            )
            if status:
                raise self._index_fail(status, indices)
            dims = np.empty(dims_count[0], np.uint64)
            values = allocate(int(offsets[count]))
            status = lib.zr_ragged_gather(
                self._store,
                source,
                index_type,
                count,
                offsets_out,
                words_out,
                _from_buffer(values, require_writable=True),
                values.nbytes,
                _from_buffer(_UINT64S, dims),
                len(dims),
                error,
            )
            if not status:
                return values, offsets, words, dims
            if status != _CHANGED:
                raise self._index_fail(status, indices)
        raise StoreChanged(f"{self.path}: records kept moving while they were read; try again")

    def ragged_lengths(self, indices: Indices) -> npt.NDArray[np.int64]:
        """Return the number of items of each of these records."""
        return self._lengths(indices, 0, len(indices))

    def ragged_lengths_between(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return the number of items of `count` records from `first` on."""
        return self._lengths(None, first, count)

    def _lengths(self, indices: Indices | None, first: int, count: int) -> npt.NDArray[np.int64]:
        lengths = np.empty(count, np.int64)
        status = lib.zr_ragged_lengths(
            self._store,
            ffi.NULL if indices is None else _from_buffer(indices),
            _U64 if indices is None else _index_type(indices),
            first,
            count,
            _from_buffer(_INT64S, lengths),
            _scratch.error,
        )
        if status:
            raise self._index_fail(status, indices)
        return lengths

    def _index_fail(self, status: int, indices: Indices | None) -> Exception:
        error = _scratch.error
        if status == lib.ZR_INDEX_OUT_OF_RANGE and indices is not None:
            # The number in `error` does not say whether it was signed; the request does.
            return out_of_range(int(indices[error.record]), error.expected, self.path)
        return failure(status, error, self.path)

    # ---- writing -------------------------------------------------------------------------------

    def append_dense(self, parts: Iterable[tuple[Any, int]]) -> int:
        """Append parts of (buffer, records) as one commit; return the first index."""

        def write(part: tuple[Any, int]) -> int:
            source, count = part
            return int(
                lib.zr_dense_append_part(self._store, _from_buffer(source), count, _scratch.error)
            )

        return self._append(parts, write)

    def append_ragged(self, parts: Iterable[RaggedPart]) -> int:
        """Append parts as one commit; return the first index."""

        def write(part: RaggedPart) -> int:
            return int(
                lib.zr_ragged_append_part(
                    self._store,
                    _from_buffer(part.source),
                    _from_buffer(_UINT64S, part.offsets),
                    _from_buffer(_UINT8S, part.ranks),
                    _from_buffer(_UINT64S, part.dims),
                    len(part.ranks),
                    _scratch.error,
                )
            )

        return self._append(parts, write)

    def _append(self, parts: Iterable[Any], write: Callable[[Any], int]) -> int:
        with self._writing("append"):
            try:
                status = lib.zr_append_begin(self._store, _scratch.error)
                if status:
                    raise self._fail(status)
                # In a call: since CPython 3.12 the jump back of a loop that ends with `if` lies
                # outside of the try around it, and an interrupt there would pass the abort by.
                self._write_parts(parts, write)
                first = _scratch.count
                status = lib.zr_append_commit(self._store, first, _scratch.error)
                if status:
                    raise self._fail(status)
                return int(first[0])
            except BaseException:
                # Also after a begin that failed or a commit that ended: then there is nothing to
                # abort and the library says so. What counts is the exception under way.
                lib.zr_append_abort(self._store, ffi.NULL)
                raise

    def _write_parts(self, parts: Iterable[Any], write: Callable[[Any], int]) -> None:
        for part in parts:
            status = write(part)
            if status:
                raise self._fail(status)

    def sync(self) -> None:
        """Make everything appended so far durable."""
        with self._writing("sync"):
            status = lib.zr_store_sync(self._store, _scratch.error)
            if status:
                raise self._fail(status)

    def delete(self, indices: Indices) -> int:
        """Delete records; return how many."""
        with self._writing("delete"):
            count = _scratch.count
            status = lib.zr_store_delete(
                self._store,
                _from_buffer(indices),
                _index_type(indices),
                len(indices),
                count,
                _scratch.error,
            )
            if status:
                raise self._index_fail(status, indices)
            return int(count[0])

    def compact(self, progress: Progress | None) -> None:
        """Reclaim space, until all is or the callback stops it."""
        with self._writing("compact"):
            report = _Callback(progress)
            status = lib.zr_store_compact(self._store, report.native, ffi.NULL, _scratch.error)
            report.reraise()
            if status and status != lib.ZR_CANCELLED:
                raise self._fail(status)

    def verify(self, progress: Progress | None) -> Scan:
        """Read and check everything."""
        damaged: list[tuple[int, str]] = []

        def add(_context: Any, finding: Any) -> int:
            damaged.append((int(finding.record), record_reason(finding)))
            return 0

        report = _Callback(progress)
        found = ffi.callback("zr_finding", add, error=1, onerror=report.keep)
        raw = ffi.new("zr_verify_report *")
        raw.size = ffi.sizeof("zr_verify_report")
        me = threading.get_ident()
        nested = me in self._scanning
        self._scanning.add(me)
        try:
            status = lib.zr_store_verify(
                self._store, found, report.native, ffi.NULL, raw, _scratch.error
            )
        finally:
            if not nested:
                self._scanning.discard(me)
        report.reraise()
        if status == lib.ZR_CANCELLED:
            return Scan(self.length(), report.done, False, damaged, True)
        if status:
            raise self._fail(status)
        return Scan(raw.records, raw.bytes, bool(raw.table_damaged), damaged, False)

    def close(self) -> None:
        """Make everything durable and let go of files and locks. A second call does nothing."""
        if self.closed:
            return
        with self._writing("close"):
            if self.closed:
                return
            self.closed = True
            status = lib.zr_store_close(self._store, _scratch.error)
            if status:
                raise self._fail(status)


class _Callback:
    """A Python progress callback as a C function that stops the work when Python raises."""

    def __init__(self, progress: Progress | None) -> None:
        self._error: BaseException | None = None
        self.done = 0

        def step(_context: Any, done: int, total: int) -> int:
            self.done = int(done)
            return int(progress is not None and progress(int(done), int(total)) is False)

        self.native = ffi.callback("zr_progress", step, error=1, onerror=self.keep)

    def keep(self, _kind: Any, error: BaseException, _traceback: Any) -> None:
        """Remember what was raised; cffi then answers 1, which ends the work."""
        self._error = error

    def reraise(self) -> None:
        if self._error is not None:
            raise self._error


def _index_type(indices: Indices) -> int:
    return int(_U64 if indices.dtype.kind == "u" else _I64)


def train(samples: Any, sizes: npt.NDArray[np.uint64], capacity: int) -> bytes | None:
    """Train a zstd dictionary of at most `capacity` bytes; None if the samples are too few."""
    target = bytearray(capacity)
    size = _scratch.count
    status = lib.zr_dict_train(
        _from_buffer(samples),
        _from_buffer(_UINT64S, sizes),
        len(sizes),
        _from_buffer(target, require_writable=True),
        capacity,
        size,
        _scratch.error,
    )
    if status == lib.ZR_TOO_FEW_SAMPLES:
        return None
    if status:
        raise failure(status, _scratch.error, "train_dict")
    return bytes(target[: size[0]])


def _after_fork_in_child() -> None:
    for handle in list(_open_handles):
        handle.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
