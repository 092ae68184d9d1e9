"""The method of every benchmark here.

All contenders of a question get the same data and the same random plan. Each batch that will be
timed is first compared with the source: kind, dtype, shape, order and values; of results that do
not follow the plan some are (`Contender.checked_max`). Then the contenders take turns in one
process, round after round, each round in another order, and the figure is a ratio of medians:
machines are shared, and an absolute number does not stay.

A contender that is too slow for the whole plan in one round takes the plan's next part instead, and
the result says how many batches a round had.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from machine import describe_machine, installed_versions, revision

HERE = Path(__file__).resolve().parent
ROUND_SECONDS = 0.5
PILOTS = 5
# What a loader still prepares for later when its block ends.
QUIET_SECONDS = 0.3

# Each name of `--only`: its module in contenders/, and the questions that it answers there, by a
# function named QUESTION_contenders. A module is imported only when its name is asked for.
CONTENDERS = {
    "zrecord": ("zrecord_stores", ("dense", "ragged", "append", "open")),
    "loaderx": ("loaderx_loaders", ("sampler", "loader")),
    "numpy": ("numpy_arrays", ("dense", "sampler", "open")),
    "packed": ("packed_file", ("ragged",)),
    "c": ("c_loops", ("dense", "append")),
    "files": ("plain_files", ("append",)),
    "h5py": ("hdf5", ("dense", "ragged", "append", "open")),
    "zarr": ("zarr_arrays", ("dense", "append")),
    "blosc2": ("blosc2_arrays", ("dense", "append")),
    "lmdb": ("lmdb_files", ("dense", "ragged", "append")),
    "array-record": ("array_records", ("dense", "ragged", "append")),
    "bagz": ("bagz_files", ("dense", "ragged", "append")),
    "arrow": ("arrow_files", ("dense", "ragged", "append", "open")),
    "torch": ("torch_loaders", ("loader",)),
    "grain": ("grain_loaders", ("loader",)),
    "loaderx-1.7": ("loaderx_1_7", ("dense", "ragged", "append", "open", "sampler", "loader")),
}
OURS = ("zrecord", "loaderx")
# Contenders that need nothing but what our packages need, and a C compiler.
CHEAP = (*OURS, "numpy", "packed", "c", "files")


class WrongResult(Exception):
    """A contender returned something else than the source has."""


class NotRun(Exception):
    """A contender cannot take part here; the message says why."""


class Contender:
    """One way to answer the question: called with a plan, it returns the result.

    `checked_max` is how many results are checked where they do not depend on the plan: what is
    timed later are other ones then.
    """

    checked_max: int | None = None

    def __init__(self, name: str, call: Callable[[Any], Any] | None = None) -> None:
        self.name = name
        self.call = call

    def __call__(self, plan: Any) -> Any:
        """Return the result for one plan."""
        if self.call is None:
            raise TypeError(f"{self.name} has no call")
        return self.call(plan)

    def prepare(self) -> None:
        """Do what must hold while this contender is timed, and is not timed itself."""

    def seconds(self, plans: Sequence[Any]) -> float:
        """Run the plans one after the other and return how long they took together."""
        call = self.call or self
        begin = perf_counter()
        for plan in plans:
            # The last result is kept while the next is made, as in a training loop.
            result = call(plan)  # noqa: F841
        return perf_counter() - begin

    def close(self) -> None:
        """Let go of files, threads and processes."""


class EndlessContender(Contender):
    """An endless iterator of batches.

    Parameters
    ----------
    name : str
        For the tables.
    batches : iterator
        Yields batches for ever.
    rows : callable
        Returns the array of a batch, for the check.
    ready : int
        How many batches may be made or ready before they are asked for.
    stop : callable, optional
        Ends threads and processes.
    """

    checked_max = 32

    def __init__(
        self,
        name: str,
        batches: Iterator[Any],
        rows: Callable[[Any], np.ndarray],
        ready: int,
        stop: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name)
        self.batches = batches
        self.rows = rows
        self.ready = ready
        self.stop = stop

    def __call__(self, plan: Any) -> np.ndarray:
        return self.rows(next(self.batches))

    def prepare(self) -> None:
        time.sleep(QUIET_SECONDS)
        # So many again, until what arrives is what is made at this pace.
        for _ in range(2 * self.ready):
            next(self.batches)

    def seconds(self, plans: Sequence[Any]) -> float:
        batches = self.batches
        begin = perf_counter()
        for _ in plans:
            # The last batch is kept while the next is waited for, as in a training loop.
            batch = next(batches)  # noqa: F841
        return perf_counter() - begin

    def close(self) -> None:
        if self.stop is not None:
            self.stop()


# ---- options ------------------------------------------------------------------------------------


def parse_options(question: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line, which is the same for every question."""
    parser = argparse.ArgumentParser(prog=f"{question}.py")
    parser.add_argument("--smoke", action="store_true", help="tiny data, cheap contenders only")
    parser.add_argument(
        "--only", type=_names, metavar="NAME,NAME", help=f"contenders: {', '.join(CONTENDERS)}"
    )
    parser.add_argument(
        "--shape", type=_shape, action="append", metavar="N,N", help="dense record shape, in bytes"
    )
    parser.add_argument("--batch", type=int, action="append", help="records in a batch")
    parser.add_argument("--codec", choices=["raw", "zstd"], action="append")
    parser.add_argument("--transform", choices=["identity", "augment"], default="identity")
    parser.add_argument("--workers", type=int, action="append", help="of the loaders; repeatable")
    parser.add_argument("--rounds", type=int, help="how often each contender is timed")
    parser.add_argument("--folder", type=Path, help="where data is kept; default: a temporary one")
    parser.add_argument(
        "--results", type=Path, help="where the JSON goes; default: results/, or nowhere for smoke"
    )
    options = parser.parse_args(arguments)
    options.question = question
    if options.rounds is None:
        options.rounds = 2 if options.smoke else 7
    if options.results is None and not options.smoke:
        options.results = HERE / "results"
    return options


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
    return names


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(int(part) for part in text.split(","))
    if any(n < 1 for n in shape):
        raise argparse.ArgumentTypeError(f"a shape has positive numbers, got {text}")
    return shape


# ---- one question -------------------------------------------------------------------------------


class Run:
    """The tables of one question, as they are measured, and the contenders that could not run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[dict[str, Any]] = []
        self.not_run: dict[str, str] = {}
        self.started = datetime.now(timezone.utc)

    def measure(
        self,
        group: str,
        setting: Any,
        plans: Sequence[Any],
        check: Callable[[Any, Any], None],
        unit: dict[str, int],
        round_seconds: float = ROUND_SECONDS,
    ) -> None:
        """Build, validate and time every contender of a group.

        Parameters
        ----------
        group : str
            The table's name.
        setting : object
            What the contenders' modules build from.
        plans : sequence
            The plan of each batch.
        check : callable
            ``check(result, plan)`` raises `WrongResult`.
        unit : dict
            How many ``records`` and ``bytes`` a batch has.
        round_seconds : float
            What a contender may take in one round.
        """
        taking_part: list[Contender] = []
        try:
            counts: dict[str, int] = {}
            for key, contender in self._build(setting):
                taking_part.append(contender)
                with self._shown(key):
                    counts[contender.name] = _validate(
                        contender, plans, check, self.options.rounds, round_seconds
                    )
            if counts:
                able = [c for c in taking_part if c.name in counts]
                self._time(group, able, counts, plans, unit)
        finally:
            for contender in reversed(taking_part):
                contender.close()

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """Give a folder for the stores of a group.

        It is emptied in the end: the stores of all groups together might not fit into memory.
        """
        folder = self.options.folder / name
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            if not self.options.kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _build(self, setting: Any) -> Iterator[tuple[str, Contender]]:
        question = self.options.question
        for key in self.options.only or (CHEAP if self.options.smoke else CONTENDERS):
            file, questions = CONTENDERS[key]
            if question in questions:
                with self._shown(key):
                    module = importlib.import_module(f"contenders.{file}")
                    for contender in getattr(module, f"{question}_contenders")(setting):
                        yield key, contender

    @contextmanager
    def _shown(self, key: str) -> Iterator[None]:
        """Keep the failure of a rival as a result of its own.

        Ours must work, and a wrong result is an error of the benchmark, whoever returned it.
        """
        try:
            yield
        except Exception as error:
            if key in OURS or isinstance(error, WrongResult):
                raise
            if isinstance(error, (NotRun, ImportError)):
                self._leave_out(key, str(error))
                return
            traceback.print_exc()
            self._leave_out(key, f"{type(error).__name__}: {error}")

    def _leave_out(self, name: str, reason: str) -> None:
        self.not_run[name] = reason
        print(f"  not run: {name}: {reason}", file=sys.stderr)

    def _time(
        self,
        group: str,
        contenders: list[Contender],
        counts: dict[str, int],
        plans: Sequence[Any],
        unit: dict[str, int],
    ) -> None:
        seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
        for turn in range(self.options.rounds):
            shift = turn % len(contenders)
            for contender in contenders[shift:] + contenders[:shift]:
                part = _part(plans, counts[contender.name], turn)
                contender.prepare()
                seconds[contender.name].append(contender.seconds(part) / len(part))
        for contender in contenders:
            times = seconds[contender.name]
            self.rows.append(
                {
                    "group": group,
                    "contender": contender.name,
                    "median": statistics.median(times),
                    "seconds": times,
                    "batches": counts[contender.name],
                    **unit,
                }
            )
        print_group(self.rows, group)

    def add(self, group: str, contender: str, value: float, unit: str) -> None:
        """Add a row that is no time: a size in `unit`."""
        self.rows.append({"group": group, "contender": contender, "value": value, "unit": unit})
        print(f"\n{group}\n  {contender:<32} {value:.4g} {unit}")

    def save(self) -> None:
        """Write the JSON, and say which contenders did not run."""
        for name, reason in self.not_run.items():
            print(f"not run: {name}: {reason}")
        if self.options.results is None:
            return
        free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
        options = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(self.options).items()
            if name not in ("folder", "kept", "results")
        }
        document = {
            "question": self.options.question,
            "started": self.started.isoformat(timespec="seconds"),
            "revision": revision(),
            "machine": describe_machine(),
            "free_threaded": free_threaded,
            "versions": installed_versions(),
            "options": options,
            "rows": self.rows,
            "not_run": self.not_run,
        }
        self.options.results.mkdir(parents=True, exist_ok=True)
        suffix = "-free-threaded" if free_threaded else ""
        path = self.options.results / f"{self.options.question}{suffix}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


@contextmanager
def question(name: str, arguments: Sequence[str] | None) -> Iterator[Run]:
    """Open one question: options, a folder for its data, and the results in the end."""
    options = parse_options(name, arguments)
    options.kept = options.folder is not None
    folder = options.folder or Path(tempfile.mkdtemp(prefix=f"benchmark-{name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    options.folder = folder
    try:
        run = Run(options)
        yield run
        run.save()
    finally:
        if not options.kept:
            shutil.rmtree(folder, ignore_errors=True)


def thread_count() -> int:
    """Return how many threads a contender may use: the CPUs of this process."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def thread_choices() -> dict[str, int]:
    """Return the thread counts at which contenders are compared, by name."""
    return {"1 thread": 1, "all threads": thread_count()} if thread_count() > 1 else {"1 thread": 1}


# ---- validation ---------------------------------------------------------------------------------


def _validate(
    contender: Contender,
    plans: Sequence[Any],
    check: Callable[[Any, Any], None],
    rounds: int,
    round_seconds: float,
) -> int:
    """Check batches that will be timed; return how many a round takes."""
    contender.prepare()
    _check(contender, plans[0], check)
    # The best of several tries: the first one meets cold memory, another may be disturbed.
    each = min(contender.seconds(plans[:1]) for _ in range(PILOTS))
    count = max(1, min(len(plans), int(round_seconds / max(each, 1e-9))))
    for plan in plans[: count * rounds][: contender.checked_max]:
        _check(contender, plan, check)
    return count


def _check(contender: Contender, plan: Any, check: Callable[[Any, Any], None]) -> None:
    try:
        check(contender(plan), plan)
    except WrongResult as wrong:
        raise WrongResult(f"{contender.name}: {wrong}") from None


def _part(plans: Sequence[Any], count: int, turn: int) -> Sequence[Any]:
    """Return the plans of a turn, all of which `_validate` has seen."""
    start = turn * count % max(1, len(plans) - count + 1)
    return plans[start : start + count]


def check_array(got: Any, expected: np.ndarray, what: str = "the result") -> None:
    """Compare one array with what it must be."""
    if not isinstance(got, np.ndarray):
        raise WrongResult(f"{what} is no array but {type(got).__name__}")
    if got.dtype != expected.dtype:
        raise WrongResult(f"{what} has dtype {got.dtype}, expected {expected.dtype}")
    if got.shape != expected.shape:
        raise WrongResult(f"{what} has shape {got.shape}, expected {expected.shape}")
    if not np.array_equal(got, expected):
        where = np.argwhere(got != expected)[0].tolist()
        raise WrongResult(f"{what} has other values, first at {where}")


def check_list(got: Any, expected: Sequence[np.ndarray]) -> None:
    """Compare a list of arrays with what it must be, in order."""
    if not isinstance(got, list) or len(got) != len(expected):
        what = f"a list of {len(got)}" if isinstance(got, list) else type(got).__name__
        raise WrongResult(f"expected a list of {len(expected)} records, got {what}")
    for position, (record, source) in enumerate(zip(got, expected, strict=True)):
        check_array(record, source, f"record {position}")


# ---- a table on the terminal --------------------------------------------------------------------


def print_group(rows: Sequence[dict[str, Any]], group: str) -> None:
    """Print the times of one group, the fastest first."""
    print(f"\n{group}")
    print(f"  {'contender':<34}{'us/batch':>12}{'krec/s':>12}{'MiB/s':>12}{'batches':>9}")
    chosen = [row for row in rows if row["group"] == group and "median" in row]
    for row in sorted(chosen, key=lambda row: row["median"]):
        median = row["median"]
        rate = row["bytes"] / median / 2**20 if row["bytes"] else 0
        print(
            f"  {row['contender']:<34}{median * 1e6:>12.2f}"
            f"{row['records'] / median / 1e3:>12.1f}{rate:>12.0f}{row['batches']:>9}"
        )
    sys.stdout.flush()
