"""From the arguments of a constructor to an open handle.

What is there is looked at first, without a lock; what was asked for is compared with it; only then
is the store opened or created. The library compares once more while it opens, so that a store which
came into being in between is noticed and looked at again.
"""

from __future__ import annotations

import errno
import math
import os
from typing import Any, NamedTuple

import numpy as np

from ._handle import Handle, Info, encode_path, last_failure, peek
from ._identity import as_dtype, as_item_shape, decode, encode, same_dtype
from ._native import lib
from ._status import KIND_NAMES
from .errors import CorruptStore

CODECS = {"raw": lib.ZR_RAW, "zstd": lib.ZR_ZSTD, "zstd_dict": lib.ZR_ZSTD_DICT}
CODEC_NAMES = {number: name for name, number in CODECS.items()}
_CHECKSUMS = {
    None: lib.ZR_CHECK_DEFAULT,
    "always": lib.ZR_CHECK_ALWAYS,
    "once": lib.ZR_CHECK_ONCE,
    "off": lib.ZR_CHECK_OFF,
}
_MODES = {"r": lib.ZR_MODE_READ, "a": lib.ZR_MODE_WRITE, "x": lib.ZR_MODE_CREATE}
_DICT_SIZE_MAX = 2**24
_ATTEMPTS = 3


class Request(NamedTuple):
    """What the user asked for, checked as far as that is possible without looking at the disk."""

    path: str
    location: bytes
    dense: bool
    dtype: np.dtype[Any] | None
    item_shape: tuple[int, ...] | None
    codec: str | None
    dict_bytes: bytes | None
    mode: str
    checksums: str | None

    @property
    def kind(self) -> int:
        """The kind of store as the library numbers it."""
        return int(lib.ZR_DENSE if self.dense else lib.ZR_RAGGED)


class Opened(NamedTuple):
    """An open store and its type."""

    handle: Handle
    info: Info
    identity: bytes
    dtype: np.dtype[Any]
    item_shape: tuple[int, ...]


def request(
    path: Any,
    *,
    dense: bool,
    dtype: Any,
    item_shape: Any,
    codec: Any,
    dict_bytes: Any,
    mode: Any,
    checksums: Any,
) -> Request:
    """Check the arguments of a constructor."""
    plain = os.fspath(path)
    shown = os.fsdecode(plain) if isinstance(plain, bytes) else plain
    location = encode_path(plain)
    _choice("mode", mode, _MODES)
    _choice("checksums", checksums, _CHECKSUMS)
    if codec is not None:
        _choice("codec", codec, CODECS)
    dictionary = None
    if dict_bytes is not None:
        try:
            dictionary = bytes(memoryview(dict_bytes))
        except TypeError:
            raise TypeError(
                f"dict_bytes are the bytes of train_dict(), got {type(dict_bytes).__name__}"
            ) from None
        if not 0 < len(dictionary) <= _DICT_SIZE_MAX:
            raise ValueError(f"a dictionary has 1 to {_DICT_SIZE_MAX} bytes, got {len(dictionary)}")
    type_ = None if dtype is None else as_dtype(dtype)
    shape = None if item_shape is None else as_item_shape(item_shape, type_)
    return Request(shown, location, dense, type_, shape, codec, dictionary, mode, checksums)


def open_store(wanted: Request) -> Opened:
    """Open or create the store that was asked for."""
    for attempt in range(_ATTEMPTS):
        found = _look(wanted)
        if found is None:
            options = _creation(wanted)
            identity = options["identity"]
        else:
            info, identity = found
            _compare(wanted, info, identity)
            options = {
                "kind": info.kind,
                "codec": info.codec,
                "record_width": info.record_width,
                "identity": identity,
            }
        options["mode"] = _MODES[wanted.mode]
        options["checksums"] = _CHECKSUMS[wanted.checksums]
        options["no_mapping"] = int(os.environ.get("ZRECORD_MMAP") == "0")
        handle = Handle(wanted.path, wanted.location, options)
        if handle.status == 0:
            dtype, shape = decode(identity, wanted.dense, wanted.path)
            return Opened(handle, handle.info(), identity, dtype, shape)
        raced = handle.status in (lib.ZR_IDENTITY_MISMATCH, lib.ZR_WRONG_KIND, lib.ZR_STORE_EXISTS)
        if not raced or attempt == _ATTEMPTS - 1:
            raise last_failure(handle.status, wanted.path)
    raise AssertionError("the loop above ends by return or raise")


def stored_kind(path: Any) -> str:
    """Return ``"dense"`` or ``"ragged"``, without opening the store."""
    wanted = os.fsdecode(os.fspath(path))
    status, info, _ = peek(encode_path(wanted))
    if status:
        raise last_failure(status, wanted)
    return KIND_NAMES[info.kind]


def _choice(name: str, value: Any, choices: dict[Any, int]) -> None:
    if not isinstance(value, (str, type(None))):
        raise TypeError(f"{name} is a string, got {type(value).__name__}")
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices if choice is not None)
        raise ValueError(f"{name} is {known}, got {value!r}")


def _look(wanted: Request) -> tuple[Info, bytes] | None:
    """Return what is there, None where a store may be created, or raise."""
    status, info, identity = peek(wanted.location)
    if wanted.mode == "x" and status in (0, lib.ZR_FOREIGN):
        what = "a store is" if status == 0 else "something else is"
        raise FileExistsError(
            errno.EEXIST, f'{what} there already, mode="x" must create', wanted.path
        )
    if status == 0:
        return info, identity
    creatable = status in (lib.ZR_NO_STORE, lib.ZR_UNFINISHED)
    if not creatable or wanted.mode == "r":
        raise last_failure(status, wanted.path)
    if wanted.mode == "a" and wanted.dtype is None and wanted.item_shape is None:
        raise last_failure(status, wanted.path)
    return None


def _creation(wanted: Request) -> dict[str, Any]:
    """Return the options that create what was asked for."""
    if wanted.dtype is None:
        raise TypeError(f"{wanted.path} does not exist yet: creating it needs a dtype")
    if wanted.dense and wanted.item_shape is None:
        raise TypeError(
            f"{wanted.path} does not exist yet: creating a dense store needs an item_shape; "
            "() is the shape of one number"
        )
    codec = wanted.codec or "zstd"
    options: dict[str, Any] = {}
    if codec == "zstd_dict":
        if wanted.dict_bytes is None:
            raise ValueError("codec 'zstd_dict' needs dict_bytes; train_dict() makes them")
        options["dict"] = wanted.dict_bytes
    elif wanted.dict_bytes is not None:
        raise ValueError(f"dict_bytes belong to codec 'zstd_dict', the codec is {codec!r}")
    options["kind"] = wanted.kind
    options["codec"] = CODECS[codec]
    options["record_width"] = math.prod(wanted.item_shape or ()) * wanted.dtype.itemsize
    options["identity"] = encode(wanted.dtype, wanted.item_shape if wanted.dense else None)
    return options


def _compare(wanted: Request, info: Info, identity: bytes) -> None:
    """Raise `ValueError` where the store differs from what was asked for."""
    path = wanted.path
    if info.kind != wanted.kind:
        raise ValueError(
            f"{path} is a {KIND_NAMES.get(info.kind)} store, "
            f"asked for a {KIND_NAMES[wanted.kind]} one"
        )
    dtype, shape = decode(identity, wanted.dense, path)
    width = math.prod(shape) * dtype.itemsize
    if info.record_width != width:
        raise CorruptStore(
            f"{path}: the header counts {info.record_width} bytes, the type identity {width}"
        )
    if wanted.dtype is not None and not same_dtype(dtype, wanted.dtype):
        raise ValueError(f"{path} has dtype {dtype!r}, asked for {wanted.dtype!r}")
    if wanted.item_shape is not None and shape != wanted.item_shape:
        raise ValueError(f"{path} has item_shape {shape}, asked for {wanted.item_shape}")
    if wanted.codec is not None and CODECS[wanted.codec] != info.codec:
        raise ValueError(
            f"{path} has codec {CODEC_NAMES.get(info.codec)!r}, asked for {wanted.codec!r}; "
            "`zrecord copy` makes a store with another codec"
        )
    if wanted.dict_bytes is not None:
        raise ValueError(f"{path} exists already, dict_bytes are given at creation only")
