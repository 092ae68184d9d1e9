"""Dictionaries for codec ``"zstd_dict"``: what records share, learned from a sample of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._dense import DenseStore
from ._handle import train
from ._ragged import RaggedStore
from .errors import ZrecordError

__all__ = ["DICT_TIERS", "train_dict"]

# The rest of a larger record says little more to a dictionary.
_SAMPLE_SIZE_MAX = 128 * 1024
_PROBE_COUNT = 2**16
_BATCH_SIZE = 4 * 2**20


class _Tier(NamedTuple):
    dict_bytes: int
    sample_bytes: int


DICT_TIERS: dict[str, _Tier] = {
    "fast": _Tier(32 * 2**10, 4 * 2**20),
    "balanced": _Tier(128 * 2**10, 16 * 2**20),
    "max": _Tier(2**20, 64 * 2**20),
}
"""For each tier the size of the dictionary and of the sample it is trained on, in bytes."""


def train_dict(
    source: Any,
    tier: str = "balanced",
    path: str | os.PathLike[str] | None = None,
) -> bytes:
    """Train a zstd dictionary on records.

    Parameters
    ----------
    source : ndarray, store, or iterable of ndarray or bytes
        Where records come from. Of an array (split on its first axis), a list or a store, samples
        are taken evenly; of another iterable the first ones, until there are enough.
    tier : {"fast", "balanced", "max"}
        Size of dictionary and sample, see `DICT_TIERS`. A larger dictionary compresses better and
        reads slower.
    path : path-like, optional
        Where to write the dictionary as well.

    Returns
    -------
    bytes
        For ``dict_bytes`` of a new store with codec ``"zstd_dict"``.

    Raises
    ------
    ZrecordError
        If there are too few samples, or too small ones.
    TypeError
        If `source` does not consist of arrays or bytes.
    ValueError
        If there is no such tier.
    OSError
        If `path` cannot be written.

    Notes
    -----
    The training is zstd's own, ``ZDICT_trainFromBuffer``: fastCover over the samples.

    Examples
    --------
    >>> from zrecord import train_dict
    >>> words = [b"record %d of a store, like all the others" % n for n in range(2000)]
    >>> len(train_dict(words, tier="fast")) <= 32 * 1024
    True
    """
    if not isinstance(tier, str) or tier not in DICT_TIERS:
        raise ValueError(f"tier is {', '.join(map(repr, DICT_TIERS))}, got {tier!r}")
    wanted = DICT_TIERS[tier]
    samples = bytearray()
    sizes: list[int] = []
    for sample in _samples(source, wanted.sample_bytes):
        if not len(sample):
            continue
        samples.extend(sample)
        sizes.append(len(sample))
        if len(samples) >= wanted.sample_bytes:
            break
    trained = train(samples, np.array(sizes, np.uint64), wanted.dict_bytes) if sizes else None
    if trained is None:
        mean = len(samples) // max(1, len(sizes))
        raise ZrecordError(
            f"a dictionary of {wanted.dict_bytes} bytes cannot be trained on {len(sizes)} samples "
            f"of {mean} bytes on average: give more records, larger ones, or a smaller tier"
        )
    if path is not None:
        Path(path).write_bytes(trained)
    return trained


def _samples(source: Any, budget: int) -> Iterator[Any]:
    """Yield the beginnings of records as bytes-like objects."""
    if isinstance(source, (DenseStore, RaggedStore)):
        return _of_store(source, budget)
    if isinstance(source, np.ndarray):
        if source.ndim == 0 or source.dtype.hasobject:
            raise TypeError(
                f"a dictionary is trained on several records of plain bytes, got an array of "
                f"dtype {source.dtype} and shape {source.shape}"
            )
        width = max(1, source[:1].nbytes)
        return (_bytes(source[i], i) for i in _evenly(len(source), width, budget))
    if isinstance(source, (bytes, bytearray, memoryview, str)):
        raise TypeError(f"{type(source).__name__} is one record: wrap it in a list")
    if isinstance(source, (list, tuple)):
        probe = source[:: max(1, len(source) // 256)]
        width = sum(len(_bytes(item, 0)) for item in probe) // max(1, len(probe))
        return (_bytes(source[i], i) for i in _evenly(len(source), width, budget))
    if not isinstance(source, Iterable):
        raise TypeError(
            f"a dictionary is trained on an array, a store or an iterable of records, "
            f"got {type(source).__name__}"
        )
    return (_bytes(item, position) for position, item in enumerate(source))


def _of_store(store: DenseStore | RaggedStore, budget: int) -> Iterator[Any]:
    if isinstance(store, DenseStore):
        width = store._width
    else:
        probe = np.linspace(0, len(store), min(len(store), _PROBE_COUNT), False).astype(np.int64)
        width = int(store.lengths(probe).mean()) * store.dtype.itemsize if len(probe) else 1
    wanted = np.fromiter(_evenly(len(store), width, budget), np.int64)
    count = max(1, min(256, _BATCH_SIZE // width))
    for start in range(0, len(wanted), count):
        indices = wanted[start : start + count]
        yield from map(_bytes, store.gather(indices), indices)


def _evenly(count: int, width: int, budget: int) -> Iterable[int]:
    """Return indices over the whole range whose records fill the budget."""
    wanted = min(count, budget // min(max(1, width), _SAMPLE_SIZE_MAX) + 1)
    return (i * count // wanted for i in range(wanted))


def _bytes(record: Any, position: int) -> Any:
    if isinstance(record, np.generic):
        record = np.asarray(record)
    if isinstance(record, np.ndarray):
        if record.dtype.hasobject:
            raise TypeError(f"record {position} holds Python objects")
        flat: npt.NDArray[Any] = np.ascontiguousarray(record).reshape(-1).view(np.uint8)
        return flat[:_SAMPLE_SIZE_MAX]
    if isinstance(record, (bytes, bytearray, memoryview)):
        return memoryview(record).cast("B")[:_SAMPLE_SIZE_MAX]
    raise TypeError(f"record {position} is {type(record).__name__}, expected an array or bytes")
