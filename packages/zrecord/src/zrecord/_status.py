"""From a status of the library to an exception: one dictionary, and sentences made of numbers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from ._native import lib
from .errors import (
    CorruptRecord,
    CorruptStore,
    ForkedHandle,
    ReadOnlyStore,
    RecordIndexError,
    StoreBusy,
    StoreChanged,
    StoreClosed,
    StoreFailed,
    UnsupportedFormat,
    ZrecordError,
)

_NO_RECORD = 2**64 - 1
FORMAT_VERSION = 5
KIND_NAMES = {lib.ZR_DENSE: "dense", lib.ZR_RAGGED: "ragged"}
_FILES = {
    lib.ZR_FILE_STORE: "store.zr",
    lib.ZR_FILE_META: "meta.zr",
    lib.ZR_FILE_LOCK: "lock",
    lib.ZR_FILE_READERS_LOCK: "readers.lock",
    lib.ZR_FILE_JOURNAL: "journal.zr",
    lib.ZR_FILE_DICT: "dict.zr",
    lib.ZR_FILE_SEGMENT: "{}.loc",
    lib.ZR_FILE_CHUNK: "{}.chunk",
}


def _file(error: Any, path: str) -> str:
    """Return the path of the file that the error speaks of, or of the store."""
    name = _FILES.get(error.file_kind)
    return path if name is None else os.path.join(path, name.format(error.file_id))


def _offset(error: Any) -> str:
    """Say where in its file a failure lies; the library gives 0 where it does not know."""
    return f" at offset {error.offset}" if error.offset else ""


def record_reason(error: Any) -> str:
    """Say why one record is damaged, for `VerifyReport` and `CorruptRecord` alike."""
    place = _FILES.get(error.file_kind, "the store").format(error.file_id) + _offset(error)
    if error.status == lib.ZR_OS_ERROR:
        return f"{place} cannot be read: {os.strerror(error.os_errno)}"
    if error.expected != error.found:
        return f"{place}: checksum or size {error.found:#x} found, {error.expected:#x} expected"
    return f"{place}: the file is missing, or the record's location or stored form is not valid"


def _index_out_of_range(error: Any, path: str) -> Exception:
    index = error.found - 2**64 if error.found >= 2**63 else error.found
    return RecordIndexError(
        f"index {index} (position {error.record} of the request) is out of range: "
        f"{path} holds {error.expected} records"
    )


def _unsupported(error: Any, path: str) -> Exception:
    if error.found != error.expected and error.found != FORMAT_VERSION:
        what = f"has format version {error.found}, this zrecord reads version {FORMAT_VERSION}"
    else:
        what = "uses features that this zrecord does not know"
    advice = "use a newer zrecord" if error.found >= FORMAT_VERSION else "write it anew"
    return UnsupportedFormat(f"{_file(error, path)} {what}; {advice}")


def _corrupt_store(error: Any, path: str) -> Exception:
    detail = ""
    if error.expected != error.found:
        detail = f", expected {error.expected:#x}, found {error.found:#x}"
    return CorruptStore(
        f"{_file(error, path)} is damaged{_offset(error)}{detail}; restore the store from a copy"
    )


def _corrupt_record(error: Any, path: str) -> Exception:
    index = -1 if error.record == _NO_RECORD else error.record
    return CorruptRecord(f"{path}: record {index} is damaged: {record_reason(error)}", index)


def _os_error(error: Any, path: str) -> Exception:
    # OSError picks the subclass that belongs to the number: FileNotFoundError, PermissionError, ...
    number = error.os_errno or errno.EIO
    return OSError(number, os.strerror(number), _file(error, path))


_FAILURES: dict[int, Callable[[Any, str], Exception]] = {
    lib.ZR_INVALID_ARGUMENT: lambda e, p: ZrecordError(
        f"{p}: the library refused the arguments of this call; please report it"
    ),
    lib.ZR_INDEX_OUT_OF_RANGE: _index_out_of_range,
    lib.ZR_WRONG_KIND: lambda e, p: ValueError(
        f"{p} is a {KIND_NAMES.get(e.found, 'different')} store; open it with the other class"
    ),
    lib.ZR_IDENTITY_MISMATCH: lambda e, p: ValueError(
        f"{p} holds another kind, dtype, item_shape or codec than asked for"
    ),
    lib.ZR_EMPTY_RECORD: lambda e, p: ValueError(
        f"{p}: record {e.record} of the batch has zero bytes, a record needs at least one"
    ),
    lib.ZR_RECORD_TOO_LARGE: lambda e, p: ValueError(
        f"{p}: record {e.record} of the batch has {e.found} bytes, at most {2**31 - 1} fit"
    ),
    lib.ZR_SHAPE_MISMATCH: lambda e, p: ValueError(
        f"{p}: shape and size of record {e.record} of the batch disagree"
    ),
    lib.ZR_TARGET_SIZE: lambda e, p: ValueError(
        f"{p}: the target holds {e.found}, the records need {e.expected}"
    ),
    lib.ZR_BATCH_TOO_LARGE: lambda e, p: ValueError(
        f"{p}: the batch is larger than {2**46} bytes; take fewer records at once"
    ),
    lib.ZR_BAD_DICTIONARY: lambda e, p: ValueError(
        f"{p}: this is no dictionary for codec 'zstd_dict' of at most {2**24} bytes"
    ),
    lib.ZR_TOO_FEW_SAMPLES: lambda e, p: ZrecordError(
        "a dictionary needs more samples, or larger ones"
    ),
    lib.ZR_CLOSED: lambda e, p: StoreClosed(f"{p}: the store is closed; open it again"),
    lib.ZR_READ_ONLY: lambda e, p: ReadOnlyStore(
        errno.EACCES, 'this store is open with mode="r"; open it with mode="a" to write', p
    ),
    lib.ZR_FORKED: lambda e, p: ForkedHandle(
        f"{p}: a forked child only reads through its parent's handle; "
        "to write, close the parent's and open the store in the child"
    ),
    lib.ZR_FAILED: lambda e, p: StoreFailed(
        errno.EIO, "an earlier I/O error ended writing here; close the store and open it anew", p
    ),
    lib.ZR_BUSY_WRITER: lambda e, p: StoreBusy(
        errno.EAGAIN, 'another handle writes to this store; mode="r" shares it for reading', p
    ),
    lib.ZR_BUSY_READERS: lambda e, p: StoreBusy(
        errno.EAGAIN, "other readers have this store open; close them, then try again", p
    ),
    lib.ZR_BUSY_MAINTENANCE: lambda e, p: StoreBusy(
        errno.EAGAIN, "another process deletes, compacts or recovers here; try again later", p
    ),
    lib.ZR_CHANGED: lambda e, p: StoreChanged(
        f"{p}: records were moved or deleted while this reader read; call refresh() and read again"
    ),
    lib.ZR_CANCELLED: lambda e, p: ZrecordError(f"{p}: stopped by the progress callback"),
    lib.ZR_NO_APPEND: lambda e, p: ZrecordError(f"{p}: no append is under way"),
    lib.ZR_NO_STORE: lambda e, p: FileNotFoundError(
        errno.ENOENT, 'no store is there; mode="a" with a dtype creates one', p
    ),
    lib.ZR_STORE_EXISTS: lambda e, p: FileExistsError(
        errno.EEXIST, 'a store is there already; mode="a" opens it', p
    ),
    lib.ZR_FOREIGN: lambda e, p: UnsupportedFormat(
        f"{p} holds something that is not a store; choose an empty folder or a new path"
    ),
    lib.ZR_UNFINISHED: lambda e, p: UnsupportedFormat(
        f"{p} is a store whose creation never ended, it holds no records; "
        "create it again with dtype (and item_shape)"
    ),
    lib.ZR_UNSUPPORTED: _unsupported,
    lib.ZR_CORRUPT_STORE: _corrupt_store,
    lib.ZR_CORRUPT_RECORD: _corrupt_record,
    lib.ZR_OS_ERROR: _os_error,
    lib.ZR_OUT_OF_MEMORY: lambda e, p: MemoryError(f"{p}: not enough memory for this call"),
}


def failure(status: int, error: Any, path: str) -> Exception:
    """Return the exception for a status that is not 0.

    Parameters
    ----------
    status : int
        What the library returned.
    error : cdata ``zr_error *``
        What it filled in.
    path : str
        The store's path, as the user wrote it.
    """
    make = _FAILURES.get(status)
    if make is None:
        return ZrecordError(f"{path}: the library answered with the unknown status {status}")
    return make(error, path)
