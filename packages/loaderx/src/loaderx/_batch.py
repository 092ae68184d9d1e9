"""One batch: step -> indices -> one gather a stream -> transform.

A course says which indices a step has; `Assembly` makes the batch. Both are pure in the step, so
any thread may make any batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from loaderx._cover import Cover
from loaderx._prefetch import Made, Progress
from loaderx._stream import Source
from loaderx.zsampler import Sampler

NOTE = "loaderx: "
NOTED_INDICES = 8

# Second key word of the random generator: one a purpose, so that no two share a stream of numbers.
TAG_STREAM = 0x6C6F616465720001
TAG_ONCE = 0x6C6F616465720002


class StepInfo:
    """What a transform with a parameter named ``info`` learns about its step.

    Attributes
    ----------
    step : int
        The step of the batch; in `DataLoader.once`, its number in the pass.
    indices : ndarray of int64
        The store indices of the batch, in its order.
    rng : numpy.random.Generator
        Philox keyed by the seed and the global position of the batch's first record: the same
        numbers for any number of workers and after a resume, others for each step and rank.
    """

    __slots__ = ("_key", "_rng", "indices", "step")

    def __init__(self, step: int, indices: np.ndarray, key: tuple[int, int, int]) -> None:
        self.step = step
        self.indices = indices
        self._key = key
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """The random generator of this batch, made when it is first asked for."""
        if self._rng is None:
            seed, tag, position = self._key
            # The low half of the counter is left to the draws: 2**128 blocks a batch.
            counter = [0, 0, position & (2**64 - 1), position >> 64]
            self._rng = np.random.Generator(
                np.random.Philox(
                    key=np.array([seed, tag], np.uint64), counter=np.array(counter, np.uint64)
                )
            )
        return self._rng


class Endless:
    """The stream of steps without end that a sampler defines."""

    def __init__(self, sampler: Any, length: int) -> None:
        self._at = sampler.at
        # Another object than our Sampler is not trusted: a negative index would wrap silently.
        self._check_below = None if type(sampler) is Sampler else length
        self._rank_batch = getattr(sampler, "batch_size", 1)
        self._global_batch = self._rank_batch * getattr(sampler, "world_size", 1)
        self._offset = self._rank_batch * getattr(sampler, "rank", 0)

    def indices(self, step: int) -> np.ndarray:
        indices: np.ndarray = self._at(step)
        if self._check_below is not None:
            indices = np.array(indices)  # a copy: it may be a buffer that is used again
            if indices.ndim != 1 or indices.dtype.kind not in "iu":
                raise TypeError(
                    f"sampler.at({step}) returned {indices.ndim}-D {indices.dtype}; expected a "
                    "1-D integer array"
                )
            outside = indices[(indices < 0) | (indices >= self._check_below)]
            if len(outside):
                raise IndexError(
                    f"sampler.at({step}) returned index {outside[0]}; expected 0 to "
                    f"{self._check_below - 1}"
                )
            indices = indices.astype(np.uint64)
        return indices

    def position(self, step: int) -> int:
        """Return the global position of the first record of the step."""
        return step * self._global_batch + self._offset


class Assembly:
    """Makes the batch of a step; called by any thread, and holds nothing of the loader."""

    def __init__(
        self,
        sources: tuple[Source, ...],
        subset: np.ndarray | None,
        with_index: str | None,
        transform: Callable[..., Any] | None,
        seed: int,
    ) -> None:
        self._sources = sources
        self._subset = subset
        self._with_index = with_index
        self._transform = transform
        self._seed = seed
        self._wants_info = transform is not None and _has_info(transform)
        self._transform_label = f"transform {_name_of(transform)}"

    def __call__(self, course: Endless | Cover, step: int, progress: Progress) -> Made:
        progress.step = step
        progress.stage = "sampler"
        indices: np.ndarray | None = None
        started = perf_counter()
        try:
            # Indices are below 2**63, so the same bytes are right as int64.
            indices = course.indices(step).view(np.int64)
            if self._subset is not None:
                indices = self._subset.take(indices)
            batch: Any = {}
            nbytes = 0
            for source in self._sources:
                progress.stage = source.label
                batch[source.name], size = source.read(indices)
                nbytes += size
            if self._with_index is not None:
                batch[self._with_index] = indices
            gathered = perf_counter()
            if self._transform is None:
                return batch, len(indices), nbytes, gathered - started, 0.0
            progress.stage = self._transform_label
            if self._wants_info:
                tag = TAG_ONCE if isinstance(course, Cover) else TAG_STREAM
                key = (self._seed, tag, course.position(step))
                batch = self._transform(batch, info=StepInfo(step, indices, key))
            else:
                batch = self._transform(batch)
            return batch, len(indices), nbytes, gathered - started, perf_counter() - gathered
        except (StopIteration, GeneratorExit) as error:
            # Out of next() either would end a loop in silence.
            ended = RuntimeError(f"{progress.stage} raised {type(error).__name__} at step {step}")
            _note(ended, progress.stage, step, indices)
            raise ended from error
        except BaseException as error:
            _note(error, progress.stage, step, indices)
            raise


def _has_info(transform: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(transform).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False
    info = parameters.get("info")
    return info is not None and info.kind in (info.POSITIONAL_OR_KEYWORD, info.KEYWORD_ONLY)


def _name_of(transform: Any) -> str:
    name = getattr(transform, "__qualname__", None)
    return name if isinstance(name, str) else type(transform).__qualname__


def _note(error: BaseException, stage: str, step: int, indices: np.ndarray | None) -> None:
    """Set the note of a step on an exception, in place of one from an earlier step."""
    note = f"{NOTE}step {step}, {stage}"
    if indices is not None:
        first = ", ".join(str(i) for i in indices[:NOTED_INDICES])
        more = ", ..." if len(indices) > NOTED_INDICES else ""
        note += f", indices [{first}{more}]"
    try:
        notes = [n for n in getattr(error, "__notes__", []) if not str(n).startswith(NOTE)]
        setattr(error, "__notes__", [*notes, note])  # noqa: B010 - not declared for Python 3.10
    except Exception:
        pass  # an exception that takes no attribute goes on without a note
