"""loaderx 1.7, the version that this project began from, as a black box.

It lives in an environment of its own inside this one, and in a process of its own, which times
itself (loaderx_1_7_process.py); results come back as files and are checked like any other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import Contender, NotRun

REQUIREMENT = "loaderx==1.7.2"


def _python() -> Path:
    """Return the interpreter of its environment, made when it is first asked for."""
    if sys.prefix == sys.base_prefix:
        raise NotRun("it is installed into a folder of this environment, which is none")
    folder = Path(sys.prefix, "loaderx-1.7")
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done = folder / "installed"
    if not done.exists():
        venv.create(folder, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", REQUIREMENT]
        installed = subprocess.run(command, capture_output=True, text=True, check=False)
        if installed.returncode:
            raise NotRun(f"{REQUIREMENT} cannot be installed: {installed.stderr.strip()[-300:]}")
        done.touch()
    return python


class _Process(Contender):
    """A contender in another process: a line of JSON asks, a line of JSON answers."""

    def __init__(self, name: str, folder: Path, **built: Any) -> None:
        super().__init__(name)
        self.folder = folder
        script = Path(__file__).with_name("loaderx_1_7_process.py")
        self.process = subprocess.Popen(
            [str(_python()), "-I", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._ask("build", **built)
        except BaseException:
            self.close()
            raise

    def _ask(self, what: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        question = {name: _plain(value) for name, value in arguments.items()}
        self.process.stdin.write(json.dumps({"ask": what, **question}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.name} ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def _give(self, plans: Sequence[Any]) -> Path:
        path = self.folder / "plans.npy"
        np.save(path, np.array([_numbers(plan) for plan in plans]))
        return path

    def __call__(self, plan: Any) -> Any:
        result = self.folder / "result.npz"
        is_list = self._ask("result", plans=self._give([plan]), result=result)
        with np.load(result) as loaded:
            arrays = [loaded[name] for name in loaded.files]
        return arrays if is_list else arrays[0]

    def prepare(self) -> None:
        self._ask("prepare")

    def seconds(self, plans: Sequence[Any]) -> float:
        return float(self._ask("seconds", plans=self._give(plans)))

    def close(self) -> None:
        # A forked worker of another contender may hold the pipe open: its end is no sign.
        assert self.process.stdin is not None
        try:
            self.process.stdin.write('{"ask": "end"}\n')
            self.process.stdin.close()
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


class _Endless(_Process):
    checked_max = 32


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _numbers(plan: Any) -> Any:
    return [plan.start, plan.stop] if isinstance(plan, slice) else plan


def _folder(setting: Any) -> Path:
    folder: Path = setting.folder / "loaderx-1.7"
    folder.mkdir(exist_ok=True)
    return folder


def dense_contenders(setting: Any) -> Iterator[Contender]:
    """Gather from a dense store."""
    folder = _folder(setting)
    yield _Process(
        "loaderx 1.7", folder, kind="dense", path=folder / "store", source=setting.source,
        codec=setting.codec,
    )  # fmt: skip


def ragged_contenders(setting: Any) -> Iterator[Contender]:
    """Gather a list from a ragged store."""
    folder = _folder(setting)
    np.save(folder / "values.npy", setting.values)
    np.save(folder / "offsets.npy", setting.offsets)
    yield _Process(
        "loaderx 1.7, list", folder, kind="ragged", path=folder / "store",
        source=folder / "values.npy", offsets=folder / "offsets.npy", codec=setting.codec,
    )  # fmt: skip


def append_contenders(setting: Any) -> Iterator[Contender]:
    """Append arrays to a new dense store."""
    folder = _folder(setting)
    np.save(folder / "records.npy", setting.records)
    yield _Process(
        "loaderx 1.7", folder, kind="append", path=folder / "store",
        source=folder / "records.npy", codec=setting.codec,
    )  # fmt: skip


def open_contenders(setting: Any) -> Iterator[Contender]:
    """Open a dense store; it knows one mode."""
    folder = _folder(setting)
    yield _Process(
        "loaderx 1.7", folder, kind="open", path=folder / "store", source=setting.source,
        codec="raw",
    )  # fmt: skip


def sampler_contenders(setting: Any) -> Iterator[Contender]:
    """Draw by `next`."""
    yield _Endless(
        "loaderx 1.7 next", _folder(setting), kind="sampler", mode=setting.mode,
        length=setting.length, batch=setting.batch, seed=setting.seed,
    )  # fmt: skip


def loader_contenders(setting: Any) -> Iterator[Contender]:
    """Load from a dense store, with each number of workers that it takes."""
    # It opens a store once only, so that each has one of its own.
    folder = _folder(setting)
    for workers in setting.workers:
        if workers:
            yield _Endless(
                f"loaderx 1.7, {workers} workers", folder, kind="loader",
                path=folder / f"store-{workers}", source=setting.source, codec=setting.codec,
                batch=setting.batch, workers=workers, prefetch=setting.prefetch,
                augments=setting.augments,
            )  # fmt: skip
