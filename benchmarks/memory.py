"""Question: how much anonymous memory the loader holds, against the batches it may hold.

    python memory.py

The bound is the batches that are made or ready (`prefetch_size`), the one that the caller has and
the one that it asks for. Each measurement runs in a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from data import dense_file, size_name
from harness import OURS, NotRun, WrongResult, check_array, question

PREFETCH = 4
BATCHES = 40


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure batches of 64 MiB, raw and compressed."""
    with question("memory", arguments) as run:
        options = run.options
        if not Path("/proc/self/status").exists():
            raise NotRun("anonymous memory is read from /proc/self/status, which is not here")
        shape, batch = ((512, 512), 8) if options.smoke else ((512, 512), 256)
        source = dense_file(options.folder, 3 * batch, shape)
        for codec in options.codec or ["raw", "zstd"]:
            command = [sys.executable, __file__, "--child", source, options.folder, codec, batch]
            done = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise WrongResult(done.stderr)
            peak = json.loads(done.stdout)
            size = batch * 512 * 512
            group = f"{codec}, batches of {size_name(size)}, prefetch {PREFETCH}"
            run.add(group, OURS[1], peak / ((PREFETCH + 2) * size), "of (prefetch + 2) batches")


def _child(source: str, folder: str, codec: str, batch: int) -> None:
    from loaderx import DataLoader
    from zrecord import DenseStore

    records = np.load(source, mmap_mode="r")
    path = Path(folder, f"memory-{codec}")
    with DenseStore(path, records.dtype, records.shape[1:], codec) as store:
        store.append(records)
    store = DenseStore(path, mode="r")
    store.gather([0, 1])
    before = _anonymous()
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.002):
            peak = max(peak, _anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    with DataLoader({"x": store}, 2, batch, prefetch_size=PREFETCH, with_index="index") as loader:
        for values in loader.take(BATCHES):
            first = values["index"][:1]
            check_array(values["x"][:1], np.asarray(records[first]))
    ended.set()
    watcher.join()
    print(peak - before)


def _anonymous() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        main()
