"""Streams: what a loader can read from, checked once and then called once a batch.

A stream is anything with ``len``, ``gather(indices, out=None)`` and ``dtype``. One with an
``item_shape`` is dense and gathers a stacked array; one without is ragged and gathers a list of
arrays. `zrecord` stores are streams; a numpy array or memmap becomes one by `ArrayStream`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from loaderx.errors import LoaderxError

SAMPLED_RECORDS = 16
SAMPLED_BYTES = 4096


@runtime_checkable
class Stream(Protocol):
    """The least that a stream has. `item_shape` and the methods named below are optional.

    ``item_shape``
        Shape of a record; absent on a ragged stream.
    ``gather_packed(indices)``
        For ragged streams: the records of a batch in one array; used with ``packed=True``.
    ``fingerprint``
        Lists, strings, numbers and None that identify the contents; saved with the state.
    """

    @property
    def dtype(self) -> Any:
        """The dtype of the records."""
        ...

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def gather(self, indices: Any, out: Any = None) -> Any:
        """Return the records of a 1-D int64 array of indices, in that order."""
        ...


class ArrayStream:
    """A numpy array or memmap as a dense stream; its first axis counts the records.

    The fingerprint holds length, dtype, record shape, and a hash of up to 16 records at even
    distances, at most 4 KiB of each: it touches a few pages of a memmap and never reads it whole.
    Other changes of the contents are not noticed.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = np.asarray(array)
        self.dtype = self._array.dtype
        self.item_shape = self._array.shape[1:]
        # ndarray.take copies the whole source first unless it is contiguous and aligned.
        self._takes = bool(self._array.flags.c_contiguous and self._array.flags.aligned)

    def __len__(self) -> int:
        return len(self._array)

    def gather(self, indices: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the records of `indices`, stacked into a fresh array or into `out`."""
        if self._takes:
            gathered: np.ndarray = self._array.take(indices, axis=0, out=out)
            return gathered
        gathered = self._array[indices]
        if out is None:
            return gathered
        out[...] = gathered
        return out

    @property
    def fingerprint(self) -> list[Any]:
        """Length, dtype, record shape and the hash of a few records."""
        digest = hashlib.blake2b(digest_size=16)
        if not self.dtype.hasobject:  # the bytes of an object array are addresses
            count = min(len(self), SAMPLED_RECORDS)
            for i in range(count):
                record = np.asarray(self._array[i * (len(self) - 1) // max(1, count - 1)])
                items = max(1, SAMPLED_BYTES // max(1, record.itemsize))
                digest.update(record.flat[:items].tobytes())
        return [
            len(self), _dtype_text(self.dtype), [int(n) for n in self.item_shape],
            digest.hexdigest(),
        ]  # fmt: skip


class Source:
    """A named stream of a loader, with what was true of it when the loader was built.

    Attributes
    ----------
    name : str
        The key of its values in a batch.
    length : int
        Records; a stream that has another length later is reported, not read.
    ragged : bool
        Whether it has no `item_shape`.
    fingerprint : list
        Plain values that identify its contents.
    """

    __slots__ = ("_gather", "fingerprint", "label", "length", "name", "packed", "ragged", "stream")

    def __init__(self, name: str, stream: Any, packed: bool) -> None:
        self.name = name
        self.label = f"stream {name!r}"
        self.stream = _as_stream(self.label, stream)
        self.length = len(self.stream)
        self.ragged = not hasattr(self.stream, "item_shape")
        self.packed = packed and self.ragged
        if self.packed and not callable(getattr(self.stream, "gather_packed", None)):
            raise TypeError(
                f"packed=True needs a gather_packed method of every ragged stream; {self.label} "
                f"({type(stream).__name__}) has none"
            )
        # The destination of a batch is chosen here and nowhere else: the stream's fresh arrays.
        self._gather = self.stream.gather_packed if self.packed else self.stream.gather
        self.fingerprint = self._identify()

    def read(self, indices: np.ndarray) -> tuple[Any, int]:
        """Gather the records of one batch.

        Returns
        -------
        values : ndarray, list of ndarray or RaggedBatch
            The records in the order of `indices`.
        nbytes : int
            Their payload in bytes.

        Raises
        ------
        LoaderxError
            If the length of the stream has changed, or it returned another number of records.
        """
        length = len(self.stream)
        if length != self.length:
            raise LoaderxError(
                f"{self.label} has {length} records now and had {self.length} when the DataLoader "
                "was built; build a new DataLoader over the changed stream"
            )
        values = self._gather(indices)
        if len(values) != len(indices):
            raise LoaderxError(
                f"{self.label} returned {len(values)} records for {len(indices)} indices"
            )
        if self.packed:
            return values, values.values.nbytes
        if self.ragged:
            return values, sum([record.nbytes for record in values])
        return values, values.nbytes

    def _identify(self) -> list[Any]:
        given = getattr(self.stream, "fingerprint", None)
        if given is not None:
            plain = _plain(self.label, given)
            return plain if isinstance(plain, list) else [plain]
        shape = None if self.ragged else [int(n) for n in self.stream.item_shape]
        return [self.length, _dtype_text(np.dtype(self.stream.dtype)), shape]

    def difference(self, saved: Any) -> str | None:
        """Say how a saved fingerprint differs from this stream's, or return None."""
        now = self.fingerprint
        if saved == now:
            return None
        if isinstance(saved, list) and len(saved) == len(now):
            differing = [(a, b) for a, b in zip(saved, now, strict=True) if a != b]
            if (
                len(differing) == 1
                and isinstance(differing[0][0], int)
                and differing[0][1] == self.length > differing[0][0]
            ):
                return (
                    f"{self.label} only grew: {differing[0][0]} records when the state was saved, "
                    f"{self.length} now"
                )
        return f"{self.label} is not the same: fingerprint {saved!r} was saved, {now!r} is here"


def open_sources(streams: Any, packed: bool) -> tuple[Source, ...]:
    """Check the `streams` argument of a loader and return its sources in order.

    Raises
    ------
    TypeError
        If it is not a mapping of names to streams.
    ValueError
        If there is no stream, one is empty, or the lengths differ.
    """
    if not isinstance(streams, Mapping):
        raise TypeError(
            "streams must be a dict of name to stream, such as {'x': store}; got "
            f"{type(streams).__name__}"
        )
    if not streams:
        raise ValueError("streams is empty; expected at least one stream, such as {'x': store}")
    for name in streams:
        if not isinstance(name, str):
            raise TypeError(f"streams: names must be str, got {name!r} ({type(name).__name__})")
    sources = tuple(Source(name, stream, packed) for name, stream in streams.items())
    lengths = ", ".join(f"{source.name!r} has {source.length}" for source in sources)
    if len({source.length for source in sources}) > 1:
        raise ValueError(f"streams must have the same number of records: {lengths}")
    if sources[0].length == 0:
        raise ValueError(f"streams have no records: {lengths}; append records first")
    return sources


def _as_stream(label: str, stream: Any) -> Any:
    if isinstance(stream, np.ma.MaskedArray):
        raise TypeError(f"{label} is a masked array, whose mask would be lost; use two streams")
    if isinstance(stream, np.ndarray):
        if stream.ndim == 0:
            raise ValueError(f"{label} is a 0-d array; expected a first axis that counts records")
        return ArrayStream(stream)
    missing = [
        name for name in ("__len__", "gather", "dtype") if getattr(stream, name, None) is None
    ]
    if missing:
        raise TypeError(
            f"{label} is of type {type(stream).__name__}, which has no {' and no '.join(missing)}; "
            "expected a numpy array, a zrecord store, or an object with len, gather and dtype"
        )
    return stream


def _plain(label: str, value: Any) -> Any:
    """Return `value` with lists for tuples and Python numbers, as a JSON file would give back."""
    if isinstance(value, (list, tuple)):
        return [_plain(label, item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(label, item) for key, item in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"the fingerprint of {label} holds a {type(value).__name__}; expected lists, dicts with "
        "string keys, strings, numbers and None"
    )


def _dtype_text(dtype: np.dtype) -> str:
    return str(np.lib.format.dtype_to_descr(dtype))
