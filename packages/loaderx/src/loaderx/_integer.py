"""An argument that is an integer, of any type that numpy or Python counts by."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


def integer(name: str, value: Any, least: int, greatest: int | None = None) -> int:
    """Return `value` as an int from `least` to `greatest`; an error names the argument."""
    if type(value) is not int:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} must be an integer, got the bool {value}")
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(
                f"{name} must be an integer, got {type(value).__name__} {value!r}"
            ) from None
    if value < least or (greatest is not None and value > greatest):
        expected = f"at least {least}" if greatest is None else f"{least} to {greatest}"
        raise ValueError(f"{name} must be {expected}, got {shown(value)}")
    return int(value)


def shown(value: object) -> str:
    """`value` for a message; a huge integer has no decimal form (sys.set_int_max_str_digits)."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
