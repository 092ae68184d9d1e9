"""The loader: step -> indices -> one gather a stream -> transform -> ordered hand-over.

It checks its arguments, keeps the position, and saves and loads it. Making one batch is _batch's
part; threads, order and errors are the ring's (_prefetch).
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from loaderx._batch import Assembly, Endless, StepInfo
from loaderx._cover import Cover
from loaderx._integer import integer
from loaderx._prefetch import Answer, Failure, Ring, Run
from loaderx._stream import open_sources
from loaderx.errors import LoaderClosed, LoaderxError, StateMismatch
from loaderx.zsampler import Sampler

__all__ = ["DataLoader", "StepInfo"]

STATE_VERSION = 1
STEP_LIMIT = 2**63
PREFETCH_LIMIT = 2**16


class _Take:
    """The next `count` batches of a loader, each time it is iterated."""

    def __init__(self, loader: DataLoader, count: int) -> None:
        self._loader = loader
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._count):
            yield next(self._loader)

    def __repr__(self) -> str:
        return f"{self._loader!r}.take({self._count})"


class _Once:
    """The iterator of one finite pass; ended by `next(loader)`, a seek or another pass."""

    def __init__(self, loader: DataLoader, run: Run) -> None:
        self._loader: DataLoader | None = loader
        self._run = run

    def __iter__(self) -> _Once:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        hand: list[Any] = []
        try:
            outcome = loader._ring.take(self._run, hand)
            if hand:
                return hand[1][0]
            if outcome is Answer.END:
                self._loader = None
                loader._resume_stream(self._run)
                raise StopIteration
            if type(outcome) is Failure:
                raise outcome.error.with_traceback(outcome.traceback)
            raise LoaderxError(
                "this pass of once() was ended by next(), seek(), load_state_dict() or another "
                "once() of the same DataLoader"
            )
        except BaseException:
            loader._ring.give_back(self._run, hand)
            raise


class DataLoader:
    """An endless, ordered and exactly resumable stream of batches.

    Batch k of ``next`` is step ``start_step + k``, whatever the number of workers, the prefetch
    depth or the timing. Batches are dicts of stream name to values: a stacked array of a dense
    stream, a list of arrays of a ragged one (with `packed`, a `zrecord.RaggedBatch`). All streams
    of a batch hold the same records.

    Threads gather and transform up to `prefetch_size` batches ahead. A gather is one call a
    stream, in which a zrecord store uses its own pool of native threads: its size is set there
    (`zrecord.set_num_threads`), and from four CPUs up it leaves one free, as affinity and cgroup
    quota count them. More `num_workers` help a transform in Python only as far as it releases the
    interpreter lock.

    Parameters
    ----------
    streams : dict of str to stream
        Each a numpy array or memmap (records along the first axis), a zrecord store, or an object
        with ``len``, ``gather(indices, out=None)``, ``dtype`` and, if dense, ``item_shape``.
        All have the same number of records. The loader never closes them.
    num_workers : int
        Threads; at most `prefetch_size` of them can have work. With 0 a batch is made inside
        ``next``, in the thread that calls it.
    batch_size : int
        Records in a batch of this rank.
    prefetch_size : int
        Bound on batches being made plus batches ready.
    mode : Sampler.Mode or str
        Order of the records: see `Sampler`.
    seed : int
        Seed of the order and of ``info.rng``, 0 to 2**64 - 1.
    transform : callable, optional
        ``transform(batch)`` returns what ``next`` returns; called on worker threads, several steps
        at the same time. If it has a parameter named ``info`` it gets a `StepInfo` by keyword.
    rank, world_size : int
        This process takes slots ``rank * batch_size`` and following of each global batch.
        ``rank="auto"`` takes both from the environment: see `Sampler`.
    remainder : {"drop", "wrap"}
        What happens to the records behind the last full global batch of a cycle: see `Sampler`.
    start_step : int
        The first step.
    subset : array of int or bool, optional
        Sample these records only: unique indices, in the order that `once` follows, or a mask over
        all records. Copied.
    weights : array of float, optional
        Relative frequency of each record (of each subset entry); the mode must be IID.
    sampler : object, optional
        Anything with ``at(step)``, ``steps_per_cycle``, ``state_dict()`` and
        ``load_state_dict(state, strict)``, in place of `batch_size`, `mode`, `seed`, `weights`,
        `rank`, `world_size`, `remainder` and `subset`. Its own counter plays no part, and is set
        when a state is loaded.
    packed : bool
        Gather ragged streams with ``gather_packed``.
    with_index : str, optional
        Add the store indices to the batch under this name, as int64.

    Raises
    ------
    TypeError, ValueError, IndexError
        For an argument that cannot be used; the message names it.

    Notes
    -----
    After an exception in the sampler, a stream or the transform, the steps before it are delivered
    first; then ``next`` raises the same object each time, with a note that names step, stage and
    first indices, until `seek`. ``loader.seek(loader.tell() + 1)`` steps over a bad batch.

    ``next`` may be called from several threads: each batch is delivered once.

    A loader that is dropped stops its threads, and so does the end of the interpreter.

    Examples
    --------
    >>> import numpy as np
    >>> from loaderx import DataLoader
    >>> x = np.arange(1000).reshape(500, 2)
    >>> with DataLoader({"x": x}, batch_size=100, seed=1) as loader:
    ...     shapes = [batch["x"].shape for batch in loader.take(3)]
    >>> shapes
    [(100, 2), (100, 2), (100, 2)]
    """

    def __init__(
        self,
        streams: Mapping[str, Any],
        num_workers: int = 4,
        batch_size: int = 256,
        prefetch_size: int = 4,
        mode: Sampler.Mode | str = Sampler.Mode.CYCLIC,
        seed: int = 42,
        transform: Callable[..., Any] | None = None,
        *,
        rank: int | str = 0,
        world_size: int = 1,
        remainder: str = "drop",
        start_step: int = 0,
        subset: Any = None,
        weights: Any = None,
        sampler: Any = None,
        packed: bool = False,
        with_index: str | None = None,
    ) -> None:
        num_workers = integer("num_workers", num_workers, 0)
        prefetch_size = integer("prefetch_size", prefetch_size, 1)
        if prefetch_size > PREFETCH_LIMIT:
            raise ValueError(f"prefetch_size must be at most {PREFETCH_LIMIT}, got {prefetch_size}")
        start_step = _step("start_step", start_step)
        if transform is not None and not callable(transform):
            raise TypeError(
                f"transform must be callable or None, got {type(transform).__name__}: {transform!r}"
            )
        if with_index is not None and not isinstance(with_index, str):
            raise TypeError(f"with_index must be a str or None, got {type(with_index).__name__}")
        self._sources = open_sources(streams, packed)
        if with_index is not None and with_index in streams:
            raise ValueError(
                f"with_index={with_index!r} is the name of a stream too; choose another name"
            )
        records = self._sources[0].length
        if sampler is None:
            self._subset = None if subset is None else _subset_indices(subset, records)
            length = records if self._subset is None else len(self._subset)
            integer("batch_size", batch_size, 1)
            sampler = Sampler(
                length, batch_size, mode, seed, rank=rank, world_size=world_size,
                remainder=remainder, weights=weights,
            )  # fmt: skip
            global_batch = sampler.batch_size * sampler.world_size
            if remainder == "drop" and length < global_batch:
                raise ValueError(
                    f"batch_size={sampler.batch_size} times world_size={sampler.world_size} is "
                    f"{global_batch}, more than the {length} records; choose a smaller batch_size "
                    "or remainder='wrap'"
                )
        else:
            given = {
                "batch_size": batch_size != 256, "mode": mode != Sampler.Mode.CYCLIC,
                "seed": seed != 42, "weights": weights is not None, "rank": rank != 0,
                "world_size": world_size != 1, "remainder": remainder != "drop",
                "subset": subset is not None,
            }  # fmt: skip
            _check_sampler(sampler, records, [name for name, is_given in given.items() if is_given])
            self._subset = None
        self._sampler = sampler
        self._with_index = with_index
        self._prefetch_size = prefetch_size
        self._num_workers = num_workers
        self._course = Endless(sampler, records if self._subset is None else len(self._subset))
        assembly = Assembly(
            self._sources, self._subset, with_index, transform, getattr(sampler, "seed", 0)
        )
        self._ring = Ring(assembly, prefetch_size, num_workers)
        self._stream = Run(self._course, start_step)
        weakref.finalize(self, self._ring.abandon)

    # ---- batches

    def __iter__(self) -> DataLoader:
        return self

    def __next__(self) -> Any:
        """Return the batch of the next step.

        Raises
        ------
        LoaderClosed
            After `close`, and at once when another thread closes the loader.
        LoaderxError
            In a forked child, or when the loader's own transform calls it.
        BaseException
            What the step raised, the same object each time.
        """
        ring = self._ring
        run = self._stream
        hand: list[Any] = []
        try:
            while True:
                outcome = ring.take(run, hand)
                if hand:
                    return hand[1][0]
                if type(outcome) is Failure:
                    raise outcome.error.with_traceback(outcome.traceback)
                run = self._moved(run)
        except BaseException:
            ring.give_back(run, hand)
            raise

    def take(self, k: int) -> _Take:
        """Return the next `k` batches; each iteration takes `k` more.

        Parameters
        ----------
        k : int
            How many batches, 0 or more.

        Returns
        -------
        iterable
            With a length. What its iteration raises is what ``next`` raises.

        Raises
        ------
        TypeError, ValueError
            If `k` is no integer, or negative.
        """
        return _Take(self, integer("k", k, 0))

    def epochs(self, n: int) -> _Take:
        """Return the batches of `n` cycles: the next ``n * steps_per_cycle``, as `take` does.

        Parameters
        ----------
        n : int
            How many cycles, 0 or more.

        Returns
        -------
        iterable
            With a length.

        Raises
        ------
        TypeError, ValueError
            If `n` is no integer, or negative.
        """
        return _Take(self, integer("n", n, 0) * self.steps_per_cycle)

    def once(self) -> Iterator[Any]:
        """Return an iterator of a finite pass over every record (of the subset), in its order.

        Each rank gets its share of each global batch and the same number of batches; together they
        hold every record exactly once. The last batch of a rank may be short, or empty when fewer
        records than ranks are left. Batches that were prefetched for ``next`` are dropped and made
        again after the pass; the stream goes on where it was, and `state_dict` during the pass is
        the stream's.

        ``next(loader)``, `seek`, `load_state_dict` and another `once` end the pass: its iterator
        then raises `LoaderxError`.

        Returns
        -------
        iterator
            Of batches as ``next`` returns them.

        Raises
        ------
        TypeError
            If a sampler was given that has no ``batch_size``.
        LoaderClosed
            If the loader is closed.
        LoaderxError
            In a forked child.
        """
        batch_size = getattr(self._sampler, "batch_size", None)
        if batch_size is None:
            raise TypeError(
                f"once() needs a sampler with batch_size (and rank, world_size); "
                f"{type(self._sampler).__name__} has none"
            )
        cover = Cover(
            self._sources[0].length if self._subset is None else len(self._subset),
            batch_size,
            getattr(self._sampler, "rank", 0),
            getattr(self._sampler, "world_size", 1),
        )
        run = Run(cover, 0, cover.steps)
        with self._entered():
            stream = self._stream
            self._stream = Run(self._course, stream.position(), failure=stream.failure)
            self._ring.replace(stream, run)
        return _Once(self, run)

    def _resume_stream(self, finished: Run) -> None:
        """Let the workers go on with the stream after a pass, if nothing else came between."""
        with self._ring.lock:
            if not (finished.retired or self._ring.closed):
                self._ring.replace(finished, self._stream)

    # ---- position and state

    @property
    def steps_per_cycle(self) -> int:
        """Steps until every record was due once: see `Sampler.steps_per_cycle`."""
        return int(self._sampler.steps_per_cycle)

    def tell(self) -> int:
        """Return the step that ``next`` will deliver, or at which it raises.

        Returns
        -------
        int
            0 or more.

        Raises
        ------
        LoaderxError
            In a forked child.
        """
        self._ring.check_process()
        with self._ring.lock:
            return self._stream.position()

    def seek(self, step: int) -> None:
        """Make `step` the next one, at the cost of the prefetched batches. Clears an error.

        A trainer that reads one batch ahead of the one it has trained on saves
        ``loader.tell() - 1`` and seeks there.

        Parameters
        ----------
        step : int
            0 to 2**63 - 1.

        Raises
        ------
        TypeError, ValueError
            If `step` is no integer, or out of range.
        LoaderClosed
            If the loader is closed.
        LoaderxError
            In a forked child.
        """
        step = _step("step", step)
        with self._entered():
            self._move(step)

    def _move(self, step: int) -> None:
        old, new = self._stream, Run(self._course, step)
        self._stream = new
        self._ring.replace(old, new)

    def _moved(self, retired: Run) -> Run:
        """Return the run that has replaced the stream's."""
        with self._ring.lock:
            if self._stream is retired:  # a signal handler moved it in the middle of a change
                self._move(retired.position())
            return self._stream

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the batches delivered, as a small dict that JSON can hold.

        It carries the sampler's state, a fingerprint of each stream and a hash of the subset. It
        holds the global batch and not the rank's, so one rank's state serves all, and any world
        size with the same global batch. Batches that are merely prefetched do not count.

        Returns
        -------
        dict
            ``version``, ``step``, ``sampler``, ``streams`` and ``subset``.

        Raises
        ------
        LoaderxError
            In a forked child.
        """
        self._ring.check_process()
        with self._ring.lock:
            step = self._stream.position()
            sampler = self._sampler.state_dict()
            if isinstance(self._sampler, Sampler):  # its own counter is not the loader's
                sampler["position"] = step * self._sampler.global_batch
            return {
                "version": STATE_VERSION,
                "step": step,
                "sampler": sampler,
                "streams": {source.name: source.fingerprint for source in self._sources},
                "subset": self._subset_state(),
            }

    def _subset_state(self) -> dict[str, Any] | None:
        if self._subset is None:
            return None
        digest = hashlib.blake2b(self._subset.astype("<i8").tobytes(), digest_size=16)
        return {"records": len(self._subset), "hash": digest.hexdigest()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Continue at the position of a saved state.

        Parameters
        ----------
        state : dict
            What `state_dict` returned, from this loader or another one.
        strict : bool
            Whether differences of sampler, streams and subset are refused.

        Raises
        ------
        StateMismatch
            If the state was saved over other data or another order; its ``differences`` list all.
            The loader is unchanged.
        TypeError, ValueError
            If `state` is not a loader's state.
        LoaderClosed
            If the loader is closed.
        LoaderxError
            In a forked child.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be a dict from state_dict(), got {type(state).__name__}")
        missing = {"version", "step", "sampler", "streams", "subset"} - set(state)
        if missing:
            raise ValueError(
                f"state is not from DataLoader.state_dict(): {', '.join(sorted(missing))} missing"
            )
        if state["version"] != STATE_VERSION:
            raise ValueError(
                f"state has version {state['version']!r}; this loaderx reads {STATE_VERSION}"
            )
        step = _step("state['step']", state["step"])
        with self._entered():
            differences = self._differences(state) if strict else []
            try:
                self._sampler.load_state_dict(state["sampler"], strict=strict)
            except StateMismatch as mismatch:
                differences = [*(mismatch.differences or (str(mismatch),)), *differences]
            if differences:
                raise StateMismatch(
                    "the state does not fit this DataLoader: "
                    + "; ".join(differences)
                    + ". Pass strict=False to load the position all the same.",
                    differences,
                )
            if isinstance(self._sampler, Sampler):
                step = _step("the step of the saved position", self._sampler.tell())
            self._move(step)

    def _differences(self, state: Mapping[str, Any]) -> list[str]:
        saved = state["streams"]
        if not isinstance(saved, Mapping):
            raise TypeError(f"state['streams'] must be a dict, got {type(saved).__name__}")
        differences = []
        for source in self._sources:
            if source.name not in saved:
                differences.append(f"{source.label} is not in the state")
            else:
                difference = source.difference(saved[source.name])
                if difference is not None:
                    differences.append(difference)
        names = {source.name for source in self._sources}
        differences += [f"stream {name!r} is missing here" for name in saved if name not in names]
        subset = self._subset_state()
        if state["subset"] != subset:
            differences.append(f"subset was {state['subset']!r} when saved and is {subset!r} here")
        return differences

    # ---- metrics

    def stats(self) -> dict[str, Any]:
        """Return what was delivered and where the time went.

        Returns
        -------
        dict
            ``steps``, ``samples`` and ``bytes`` (payload before the transform) delivered;
            ``wait_s``, seconds in which ``next`` had to wait, and ``starved``, how often it had to;
            ``gather_s`` and ``transform_s``, seconds spent for the delivered batches, summed over
            threads; ``ready``, batches that wait for the consumer now; ``bottleneck``:
            ``"consumer"`` if it waited for less than half of the time, else ``"gather"`` or
            ``"transform"``, whichever took longer.

        Raises
        ------
        LoaderxError
            In a forked child.
        """
        ring = self._ring
        ring.check_process()
        with ring.lock:
            elapsed = 0.0 if ring.first_call is None else ring.last_call - ring.first_call
            if ring.wait_s <= elapsed / 2:
                bottleneck = "consumer"
            else:
                bottleneck = "gather" if ring.gather_s >= ring.transform_s else "transform"
            return {
                "steps": ring.steps,
                "samples": ring.samples,
                "bytes": ring.bytes,
                "wait_s": ring.wait_s,
                "gather_s": ring.gather_s,
                "transform_s": ring.transform_s,
                "ready": 0 if ring.run is None else ring.run.ready,
                "starved": ring.starved,
                "bottleneck": bottleneck,
            }

    # ---- the end

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._ring.closed

    def close(self) -> None:
        """Stop the threads. May be called again, by any thread, also while another waits in next.

        Waiting threads get `LoaderClosed` at once. Threads that work are joined for at most a
        second; if one is stuck longer, a RuntimeWarning names where. The streams stay open.
        """
        self._ring.close(lambda progress: f"{progress.stage} still runs at step {progress.step}")

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _entered(self) -> Any:
        """Return the ring's lock for a change of position, if that is still possible."""
        self._ring.check_process()
        if self._ring.closed:
            raise LoaderClosed("the DataLoader is closed; build another one")
        return self._ring.lock

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DataLoader has threads and cannot be pickled; pickle its arguments and state_dict()"
        )

    def __repr__(self) -> str:
        streams = ", ".join(
            f"{source.name!r}: <{type(source.stream).__name__}>" for source in self._sources
        )
        parts = [
            f"{{{streams}}}",
            f"num_workers={self._num_workers}",
            f"prefetch_size={self._prefetch_size}",
            f"sampler={self._sampler!r}",
        ]
        if self._subset is not None:
            parts.append(f"subset=<{len(self._subset)} records>")
        if self._with_index is not None:
            parts.append(f"with_index={self._with_index!r}")
        return f"DataLoader({', '.join(parts)}){' (closed)' if self.closed else ''}"


def _step(name: str, value: Any) -> int:
    step = integer(name, value, 0)
    if step >= STEP_LIMIT:
        raise ValueError(f"{name} must be below 2**63, got {step}")
    return step


def _subset_indices(subset: Any, records: int) -> np.ndarray:
    """Return the indices that `subset` selects, as a copy in its order."""
    given = np.asarray(subset)
    if given.ndim != 1:
        raise ValueError(f"subset must be 1-D, got {given.ndim} dimensions")
    if given.dtype == np.bool_:
        if len(given) != records:
            raise ValueError(
                f"subset is a mask of {len(given)} entries, but the streams have {records} records"
            )
        indices = np.flatnonzero(given).astype(np.int64)
    elif given.dtype.kind in "iu":
        if len(given) and (given.min() < 0 or given.max() >= records):
            bad = given.min() if given.min() < 0 else given.max()
            raise ValueError(f"subset holds index {bad}; expected 0 to {records - 1}")
        indices = given.astype(np.int64)
        ordered = np.sort(indices)
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            raise ValueError(f"subset holds index {repeated[0]} more than once; expected unique")
    elif given.size == 0:
        indices = np.empty(0, np.int64)
    else:
        raise TypeError(f"subset must hold integers or bools, got dtype {given.dtype}")
    if not len(indices):
        raise ValueError("subset selects no record; expected at least one")
    return indices


def _check_sampler(sampler: Any, records: int, given: list[str]) -> None:
    if given:
        raise ValueError(
            f"sampler= takes the place of {', '.join(given)}; give one or the other, not both"
        )
    wanted = ("at", "steps_per_cycle", "state_dict", "load_state_dict")
    missing = [name for name in wanted if not hasattr(sampler, name)]
    if missing:
        raise TypeError(
            f"sampler must have {', '.join(wanted)}; {type(sampler).__name__} has no "
            f"{', '.join(missing)}"
        )
    length = getattr(sampler, "length", records)
    if length != records:
        raise ValueError(f"sampler is for {length} records, but the streams have {records}")
