"""Zsampler: which records a step takes, as a pure function of (seed, step).

The samples of all ranks lie on one line. A step covers ``batch_size * world_size`` positions of
it, rank after rank; position = (step * world_size + rank) * batch_size + ordinal. An index depends
on the seed, the length and the position alone: seeking is free, threads share nothing, and the
order is the same for any number of workers and, with one global batch, of ranks.

Definition
----------
All randomness is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011), the generator of `numpy.random.Philox`; numpy steps its counter before it draws. 64-bit
words are taken in order, and split into halves the low half first. Wide counters are given low
word first. These tags keep the purposes apart, each eight ASCII characters read as a number:

============  ======================  ================================================
``zs-iid32``  ``0x7a732d6969643332``  iid, length up to 2**32
``zs-iid64``  ``0x7a732d6969643634``  iid, greater length
``zs-alias``  ``0x7a732d616c696173``  iid with weights
``zs-cycle``  ``0x7a732d6379636c65``  cyclic
============  ======================  ================================================

*Sequential*: position mod length.

*Iid*: key (seed, length), counter (block low, attempt, tag, block high). For a length up to 2**32
a block serves eight positions, one 32-bit word each, else four with 64-bit words: block =
position // 8 or 4. The word w of b bits gives the index (w * length) >> b, unless (w * length) mod
2**b < 2**b mod length: then the position draws again with the next attempt (Lemire, "Fast random
integer generation in an interval", 2019). The draw is exactly uniform.

*Iid with weights*: a block serves two positions with two words each. The first word picks a column
as above; the second, if below the column's threshold, keeps the column's number as the index, else
the column's alias is the index. Weights become integers floor(w * 2**(62 - e)), at least 1 if w is
positive, where e is the smallest integer with max(w) < 2**e. Index i brings length times its
integer; a column holds their sum C. Columns below C are filled in ascending order from the first
column above C; when that one falls below C it is filled next. A threshold is floor(own * 2**64 /
C), and a column that is exactly full is its own alias (Walker, 1977; Vose, 1991).

*Cyclic*: with ``remainder="drop"`` a cycle has S = length // global batch steps, the cycle is
step // S and the position in it (step mod S) * global batch + rank * batch_size + ordinal. With
``"wrap"`` they are position // length and position mod length. The position x in the cycle is
permuted: a = ceil(sqrt(length)) rows, b = ceil(length / a) columns; if x < 2 and the swap bit is
set, x becomes 1 - x. Then x = L * b + R, and round t = 0, 2, 4 ... of 24 for a length below 1024,
else of 8, is ::

    L = (L + (F(R, key[t]) * a >> 32)) mod a
    R = (R + (F(L, key[t + 1]) * b >> 32)) mod b

    F(x, (k1, k2)): h = (x ^ k1) * 0x85EBCA6B;  h ^= h >> 16
                    h = (h + k2) * 0xC2B2AE35;  h ^= h >> 15        (all modulo 2**32)

and a result L * b + R that is not below the length goes through the rounds again. Keys are the
words of key (seed, tag), counter (block, cycle low, cycle high, length), block = 0, 1, 2 ...: one
word a key, k1 its low half; the lowest bit of the word after the last key is the swap bit (unused
for length 1). Source: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002.

Threads
-------
`Sampler.at` reads what never changes. The counter of `Sampler.next`, `seek` and `tell`, and the
batches drawn ahead for `next`, change under one lock; a forked child gets a new lock.
"""

from __future__ import annotations

import enum
import hashlib
import operator
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from loaderx import _native
from loaderx._cover import Cover
from loaderx._integer import integer, shown
from loaderx._lock import Lock
from loaderx.errors import StateMismatch

__all__ = ["Sampler"]

Indices = npt.NDArray[np.uint64]

_STATE_VERSION = 1
#: `next` draws up to so many indices ahead: 64 KiB. They stay in the processor's cache, and glibc
#: reuses memory of this size; from 128 KiB on it asks the system for fresh pages, at twice the
#: cost.
_AHEAD_INDICES = 8192


class Sampler:
    """Endless batches of record indices, each a pure function of the seed and its step.

    Parameters
    ----------
    length : int
        Number of records, 1 to 2**63.
    batch_size : int
        Indices in each batch of this rank, 1 to 2**28.
    mode : Sampler.Mode or int or str
        ``"sequential"``: a circular window over all records in order. ``"iid"``: independent
        uniform draws with replacement. ``"cyclic"``: every record once a cycle, in a fresh
        random order each cycle.
    seed : int
        0 to 2**64 - 1. Every seed, 0 included, is a stream of its own.
    rank, world_size : int
        This process's part of each global batch of ``batch_size * world_size`` indices.
        ``rank="auto"`` takes both from the environment variables RANK and WORLD_SIZE (rank 0 of 1
        if neither is set); nothing is read from the environment otherwise.
    remainder : {"drop", "wrap"}
        What cyclic mode does with the records that do not fill a global batch at the end of a
        cycle: leave them out of that cycle, or go on with the next cycle. Other modes ignore it.
    weights : array_like, optional
        Shape (length,): relative frequencies for iid mode. A record of weight zero is never drawn.
        The weights are copied.

    Raises
    ------
    TypeError
        If an argument has the wrong type; a bool is not an integer.
    ValueError
        If an argument is out of range or arguments do not go together.

    Notes
    -----
    All methods may be called from any thread. Pickling and copying keep the position. The module's
    docstring defines every index.

    Examples
    --------
    >>> sampler = Sampler(10, 4, "sequential")
    >>> sampler.next(), sampler.at(2)
    (array([0, 1, 2, 3], dtype=uint64), array([8, 9, 0, 1], dtype=uint64))
    """

    class Mode(enum.IntEnum):
        """How indices follow one another."""

        SEQUENTIAL = 0
        IID = 1
        CYCLIC = 2

    def __init__(
        self,
        length: int,
        batch_size: int,
        mode: Sampler.Mode | int | str = Mode.CYCLIC,
        seed: int = 42,
        *,
        rank: int | str = 0,
        world_size: int = 1,
        remainder: str = "drop",
        weights: npt.ArrayLike | None = None,
    ) -> None:
        self._length = integer("length", length, 1, _native.LENGTH_MAX)
        self._batch_size = integer("batch_size", batch_size, 1, _native.BATCH_SIZE_MAX)
        self._mode = _mode(mode)
        self._seed = integer("seed", seed, 0, _native.SEED_MAX)
        self._rank, self._world_size = _rank(rank, world_size)
        if not isinstance(remainder, str) or remainder not in _native.REMAINDERS:
            raise ValueError(f'remainder must be "drop" or "wrap", got {remainder!r}')
        self._remainder = remainder
        self._weights: npt.NDArray[np.float64] | None = None
        columns = None
        if weights is not None:
            if self._mode is not Sampler.Mode.IID:
                raise ValueError(f'weights need mode "iid", got mode "{self._mode.name.lower()}"')
            self._weights = _weights(weights, self._length)
            columns = _native.alias_table(self._weights)
        if (
            self._mode is Sampler.Mode.CYCLIC
            and remainder == "drop"
            and self._length < self.global_batch
        ):
            raise ValueError(
                f"length {self._length} is smaller than the global batch of {self.global_batch} "
                f"(batch_size {self._batch_size} * world_size {self._world_size}), so "
                'remainder="drop" leaves no batch: use a smaller batch_size or remainder="wrap"'
            )
        self._native = _native.Configuration(
            length=self._length,
            batch_size=self._batch_size,
            mode=self._mode.name.lower(),
            seed=self._seed,
            rank=self._rank,
            world_size=self._world_size,
            remainder=remainder,
            columns=columns,
        )
        self._steps_per_cycle = self._native.steps_per_cycle
        self._weights_hash: str | None = None

        self._lock = Lock()
        self._step = 0  # the step of the next batch
        self._drawn = _NOTHING_DRAWN
        self._ahead_steps = 1  # how many steps to draw when those drawn have run out
        self._ahead_steps_max = max(1, _AHEAD_INDICES // self._batch_size)
        _samplers.add(self)

    @property
    def length(self) -> int:
        """Number of records."""
        return self._length

    @property
    def batch_size(self) -> int:
        """Indices in each batch of this rank."""
        return self._batch_size

    @property
    def mode(self) -> Sampler.Mode:
        """How indices follow one another."""
        return self._mode

    @property
    def seed(self) -> int:
        """The seed."""
        return self._seed

    @property
    def rank(self) -> int:
        """This process's place among the ranks."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world_size

    @property
    def remainder(self) -> str:
        """``"drop"`` or ``"wrap"``."""
        return self._remainder

    @property
    def weights(self) -> npt.NDArray[np.float64] | None:
        """The weights as a read-only array, or None."""
        return self._weights

    @property
    def global_batch(self) -> int:
        """Samples that all ranks together take a step."""
        return self._batch_size * self._world_size

    @property
    def steps_per_cycle(self) -> int:
        """Steps in which every record is due once.

        ``length / global_batch``, rounded down in cyclic mode with ``remainder="drop"`` and up
        otherwise.
        """
        return self._steps_per_cycle

    @property
    def algorithm(self) -> str:
        """Name and version of the function that makes the indices; part of the saved state."""
        if self._mode is Sampler.Mode.SEQUENTIAL:
            return "sequential-1"
        if self._mode is Sampler.Mode.CYCLIC:
            return "cyclic-feistel24-1" if self._length < 1024 else "cyclic-feistel8-1"
        if self._weights is not None:
            return "iid-alias-philox4x64-1"
        return "iid32-philox4x64-1" if self._length <= 2**32 else "iid64-philox4x64-1"

    def at(self, step: int, out: Indices | None = None) -> Indices:
        """Batch of a step, whatever was drawn before.

        Parameters
        ----------
        step : int
            0 to 2**64 - 1.
        out : numpy.ndarray, optional
            uint64, shape (batch_size,), C-contiguous, aligned and writable: receives the indices.

        Returns
        -------
        numpy.ndarray
            uint64, shape (batch_size,): `out`, or a new array.

        Raises
        ------
        TypeError
            If `step` is not an integer, or `out` not an array of uint64.
        ValueError
            If `step` is out of range, or `out` has another shape or layout.
        MemoryError
            If there is no memory for the batch.
        """
        step = integer("step", step, 0, _native.STEP_MAX)
        if out is None:
            out = np.empty(self._batch_size, np.uint64)
        else:
            self._check_out(out)
        self._native.fill(step, 1, out)
        return out

    def next(self, out: Indices | None = None) -> Indices:
        """Batch of the current step; the step then advances by one.

        Threads that share a sampler get each batch exactly once. A new array may be part of a
        greater one; no two batches overlap.

        Parameters
        ----------
        out : numpy.ndarray, optional
            uint64, shape (batch_size,), C-contiguous, aligned and writable: receives the indices.

        Returns
        -------
        numpy.ndarray
            uint64, shape (batch_size,): `out`, or a new array.

        Raises
        ------
        TypeError
            If `out` is not an array of uint64.
        ValueError
            If `out` has another shape or layout, or after step 2**64 - 1: nothing is left then.
        MemoryError
            If there is no memory for the batch.
        """
        with self._lock:
            step = self._step
            first, batches = self._drawn
            if out is not None:
                batch = self.at(step, out)
            elif step - first < len(batches):
                batch = batches[step - first]
            else:
                batch = self._draw(step)
            self._step = step + 1
        return batch

    def _draw(self, step: int) -> Indices:
        """Batch of this step; what comes after it is kept for the calls that follow."""
        if step > _native.STEP_MAX:
            raise ValueError(f"step must be 0 to {_native.STEP_MAX}, got {step}")
        # One batch after a seek, more with each call that finds nothing left.
        count = self._ahead_steps
        if count < self._ahead_steps_max:
            self._ahead_steps = min(2 * count, self._ahead_steps_max)
        if count == 1 or step + count - 1 > _native.STEP_MAX:
            batch = np.empty(self._batch_size, np.uint64)
            self._native.fill(step, 1, batch)
            return batch
        batches = np.empty((count, self._batch_size), np.uint64)
        self._native.fill(step, count, batches)
        self._drawn = (step, batches)
        return cast(Indices, batches[0])

    def __iter__(self) -> Sampler:
        return self

    def __next__(self) -> Indices:
        return self.next()

    def seek(self, step: int) -> None:
        """Make `step` the step of the next batch. The cost is constant.

        Parameters
        ----------
        step : int
            0 to 2**64 - 1.

        Raises
        ------
        TypeError
            If `step` is not an integer.
        ValueError
            If `step` is out of range.
        """
        self._set_step(integer("step", step, 0, _native.STEP_MAX))

    def tell(self) -> int:
        """Step of the next batch.

        Returns
        -------
        int
            0 to 2**64; the last one after every batch was drawn.
        """
        return self._step

    def _set_step(self, step: int) -> None:
        with self._lock:
            # A batch is given out once only: the caller may write into it.
            self._drawn = _NOTHING_DRAWN
            self._ahead_steps = 1
            self._step = step

    def epoch(self) -> Iterator[Indices]:
        """This rank's share of every record once, in ascending order: for evaluation.

        The position of `next`, the mode and `remainder` play no part. Every rank gets the same
        number of batches. Batches have `batch_size` indices but for the last, which divides the
        records that are left among the ranks in order: the sizes differ by at most one, and are
        zero for some if there are fewer records than ranks. Nothing is padded or repeated.

        Yields
        ------
        numpy.ndarray
            uint64, shape (up to batch_size,).
        """
        cover = Cover(self._length, self._batch_size, self._rank, self._world_size)
        for step in range(cover.steps):
            yield cover.indices(step)

    def state_dict(self) -> dict[str, Any]:
        """Position and identity, as a dict that JSON can hold.

        ``position`` counts the samples that all ranks have taken: a state may be loaded with
        another number of ranks if the global batch is the same.

        Returns
        -------
        dict
            ``version``, ``algorithm``, ``mode``, ``seed``, ``length``, ``global_batch``,
            ``remainder``, ``weights`` (a hash, or None) and ``position``.
        """
        return {**self._identity(), "position": self._step * self.global_batch}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continue where a saved state left off.

        Parameters
        ----------
        state : mapping
            From `state_dict`.
        strict : bool
            If False, differences of configuration are accepted: the sampler goes on at the step
            that holds the saved position, which may repeat a part of a global batch.

        Raises
        ------
        StateMismatch
            If the state's format or, with `strict`, its configuration is another; the message
            lists every difference. The sampler is unchanged.
        TypeError, ValueError
            If `state` is not a mapping or its position not a valid number.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be a mapping, got {type(state).__name__}")
        expected = self._identity() if strict else {"version": _STATE_VERSION}
        differences = [
            f"{key}: state has {shown(state[key]) if key in state else 'nothing'}, "
            f"this sampler has {value!r}"
            for key, value in expected.items()
            if key not in state or state[key] != value
        ]
        if "position" not in state:
            differences.append("position: state has nothing")
        if differences:
            raise StateMismatch("state of another sampler: " + "; ".join(differences), differences)
        # One beyond the last step: a sampler that has handed out everything.
        position_max = (_native.STEP_MAX + 1) * self.global_batch
        position = integer("state['position']", state["position"], 0, position_max)
        step, excess = divmod(position, self.global_batch)
        if strict and excess:
            raise ValueError(
                f"state['position'] must be a multiple of the global batch {self.global_batch}, "
                f"got {position}"
            )
        self._set_step(step)

    def _identity(self) -> dict[str, Any]:
        """All but the position that decides the order of samples."""
        if self._weights is not None and self._weights_hash is None:
            little_endian = self._weights.astype("<f8", copy=False)
            self._weights_hash = hashlib.sha256(little_endian.data).hexdigest()
        return {
            "version": _STATE_VERSION,
            "algorithm": self.algorithm,
            "mode": self._mode.name.lower(),
            "seed": self._seed,
            "length": self._length,
            "global_batch": self.global_batch,
            "remainder": self._remainder,
            "weights": self._weights_hash,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = {
            "length": self._length,
            "batch_size": self._batch_size,
            "mode": int(self._mode),
            "seed": self._seed,
            "rank": self._rank,
            "world_size": self._world_size,
            "remainder": self._remainder,
            "weights": self._weights,
        }
        return _restored, (type(self), arguments, self._step)

    def __repr__(self) -> str:
        parts = [
            f"{self._length}, {self._batch_size}, Sampler.Mode.{self._mode.name}, {self._seed}"
        ]
        if self._world_size > 1:
            parts.append(f"rank={self._rank}, world_size={self._world_size}")
        if self._remainder != "drop":
            parts.append(f"remainder={self._remainder!r}")
        if self._weights is not None:
            parts.append(f"weights=<{self._length} weights>")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _check_out(self, out: object) -> None:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be a numpy array, got {type(out).__name__}")
        if out.dtype != np.uint64:
            raise TypeError(f"out must have dtype uint64, got {out.dtype}")
        if out.shape != (self._batch_size,):
            raise ValueError(f"out must have shape ({self._batch_size},), got {out.shape}")
        if not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
            raise ValueError("out must be C-contiguous, aligned and writable")


#: The first step and the batches of a sampler that has drawn nothing ahead.
_NOTHING_DRAWN = (0, np.empty((0, 0), np.uint64))

_samplers: weakref.WeakSet[Sampler] = weakref.WeakSet()


def _renew_locks() -> None:
    """In a forked child: the thread that held a lock may not exist there."""
    for sampler in list(_samplers):
        sampler._lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def _restored(cls: type[Sampler], arguments: dict[str, Any], step: int) -> Sampler:
    sampler = cls(**arguments)
    sampler._set_step(step)
    return sampler


def _mode(mode: Any) -> Sampler.Mode:
    known = ", ".join(f'"{member.name.lower()}" ({member.value})' for member in Sampler.Mode)
    if isinstance(mode, str):
        for member in Sampler.Mode:
            if mode == member.name.lower():
                return member
        raise ValueError(f"mode must be one of {known}, got {mode!r}")
    if isinstance(mode, (bool, np.bool_)) or not hasattr(type(mode), "__index__"):
        raise TypeError(f"mode must be one of {known}, got {type(mode).__name__} {mode!r}")
    try:
        return Sampler.Mode(operator.index(mode))
    except ValueError:
        raise ValueError(f"mode must be one of {known}, got {shown(mode)}") from None


def _rank(rank: int | str, world_size: int) -> tuple[int, int]:
    world_size = integer("world_size", world_size, 1, _native.WORLD_SIZE_MAX)
    if not isinstance(rank, str):
        return integer("rank", rank, 0, world_size - 1), world_size
    if rank != "auto":
        raise ValueError(f'rank must be an integer or "auto", got {rank!r}')
    names = ("RANK", "WORLD_SIZE")
    texts = [os.environ.get(name) for name in names]
    if texts == [None, None]:
        return integer("rank", 0, 0, 0), world_size
    numbers = []
    for name, text in zip(names, texts, strict=True):
        if text is None or not text.strip().isdecimal():
            got = "nothing" if text is None else repr(text)
            raise ValueError(f'rank="auto" needs an integer in {name}, got {got}')
        numbers.append(int(text))
    if world_size not in (1, numbers[1]):
        raise ValueError(f"world_size is {world_size}, but WORLD_SIZE says {numbers[1]}")
    world_size = integer("WORLD_SIZE", numbers[1], 1, _native.WORLD_SIZE_MAX)
    return integer("RANK", numbers[0], 0, world_size - 1), world_size


def _weights(weights: npt.ArrayLike, length: int) -> npt.NDArray[np.float64]:
    given = np.asarray(weights)
    if given.dtype.kind not in "biuf":
        raise TypeError(f"weights must be real numbers, got dtype {given.dtype}")
    if given.shape != (length,):
        raise ValueError(f"weights must have shape ({length},), got {given.shape}")
    if length > _native.WEIGHTS_MAX:
        raise ValueError(f"weights must be at most {_native.WEIGHTS_MAX}, got {length}")
    with np.errstate(over="ignore"):
        numbers = np.array(given, np.float64, order="C")
    wrong = ~((numbers >= 0) & (numbers < np.inf))
    if wrong.any():
        index = int(wrong.argmax())
        raise ValueError(f"weights must be finite and >= 0, got {numbers[index]} at {index}")
    if not numbers.any():
        raise ValueError("weights must not all be zero")
    numbers += 0.0  # a zero has no sign, for the hash
    numbers.flags.writeable = False
    return numbers
