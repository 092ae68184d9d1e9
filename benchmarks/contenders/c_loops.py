"""The limits: C's memcpy from a mapping, and libzstd in a loop with one context a thread.

loops.c is compiled when it is asked for, by the system's compiler or else ziglang's, against the
zstd source that the native build uses.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from cffi import FFI
from harness import Contender, NotRun, WrongResult, thread_choices

HERE = Path(__file__).resolve().parent
ZSTD = Path(os.environ.get("ZRECORD_ZSTD_SOURCE", HERE.parents[1] / "native/zstd"))
LEVEL = 3

ffi = FFI()
ffi.cdef("""
    typedef struct pool pool;
    pool *pool_new(int threads, int level);
    void pool_free(pool *p);
    int copy_gather(pool *p, const char *source, size_t width, const int64_t *indices, size_t count,
                    char *target);
    int zstd_gather(pool *p, const char *source, const uint64_t *offsets, size_t width,
                    const int64_t *indices, size_t count, char *target);
    int zstd_append(pool *p, const char *source, size_t width, size_t count, char *target,
                    uint64_t *sizes);
    size_t zstd_bound(size_t width);
""")


# ---- compiling ----------------------------------------------------------------------------------


def _compiler() -> list[str]:
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NotRun("no C compiler: neither cc, gcc, clang nor the package ziglang is here")


@functools.cache
def _library(with_zstd: bool) -> Any:
    """Compile loops.c, and zstd if needed, and load it."""
    if os.name != "posix":
        raise NotRun("the loops need POSIX threads")
    compiler = _compiler()
    with tempfile.TemporaryDirectory(prefix="benchmark-loops-") as folder:
        flags = ["-O3", "-fPIC", "-w"]
        sources = [HERE / "loops.c"]
        if with_zstd:
            flags += ["-DWITH_ZSTD", f"-I{_zstd_folder()}"]
            for part in ("common", "compress", "decompress"):
                sources += sorted(p for p in (_zstd_folder() / part).iterdir() if p.suffix == ".c")
            sources += sorted((_zstd_folder() / "decompress").glob("*.S"))

        def compile_one(source: Path) -> str:
            target = str(Path(folder, f"{source.parent.name}-{source.stem}.o"))
            _call([*compiler, *flags, "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count()) as executor:
            objects = list(executor.map(compile_one, sources))
        library = str(Path(folder, "loops.so"))
        _call([*compiler, "-shared", "-pthread", *objects, "-o", library])
        return ffi.dlopen(library)


def _zstd_folder() -> Path:
    folder = ZSTD / "lib"
    if not (folder / "zstd.h").exists():
        raise NotRun("the source of zstd is not here; run native/fetch_zstd.py")
    return folder


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRun(f"{command[0]} failed: {done.stderr.strip()[-500:]}")


def _only_if_worth_it(setting: Any) -> None:
    if setting.smoke and setting.codec == "zstd":
        raise NotRun("compiling zstd takes longer than a smoke run may")


# ---- dense --------------------------------------------------------------------------------------


class _Gather(Contender):
    """One C call a batch, into a fresh array or into the same one again."""

    def __init__(self, name: str, library: Any, threads: int, setting: Any, reuse: bool) -> None:
        super().__init__(name)
        self.library = library
        self.pool = library.pool_new(threads, LEVEL)
        self.records = np.asarray(setting.records)
        self.width = self.records[0].nbytes
        self.shape = (setting.batch, *self.records.shape[1:])
        self.out = np.empty(self.shape, np.uint8) if reuse else None

    def __call__(self, plan: np.ndarray) -> np.ndarray:
        out = np.empty(self.shape, np.uint8) if self.out is None else self.out
        if self.read(ffi.from_buffer("int64_t[]", plan), len(plan), ffi.from_buffer(out)):
            raise WrongResult("the loop reports an error")
        return out

    def read(self, indices: Any, count: int, target: Any) -> int:
        source = ffi.from_buffer(self.records)
        return int(self.library.copy_gather(self.pool, source, self.width, indices, count, target))

    def close(self) -> None:
        self.library.pool_free(self.pool)


class _Decode(_Gather):
    """Decodes frames of a mapped file that has one behind the other."""

    def __init__(self, *arguments: Any, frames: tuple[Any, np.ndarray]) -> None:
        super().__init__(*arguments)
        self.mapping, self.offsets = frames

    def read(self, indices: Any, count: int, target: Any) -> int:
        source = ffi.from_buffer(self.mapping)
        offsets = ffi.from_buffer("uint64_t[]", self.offsets)
        return int(
            self.library.zstd_gather(self.pool, source, offsets, self.width, indices, count, target)
        )


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Copy or decode, into fresh arrays and reused ones, with one thread and with all."""
    _only_if_worth_it(setting)
    library = _library(setting.codec == "zstd")
    frames = _frames(setting, library) if setting.codec == "zstd" else None
    kind = "memcpy" if frames is None else "libzstd"
    for reuse in (False, True):
        for name, threads in thread_choices().items():
            label = f"C {kind}{' out=' if reuse else ''}, {name}"
            if frames is None:
                yield _Gather(label, library, threads, setting, reuse)
            else:
                yield _Decode(label, library, threads, setting, reuse, frames=frames)


def _frames(setting: Any, library: Any) -> tuple[mmap.mmap, np.ndarray]:
    """Compress each record into a file, and map it."""
    path = setting.folder / "frames"
    records = np.asarray(setting.records)
    encoder = _Encoder("", library, 1, setting)
    sizes = np.empty(len(records), np.uint64)
    try:
        with path.open("wb") as file:
            step = max(1, 2**25 // encoder.width)
            for start in range(0, len(records), step):
                frames, part_sizes = encoder(slice(start, min(start + step, len(records))))
                sizes[start : start + step] = part_sizes
                for position, size in enumerate(part_sizes.tolist()):
                    file.write(frames[position, :size])
    finally:
        encoder.close()
    offsets = np.zeros(len(records) + 1, np.uint64)
    np.cumsum(sizes, out=offsets[1:])
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), offsets


# ---- append -------------------------------------------------------------------------------------


class _Encoder(Contender):
    """Compresses records into memory; nothing is written."""

    def __init__(self, name: str, library: Any, threads: int, setting: Any) -> None:
        super().__init__(name)
        self.library = library
        self.pool = library.pool_new(threads, LEVEL)
        self.records = np.asarray(setting.records)
        self.width = self.records[0].nbytes
        self.bound = library.zstd_bound(self.width)
        self.target = np.empty((0, self.bound), np.uint8)

    def __call__(self, plan: slice) -> tuple[np.ndarray, np.ndarray]:
        source = self.records[plan]
        if len(self.target) < len(source):
            self.target = np.empty((len(source), self.bound), np.uint8)
        sizes = np.empty(len(source), np.uint64)
        failed = self.library.zstd_append(
            self.pool,
            ffi.from_buffer(source),
            self.width,
            len(source),
            ffi.from_buffer(self.target),
            ffi.from_buffer("uint64_t[]", sizes),
        )
        if failed:
            raise WrongResult("the loop reports an error")
        return self.target, sizes

    def close(self) -> None:
        self.library.pool_free(self.pool)


class _Append(_Encoder):
    """The encoder as a contender of append: validated by decoding what it made."""

    def __call__(self, plan: slice) -> np.ndarray:
        frames, sizes = super().__call__(plan)
        count = len(sizes)
        packed = np.concatenate(
            [frames[position, :size] for position, size in enumerate(sizes.tolist())]
        )
        offsets = np.zeros(count + 1, np.uint64)
        np.cumsum(sizes, out=offsets[1:])
        out = np.empty((count, *self.records.shape[1:]), np.uint8)
        failed = self.library.zstd_gather(
            self.pool,
            ffi.from_buffer(packed),
            ffi.from_buffer("uint64_t[]", offsets),
            self.width,
            ffi.from_buffer("int64_t[]", np.arange(count)),
            count,
            ffi.from_buffer(out),
        )
        if failed:
            raise WrongResult("the frames cannot be decoded")
        return out

    def seconds(self, plans: Sequence[slice]) -> float:
        begin = perf_counter()
        for plan in plans:
            super().__call__(plan)
        return perf_counter() - begin


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Compress in memory, with one thread and with all."""
    if setting.codec != "zstd":
        return
    _only_if_worth_it(setting)
    library = _library(True)
    for name, threads in thread_choices().items():
        yield _Append(f"C libzstd, {name}", library, threads, setting)
