"""Nothing grows: anonymous memory, threads and descriptors over many batches and many loaders."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="RssAnon is read from /proc, which is not here"
)

MEASURE = """
import gc, os, sys, threading
import numpy as np
from loaderx import DataLoader

def anonymous():
    gc.collect()
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def check(round_of_work, rounds):
    readings = []
    for number in range(rounds):
        round_of_work()
        readings.append((anonymous(), threading.active_count(), descriptors()))
    memory, threads, files = zip(*readings[1:])  # the first round warms up
    slope = memory[-1] - memory[0]
    assert slope <= 1 << 20, [m >> 10 for m in memory]
    assert len(set(threads)) == 1, threads
    assert len(set(files)) == 1, files
    print("ok", slope)
"""


@pytest.mark.parametrize("workers", [0, 4])
def test_twenty_thousand_batches(workers, run_script):
    finished = run_script(
        MEASURE
        + f"""
x = np.arange(10_000 * 4, dtype=np.float32).reshape(10_000, 4)
noise = lambda batch, info: {{**batch, "r": info.rng.random(2)}}
with DataLoader({{"x": x}}, {workers}, 32, 4, transform=noise, with_index="i") as loader:
    def work():
        for _ in loader.take(3800): pass
        for _ in zip(range(200), loader.once()): pass
        loader.seek(loader.tell() - 5)
        loader.state_dict()
        loader.stats()
    check(work, 5)
"""
    )
    assert finished.stdout.startswith("ok")
    assert finished.stderr == ""


def test_many_errors(run_script):
    finished = run_script(
        MEASURE
        + """
def fail(batch, info):
    if info.step % 2: raise ValueError(info.step)
    return batch
with DataLoader({"x": np.arange(1000)}, 2, 10, 4, transform=fail) as loader:
    def work():
        for _ in range(1000):
            try:
                next(loader)
            except ValueError:
                loader.seek(loader.tell() + 1)
    check(work, 5)
"""
    )
    assert finished.stdout.startswith("ok")


@pytest.mark.parametrize("closing", ["loader.close()", "del loader"])
def test_many_loaders(closing, run_script):
    finished = run_script(
        MEASURE
        + f"""
import time
x = np.arange(1000)
def work():
    for number in range(300):
        loader = DataLoader({{"x": x}}, 2, 10, 2)
        next(loader)
        {closing}
    while threading.active_count() > 1: time.sleep(0.001)
check(work, 5)
"""
    )
    assert finished.stdout.startswith("ok")
    assert finished.stderr == ""
