"""What must be reached: for each figure a contender, a ratio or a constant, and the limit.

A ratio is the contender's median time divided by ours, in the same run: more is better. A constant
is a time that we may take. Of several names the fastest counts. The limit is what no store or
loader can beat by much, and is shown as the share of it that we reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Names = tuple[str, ...]
THREADS = ("1 thread", "all threads")
LOADERS: Names = tuple(f"loaderx, {n} workers" for n in range(17))
MEMCPY: Names = ("C memcpy, 1 thread", "C memcpy, all threads")


@dataclass(frozen=True)
class Target:
    """One line of the table of what to reach.

    Attributes
    ----------
    question, group : str
        Where the figures are.
    ours, against : tuple of str
        Contenders; the fastest of each counts.
    at_least, aim : float
        Ratios; or for ``seconds_per`` the most that we may take.
    seconds_per : str, optional
        ``"batch"``, ``"record"`` or ``"value"`` where the target is a constant: seconds a batch,
        seconds a record, or a row that is no time.
    limit : tuple of str
        The contenders that show the limit.
    """

    question: str
    group: str
    ours: Names
    against: Names
    at_least: float
    aim: float
    seconds_per: str | None = None
    limit: Names = ()


def _dense() -> Iterator[Target]:
    default = ("zrecord, all threads",)
    least = {
        "128 B": ((1.2, 1.6), (0.4, 0.7)),
        "2 KiB": ((1.0, 1.1), (0.8, 1.0)),
        "256 KiB": ((1.5, 1.6), (1.0, 1.6)),
    }
    for size, (memmap, take) in least.items():
        group = f"raw, {size}, batch 256"
        yield Target("dense", group, default, ("numpy memmap",), *memmap, limit=MEMCPY)
        yield Target("dense", group, default, ("numpy take",), *take, limit=MEMCPY)
    for group in ("raw, 2 KiB, batch 256", "raw, 256 KiB, batch 256", "raw, 128 B, batch 8192"):
        for threads in THREADS:
            loop = (f"C memcpy out=, {threads}",)
            yield Target(
                "dense", group, (f"zrecord out=, {threads}",), loop, 0.75, 0.95, limit=loop
            )
    yield Target("dense", "raw, 128 B, batch 256", default, ("loaderx 1.7",), 20, 40, limit=MEMCPY)
    for size in least:
        for threads in THREADS:
            group, loop = f"zstd, {size}, batch 256", (f"C libzstd out=, {threads}",)
            yield Target(
                "dense", group, (f"zrecord out=, {threads}",), loop, 0.85, 0.97, limit=loop
            )


def _ragged() -> Iterator[Target]:
    group, packed = "raw, int32 tokens, batch 256", ("packed file, loop",)
    yield Target("ragged", group, ("zrecord, list",), packed, 1.5, 3)
    yield Target("ragged", group, ("zrecord, packed",), packed, 2.5, 8)


def _append() -> Iterator[Target]:
    for size in ("256 KiB", "2 KiB"):
        for threads in THREADS:
            ours, loop = (f"zrecord, {threads}",), (f"C libzstd, {threads}",)
            yield Target(
                "append", f"zstd, {size}, parts of 64 MiB", ours, loop, 0.8, 0.95, limit=loop
            )
    plain = ("os.pwritev",)
    ours = ("zrecord, all threads",)
    yield Target("append", "raw, 256 KiB, parts of 64 MiB", ours, plain, 0.8, 0.95, limit=plain)


def _open() -> Iterator[Target]:
    for mode in ("reading", "writing"):
        yield Target(
            "open", "10000000 records of 8 B", (f"zrecord, {mode}",), (), 5e-3, 1e-3, "batch"
        )


def _sampler() -> Iterator[Target]:
    for batch, aim in ((256, 8), (8192, 5)):
        group = f"iid, 1000000 records, batch {batch}"
        yield Target("sampler", group, ("loaderx next",), ("numpy integers",), 3, aim)
    for length, batch in ((1_000_000, 256), (1_000_000, 8192), (1024, 256)):
        group = f"cyclic, {length} records, batch {batch}"
        yield Target("sampler", group, ("loaderx next",), (), 12e-9, 6e-9, "record")


def _loader() -> Iterator[Target]:
    small, large = "raw, 3 KiB, batch 256, identity", "raw, 256 KiB, batch 256, identity"
    items = tuple(f"torch per item, {n} workers" for n in range(3))
    batches = ("torch BatchSampler, 0 workers",)
    yield Target("loader", small, LOADERS, items, 8, 20)
    yield Target("loader", small, LOADERS, batches, 1.5, 2.5)
    yield Target("loader", large, LOADERS, batches, 1.5, 2)


def _memory() -> Iterator[Target]:
    group = "raw, batches of 64 MiB, prefetch 4"
    yield Target("memory", group, ("loaderx",), (), 1.3, 1.1, "value")


TARGETS = [*_dense(), *_ragged(), *_append(), *_open(), *_sampler(), *_loader(), *_memory()]


def best(rows: list[dict[str, Any]], group: str, names: Names) -> dict[str, Any] | None:
    """Return the fastest row of a group among these contenders."""
    found = [r for r in rows if r["group"] == group and r["contender"] in names]
    return min(found, key=lambda row: row.get("median", 0.0), default=None)
