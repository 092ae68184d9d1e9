"""The border to libzsampler: the only module of the package that imports cffi.

Buffers are passed by ``ffi.from_buffer``. The library keeps no pointer after a call, and cffi
releases the interpreter's lock during it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx._cffi import ffi

#: Limits of the library (zsampler.h), for messages that name them.
LENGTH_MAX = 2**63
BATCH_SIZE_MAX = 2**28
WORLD_SIZE_MAX = 2**31
SEED_MAX = 2**64 - 1
STEP_MAX = 2**64 - 1
WEIGHTS_MAX = 2**32

MODES = {"sequential": 0, "iid": 1, "cyclic": 2}
REMAINDERS = {"drop": 0, "wrap": 1}
KERNELS = {"best": 0, "baseline": 1}

_ABI_VERSION = 1
_FILE_NAMES = {"win32": "zsampler.dll", "darwin": "libzsampler.1.dylib"}

_STATUS_ERRORS: dict[int, tuple[type[Exception], str]] = {
    1: (TypeError, "a pointer is null"),
    2: (TypeError, "zs_config has another size: reinstall loaderx"),
    3: (ValueError, "unknown kernel"),
    4: (ValueError, "zs_config.reserved is not zero"),
    10: (ValueError, "unknown mode"),
    11: (ValueError, "unknown remainder"),
    12: (ValueError, "length is out of range"),
    13: (ValueError, "batch_size is out of range"),
    14: (ValueError, "rank is out of range"),
    15: (ValueError, "world_size is out of range"),
    16: (ValueError, "weights are negative, not finite, all zero, or not for this mode"),
    20: (ValueError, "length is smaller than batch_size * world_size"),
    21: (ValueError, "the steps pass 2**64 - 1"),
}


def _load() -> Any:
    name = _FILE_NAMES.get(sys.platform, "libzsampler.so.1")
    lib = ffi.dlopen(str(Path(__file__).parent / "_lib" / name))
    if lib.zs_abi_version() != _ABI_VERSION:
        raise ImportError(
            f"libzsampler has interface version {lib.zs_abi_version()}, this package was made "
            f"for {_ABI_VERSION}: reinstall loaderx"
        )
    return lib


_lib = _load()
_from_buffer = ffi.from_buffer
_zs_indices = _lib.zs_indices


def _check(status: int) -> None:
    if status != 0:
        kind, message = _STATUS_ERRORS[status]
        raise kind(message)


def kernel_name() -> str:
    """Name of this processor's kernel: ``"baseline"``, ``"x86-64-v3"`` or ``"x86-64-v4"``."""
    return str(ffi.string(_lib.zs_kernel_name()).decode())


class Configuration:
    """A checked ``zs_config``, with what it points to.

    Parameters are those of `loaderx.Sampler`, already checked, and `columns`, the result of
    `alias_table`. `kernel` is ``"best"`` or ``"baseline"``; both give the same indices.

    Raises
    ------
    ValueError
        If the library refuses a value.
    """

    def __init__(
        self,
        *,
        length: int,
        batch_size: int,
        mode: str,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        remainder: str = "drop",
        columns: npt.NDArray[np.uint64] | None = None,
        kernel: str = "best",
    ) -> None:
        self._columns = columns  # the pointer below does not keep the array alive
        self._config = ffi.new("zs_config *")
        self._config.size = ffi.sizeof("zs_config")
        self._config.length = length
        self._config.batch_size = batch_size
        self._config.rank = rank
        self._config.world_size = world_size
        self._config.seed = seed
        self._config.mode = MODES[mode]
        self._config.remainder = REMAINDERS[remainder]
        self._config.kernel = KERNELS[kernel]
        if columns is not None:
            self._config.columns = ffi.cast("zs_column *", _from_buffer(columns))
        _check(_lib.zs_check(self._config))

    @property
    def steps_per_cycle(self) -> int:
        """Steps in which every record is due once."""
        steps = ffi.new("uint64_t *")
        _check(_lib.zs_steps_per_cycle(self._config, steps))
        return int(steps[0])

    def fill(self, step: int, step_count: int, indices: npt.NDArray[np.uint64]) -> None:
        """Write the batches of `step_count` steps into a contiguous array of just that size."""
        status = _zs_indices(self._config, step, step_count, _from_buffer("uint64_t[]", indices))
        if status != 0:
            _check(status)


def alias_table(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """Alias table of 1-D contiguous weights: an array of (threshold, alias) rows.

    Raises
    ------
    ValueError
        If a weight is negative or not finite, or all are zero.
    """
    columns = np.empty((len(weights), 2), np.uint64)
    scratch = np.empty((len(weights), 2), np.uint64)
    status = _lib.zs_alias_table(
        _from_buffer("double[]", weights),
        len(weights),
        ffi.cast("zs_column *", _from_buffer(scratch)),
        ffi.cast("zs_column *", _from_buffer(columns)),
    )
    _check(status)
    return columns
