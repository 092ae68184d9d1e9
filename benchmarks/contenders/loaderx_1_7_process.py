"""The process of loaderx 1.7: builds one contender, gives results and times itself.

Each line of standard input asks for one thing, in JSON; each line of standard output answers.
It runs in an environment that has loaderx 1.7 and nothing of this project.
"""

import json
import os
import shutil
import sys
import time
from itertools import pairwise
from time import perf_counter

import numpy as np
from loaderx.dataloader import DataLoader
from loaderx.zrecord import DenseStore, RaggedStore
from loaderx.zsampler import Sampler


class Indexed:
    """Gathers from an open store."""

    def __init__(self, store):
        self.store = store

    def __call__(self, plan):
        return self.store[plan]

    def prepare(self):
        """Do nothing: an open store is ready."""

    def seconds(self, plans):
        store = self.store
        begin = perf_counter()
        for plan in plans:
            result = store[plan]  # noqa: F841
        return perf_counter() - begin


class Append(Indexed):
    """Appends slices of an array to a new store."""

    def __init__(self, path, records, codec):
        self.path = path
        self.records = records
        self.codec = codec

    def _new(self):
        shutil.rmtree(self.path, ignore_errors=True)
        return DenseStore(self.path, self.records.dtype, self.records.shape[1:], codec=self.codec)

    def __call__(self, plan):
        with self._new() as store:
            store.append(self.records[plan[0] : plan[1]])
            return store[:]

    def seconds(self, plans):
        with self._new() as store:
            begin = perf_counter()
            for plan in plans:
                store.append(self.records[plan[0] : plan[1]])
            seconds = perf_counter() - begin
        shutil.rmtree(self.path)
        return seconds


class Open(Indexed):
    """Opens a store."""

    def __init__(self, path):
        self.path = path

    def __call__(self, plan):
        with DenseStore(self.path) as store:
            return store[plan]

    def seconds(self, plans):
        total = 0.0
        for _ in plans:
            begin = perf_counter()
            store = DenseStore(self.path)
            total += perf_counter() - begin
            store.close()
        return total


class Next(Indexed):
    """Takes what comes next from a sampler or a loader."""

    def __init__(self, draw, ready=0, key=None):
        self.draw = draw
        self.ready = ready
        self.key = key

    def __call__(self, plan):
        drawn = self.draw()
        return drawn if self.key is None else drawn[self.key]

    def prepare(self):
        """Take what was ready before, so that only what is made in time counts."""
        if self.ready:
            time.sleep(0.3)
        for _ in range(self.ready):
            self.draw()

    def seconds(self, plans):
        draw = self.draw
        begin = perf_counter()
        for _ in plans:
            batch = draw()  # noqa: F841
        return perf_counter() - begin


def dense_store(path, source, codec):
    """Build a store of the array at `source` unless it is there, and open it."""
    if not os.path.exists(path):
        records = np.load(source, mmap_mode="r")
        with DenseStore(path, records.dtype, records.shape[1:], codec=codec) as store:
            step = max(1, 2**26 // max(1, records[0].nbytes))
            for start in range(0, len(records), step):
                store.append(np.ascontiguousarray(records[start : start + step]))
    return DenseStore(path)


def ragged_store(path, source, offsets, codec):
    """Build a store of the values between the offsets, and open it."""
    if not os.path.exists(path):
        values = np.load(source)
        ends = np.load(offsets).tolist()
        with RaggedStore(path, values.dtype, codec=codec) as store:
            for start in range(0, len(ends) - 1, 10_000):
                part = ends[start : start + 10_001]
                store.append([values[a:b] for a, b in pairwise(part)])
    return RaggedStore(path)


def augment(batch):
    """Change each record as loader.py does."""
    rows = batch["x"]
    changed = np.empty_like(rows)
    for position, row in enumerate(rows):
        flat = row.reshape(-1)
        new = flat.copy()
        new[8:] = flat[:7:-1]
        new[8:] += np.uint8(int(flat[0]) % 7)
        changed[position] = new.reshape(row.shape)
    return {"x": changed}


def build(kind, path=None, source=None, codec=None, **asked):
    """Build what was asked for."""
    if kind == "dense":
        return Indexed(dense_store(path, source, codec))
    if kind == "ragged":
        return Indexed(ragged_store(path, source, asked["offsets"], codec))
    if kind == "append":
        return Append(path, np.load(source), codec)
    if kind == "open":
        dense_store(path, source, codec).close()
        return Open(path)
    if kind == "sampler":
        mode = getattr(Sampler.Mode, asked["mode"].upper())
        return Next(Sampler(asked["length"], asked["batch"], mode, seed=asked["seed"]).next)
    loader = DataLoader(
        {"x": dense_store(path, source, codec)},
        num_workers=asked["workers"],
        batch_size=asked["batch"],
        prefetch_size=asked["prefetch"],
        transform=augment if asked["augments"] else lambda batch: batch,
    )
    return Next(loader.__next__, 2 * (asked["prefetch"] + asked["workers"]), "x")


def answer(contender, question):
    """Return the answer to one question, and the contender that answers the next."""
    ask = question.pop("ask")
    if ask == "build":
        return None, build(**question)
    if ask == "prepare":
        return contender.prepare(), contender
    plans = list(np.load(question["plans"]))
    if ask == "seconds":
        return contender.seconds(plans), contender
    result = contender(plans[0])
    is_list = isinstance(result, list)
    np.savez(question["result"], *(result if is_list else [result]))
    return is_list, contender


def main():
    """Answer until asked to end."""
    contender = None
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        question = json.loads(line)
        if question["ask"] == "end":
            break
        try:
            value, contender = answer(contender, question)
            said = {"value": value}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=answers, flush=True)
    os._exit(0)  # a loader's threads have no end that others may ask for


if __name__ == "__main__":
    main()
