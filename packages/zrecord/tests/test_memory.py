"""Appending and reading what is larger than memory should ever be asked for.

Counted is RssAnon: pages of a mapped file cost no memory. Each case runs in a process of its own,
whose peak is watched by a thread.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MIB = 2**20

WATCH = """
import sys, threading, time
import numpy as np
from zrecord import DenseStore, RaggedStore

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

peak = start = anonymous()
def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
folder, size = sys.argv[1], int(sys.argv[2])
"""

DENSE = """
rows = np.memmap(folder + "/rows", np.uint64, "w+", shape=(size // 4096, 512))
for i in range(0, len(rows), 4096):
    part = rows[i : i + 4096]
    part[:] = np.arange(i * 512, i * 512 + part.size, dtype=np.uint64).reshape(part.shape)
rows.flush()
start = peak = anonymous()
layout = sys.argv[3]
with DenseStore(folder + "/s", np.uint64, (512,), sys.argv[4]) as store:
    store.append(rows if layout == "rows" else rows[::-1] if layout == "reversed" else
                 np.asarray(rows))
    wanted = rows[::-1] if layout == "reversed" else rows
    step = 1024
    for i in range(0, len(rows), step):
        assert np.array_equal(store[i : i + step], wanted[i : i + step]), i
    assert store.verify().ok
print(peak - start)
"""

RAGGED = """
count = size
start = peak = anonymous()
def records():
    for i in range(count):
        yield np.full(1 + i % 97, i, np.int32)
with RaggedStore(folder + "/s", np.int32, sys.argv[4]) as store:
    assert store.append(records()) == 0
    assert len(store) == count
    seen = 0
    for record in store:
        assert len(record) == 1 + seen % 97 and record[0] == record[-1] == seen, seen
        seen += 1
    assert seen == count
    assert store.verify().ok
print(peak - start)
"""


def _grown(program: str, folder, *arguments: object) -> int:
    """Run a program; return by how many bytes its anonymous memory grew at most."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("this system does not count anonymous memory")
    done = subprocess.run(
        [sys.executable, "-c", WATCH + program, str(folder), *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("layout", ["rows", "reversed", "plain"])
def test_a_mapped_array_is_never_copied_whole(tmp_path, layout):
    assert _grown(DENSE, tmp_path, 320 * MIB, layout, "raw") < 200 * MIB


def test_a_generator_is_consumed_in_parts(tmp_path):
    assert _grown(RAGGED, tmp_path, 100_000, "", "zstd") < 100 * MIB


@pytest.mark.long
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_mapped_array_of_4_gib(tmp_path, codec):
    assert _grown(DENSE, tmp_path, 4096 * MIB, "rows", codec) < 300 * MIB


@pytest.mark.long
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_generator_of_a_million_records(tmp_path, codec):
    assert _grown(RAGGED, tmp_path, 1_000_000, "", codec) < 300 * MIB


EPOCHS = """
rows = np.ones((2000, 4096), np.uint8)
with DenseStore(folder + "/s", np.uint8, (4096,), "zstd") as store:
    store.append(rows)
    order = np.random.default_rng(0)
    seen = []
    for epoch in range(10):
        for batch in order.permutation(2000).reshape(-1, 50):
            store[batch]
        seen.append(anonymous())
print(seen[-1] - seen[2])
"""


def test_memory_is_flat_over_ten_epochs(tmp_path):
    assert _grown(EPOCHS, tmp_path, 0) <= MIB
