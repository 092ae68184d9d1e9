"""What can go wrong, as exception classes.

Each class also is the built-in exception that a caller would expect::

    ZrecordError
    ├── StoreBusy           (BlockingIOError)  another handle is in the way
    ├── StoreClosed         (ValueError)       the store was closed
    ├── StoreFailed         (OSError)          an earlier I/O error ended writing
    ├── StoreChanged                           records moved under a reader without lock
    ├── ReadOnlyStore       (PermissionError)  a write through a reading handle
    ├── ForkedHandle                           a write through a parent's handle
    ├── UnsupportedFormat                      not a store, or one of another version
    ├── CorruptStore                           the store's own structure is damaged
    │   └── CorruptRecord                      one record is damaged, ``index`` says which
    └── RecordIndexError    (IndexError)       no such record

Failures of the operating system are plain `OSError` with ``errno`` and ``filename``.
Wrong arguments are `TypeError` and `ValueError`.
"""

from __future__ import annotations

__all__ = [
    "CorruptRecord",
    "CorruptStore",
    "ForkedHandle",
    "ReadOnlyStore",
    "RecordIndexError",
    "StoreBusy",
    "StoreChanged",
    "StoreClosed",
    "StoreFailed",
    "UnsupportedFormat",
    "ZrecordError",
]


class ZrecordError(Exception):
    """The root of all errors that only zrecord raises."""


class StoreBusy(ZrecordError, BlockingIOError):
    """Another handle holds the store in a way that excludes this call."""


class StoreClosed(ZrecordError, ValueError):
    """The store was closed before this call."""


class StoreFailed(ZrecordError, OSError):
    """An earlier I/O error made this handle read-only; open the store anew to write."""


class StoreChanged(ZrecordError):
    """Records were moved or deleted while a reader without lock read them."""


class ReadOnlyStore(ZrecordError, PermissionError):
    """A write through a handle that was opened with ``mode="r"``."""


class ForkedHandle(ZrecordError):
    """A write, in a forked child, through a handle that the parent process opened."""


class UnsupportedFormat(ZrecordError):
    """The folder holds something that this version cannot read."""


class CorruptStore(ZrecordError):
    """The header, the record table or the identity of a store is damaged."""


class CorruptRecord(CorruptStore):
    """A stored record does not have the checksum it was written with.

    Parameters
    ----------
    message : str
        The sentence to show.
    index : int
        The record's index in the store; -1 where it is not known.

    Attributes
    ----------
    index : int
        The record's index in the store; -1 where it is not known.
    """

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


class RecordIndexError(ZrecordError, IndexError):
    """No record has this index, or the index has the wrong number of dimensions."""
