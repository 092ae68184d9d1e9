"""The type identity: dtype and record shape as bytes, and back, exactly.

A store keeps msgpack of ``{"dtype": D, "item_shape": [...]}`` (dense) or ``{"dtype": D}`` (ragged).
D describes a dtype in one way only:

* ``"<f4"``, ``"|S5"``, ``"<M8[25us]"``: the type string of numpy, for what is built in;
* ``"<f16:63"``: extended precision, with the bits of its mantissa, because the same size means
  other numbers on other machines;
* ``"bfloat16"``: a type of the package ml_dtypes, by name;
* ``{"names", "formats", "offsets", "itemsize"}``, and ``"aligned": true`` where set: a structure;
* ``[D, [n, ...]]``: a sub-array inside a structure.

What is read from a store is not trusted: size and depth are limited, only these forms are accepted,
and a description must be the very one that its dtype would be given.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgpack  # type: ignore[import-untyped,unused-ignore]
import numpy as np

from ._handle import IDENTITY_SIZE_MAX
from .errors import CorruptStore, UnsupportedFormat

RECORD_SIZE_MAX = 2**31 - 1
_DEPTH_MAX = 16
_SHAPE_RANK_MAX = 31  # numpy before 2.0 ends at 32 dimensions, and a batch adds one
_OBJECT, _LAST_BUILT_IN = 17, 23
_LONGDOUBLE, _CLONGDOUBLE = 13, 16
_STRUCT_KEYS = {"names", "formats", "offsets", "itemsize"}
_SIMPLE = re.compile(r"[|<>][biufcSUVmM][0-9]{1,10}(\[([1-9][0-9]{0,9})?[a-zA-Zμ]{1,2}\])?")
_EXTENDED = re.compile(r"([<>][fc][0-9]{2}):([0-9]{1,3})")

Description = Any


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Return `dtype` as a numpy dtype that a store can hold.

    Raises
    ------
    TypeError
        For objects, strings of variable size, sub-arrays, titles, and types of other packages.
    ValueError
        For a size of zero.
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            return _bfloat16()
        except ImportError:
            raise TypeError("dtype bfloat16 needs the package ml_dtypes; install it") from None
    wanted = np.dtype(dtype)
    if wanted.subdtype is not None:
        base, shape = wanted.subdtype
        raise TypeError(
            f"a sub-array dtype is no record type: use dtype {base} with item_shape {shape}"
        )
    description = describe(wanted)
    if wanted.itemsize == 0:
        raise ValueError(f"dtype {wanted!r} has a size of zero bytes; give it a length")
    if wanted.itemsize > RECORD_SIZE_MAX:
        raise ValueError(f"dtype {wanted!r} has more than {RECORD_SIZE_MAX} bytes")
    return _restore(description, 0)


def as_item_shape(item_shape: Any, dtype: np.dtype[Any] | None) -> tuple[int, ...]:
    """Return the shape of one dense record as a tuple of ints.

    Raises
    ------
    TypeError
        If it is not made of integers.
    ValueError
        If a dimension is less than 1, or the record too large.
    """
    try:
        # An array has an __index__ too, for the case that it holds one number.
        one = hasattr(item_shape, "__index__") and not isinstance(item_shape, np.ndarray)
        dims: tuple[Any, ...] = (item_shape,) if one else tuple(item_shape)
        if any(isinstance(n, (bool, np.bool_)) for n in dims):
            raise TypeError
        shape = tuple(operator.index(n) for n in dims)
    except TypeError:
        raise TypeError(f"item_shape is a tuple of ints, got {item_shape!r}") from None
    if any(n < 1 for n in shape):
        raise ValueError(f"each dimension of item_shape is at least 1, got {shape}")
    if len(shape) > _SHAPE_RANK_MAX:
        raise ValueError(f"item_shape has at most {_SHAPE_RANK_MAX} dimensions, got {len(shape)}")
    width = math.prod(shape) * (1 if dtype is None else dtype.itemsize)
    if width > RECORD_SIZE_MAX:
        raise ValueError(
            f"a record of shape {shape} has {width} bytes, at most {RECORD_SIZE_MAX} fit"
        )
    return shape


def same_dtype(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Tell whether two dtypes mean the same bytes and the same values, byte order included."""
    if a is b:
        return True
    if a.names is None and b.names is None:
        # To numpy a type of another package may look like bare bytes of its size.
        return a == b and (a.kind != "V" or a.type is b.type)
    try:
        return bool(_layout(describe(a)) == _layout(describe(b)))
    except TypeError:
        return False


def encode(dtype: np.dtype[Any], item_shape: tuple[int, ...] | None) -> bytes:
    """Return the identity that a store keeps; `item_shape` is None for a ragged one."""
    identity: dict[str, Any] = {"dtype": describe(dtype)}
    if item_shape is not None:
        identity["item_shape"] = list(item_shape)
    try:
        encoded = bytes(msgpack.packb(identity) or b"")
    except (ValueError, UnicodeError) as error:
        raise TypeError(f"dtype {dtype!r} has a field name that cannot be stored") from error
    if len(encoded) > IDENTITY_SIZE_MAX:
        raise ValueError(
            f"the description of this dtype has {len(encoded)} bytes, "
            f"at most {IDENTITY_SIZE_MAX} fit; use fewer or shorter field names"
        )
    return encoded


def decode(encoded: bytes, dense: bool, path: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and record shape of a stored identity; the shape of a ragged one is ``()``.

    Raises
    ------
    CorruptStore
        If the bytes are not an identity.
    UnsupportedFormat
        If this machine does not have the type.
    """
    identity = unpack(encoded, path)
    keys = {"dtype", "item_shape"} if dense else {"dtype"}
    if not isinstance(identity, dict) or set(identity) != keys:
        raise CorruptStore(f"{path}: the type identity does not consist of {sorted(keys)}")
    try:
        dtype = _restore(identity["dtype"], 0)
        if describe(dtype) != identity["dtype"] or not 0 < dtype.itemsize <= RECORD_SIZE_MAX:
            raise ValueError("not the canonical description of a dtype")
        shape = tuple(_count(n) for n in _list(identity["item_shape"])) if dense else ()
        return dtype, as_item_shape(shape, dtype)
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{path}: {error}") from None
    except (TypeError, ValueError, OverflowError, SyntaxError, MemoryError) as error:
        raise CorruptStore(f"{path}: the type identity is not valid: {error}") from None


def unpack(encoded: bytes, path: str) -> Any:
    """Return the plain objects of a stored identity."""
    try:
        return msgpack.unpackb(encoded, object_pairs_hook=_no_duplicates)
    except Exception as error:  # msgpack raises many classes, all of them mean the same here
        raise CorruptStore(f"{path}: the type identity is not msgpack: {error}") from None


def describe(dtype: np.dtype[Any], depth: int = 0) -> Description:
    """Return the one description of a dtype, see the module."""
    if depth > _DEPTH_MAX:
        raise TypeError(f"a dtype is nested at most {_DEPTH_MAX} deep")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [describe(base, depth + 1), list(shape)]
    if dtype.names is not None:
        return _describe_struct(dtype, depth)
    if dtype.type.__name__ == "bfloat16" and dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        if dtype != _bfloat16():
            raise TypeError("bfloat16 is stored in the machine's byte order only")
        return "bfloat16"
    if dtype.hasobject or dtype.num == _OBJECT:
        raise TypeError(f"dtype {dtype!r} holds Python objects; a store keeps plain bytes only")
    if not 0 <= dtype.num <= _LAST_BUILT_IN:
        raise TypeError(f"dtype {dtype!r} has no fixed size or belongs to another package")
    if dtype.num in (_LONGDOUBLE, _CLONGDOUBLE) and _is_extended(dtype):
        return f"{dtype.str}:{np.finfo(np.longdouble).nmant}"
    return dtype.str


def _describe_struct(dtype: np.dtype[Any], depth: int) -> Description:
    formats, offsets = [], []
    fields: Any = dtype.fields or {}
    for name in dtype.names or ():
        field = fields[name]
        if len(field) > 2:
            raise TypeError(f"field {name!r} has a title; a store keeps names only")
        formats.append(describe(field[0], depth + 1))
        offsets.append(int(field[1]))
    description: dict[str, Any] = {
        "names": list(dtype.names or ()),
        "formats": formats,
        "offsets": offsets,
        "itemsize": dtype.itemsize,
    }
    if dtype.isalignedstruct:
        description["aligned"] = True
    return description


def _is_extended(dtype: np.dtype[Any]) -> bool:
    """Tell a long double that is more than a double; where it is not, it is stored as one."""
    return dtype.itemsize > (8 if dtype.num == _LONGDOUBLE else 16)


def _layout(description: Description) -> Description:
    """Return a description without the flags that say how the layout came about."""
    if isinstance(description, dict):
        plain = {k: v for k, v in description.items() if k != "aligned"}
        plain["formats"] = [_layout(d) for d in description["formats"]]
        return plain
    if isinstance(description, list):
        return [_layout(description[0]), description[1]]
    return description


def _restore(description: Description, depth: int) -> np.dtype[Any]:
    if depth > _DEPTH_MAX:
        raise ValueError(f"nested more than {_DEPTH_MAX} deep")
    if isinstance(description, str):
        return _restore_name(description)
    if isinstance(description, list):
        if len(description) != 2 or depth == 0:
            raise ValueError("a sub-array is a pair inside a structure")
        base = _restore(description[0], depth + 1)
        shape = tuple(_count(n) for n in _list(description[1]))
        if math.prod(shape) * base.itemsize > RECORD_SIZE_MAX:
            raise ValueError("a sub-array is too large")
        return np.dtype((base, shape))
    if isinstance(description, dict):
        return _restore_struct(description, depth)
    raise ValueError(f"a dtype is not described by a {type(description).__name__}")


def _restore_struct(description: Mapping[str, Any], depth: int) -> np.dtype[Any]:
    aligned = description.get("aligned", False)
    keys = _STRUCT_KEYS | ({"aligned"} if aligned is True else set())
    if set(description) != keys:
        raise ValueError("a structure has names, formats, offsets and itemsize")
    names = _list(description["names"])
    if not all(isinstance(name, str) for name in names):
        raise ValueError("field names are strings")
    itemsize = _count(description["itemsize"])
    if itemsize > RECORD_SIZE_MAX:
        raise ValueError("a structure is too large")
    return np.dtype(
        {
            "names": names,
            "formats": [_restore(d, depth + 1) for d in _list(description["formats"])],
            "offsets": [_count(n) for n in _list(description["offsets"])],
            "itemsize": itemsize,
        },
        align=aligned is True,
    )


def _restore_name(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        try:
            return _bfloat16()
        except ImportError:
            raise UnsupportedFormat(
                "the dtype is bfloat16, which needs the package ml_dtypes; install it"
            ) from None
    extended = _EXTENDED.fullmatch(name)
    if extended is not None:
        mantissa = np.finfo(np.longdouble).nmant
        if int(extended[2]) != mantissa:
            raise UnsupportedFormat(
                f"the dtype is a long double with {extended[2]} bits of mantissa, "
                f"this machine's has {mantissa}; read the store where it was written"
            )
        return np.dtype(extended[1])
    if not _SIMPLE.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not a type")
    return np.dtype(name)


def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes  # type: ignore[import-not-found,import-untyped,unused-ignore]

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a size is a number of at least 0")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    return value


def _no_duplicates(given: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    pairs = list(given)  # the oldest msgpack hands over a generator
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key stands twice")
    return mapping
