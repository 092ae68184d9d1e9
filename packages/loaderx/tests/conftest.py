"""A watchdog around every test, a check for threads left behind, and a way to run scripts."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

WATCHDOG_SECONDS = 120
BOUNDED_SECONDS = 5.0
SCRIPT_SECONDS = 60


def pytest_configure(config: pytest.Config) -> None:
    # A shell lets what it runs in the background ignore interrupts, and so do its children then.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "thread_unsafe(reason): not for pytest-run-parallel")
    for warning in ("PytestUnhandledThreadExceptionWarning", "PytestUnraisableExceptionWarning"):
        config.addinivalue_line("filterwarnings", f"error::pytest.{warning}")


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("loaderx-")]


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """End the whole run with every thread's stack if a test hangs; find threads left behind."""
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
    yield
    deadline = time.monotonic() + BOUNDED_SECONDS
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.001)
        gc.collect()  # an error and its traceback may hold a loader in a cycle
    left = loader_threads()
    faulthandler.cancel_dump_traceback_later()
    assert not left, f"threads left behind: {left}"


@pytest.fixture
def bounded() -> Callable[..., Any]:
    """Call a function in a thread; return its result, raise its error, or fail if it hangs."""

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        outcome: dict[str, Any] = {}

        def target() -> None:
            try:
                outcome["result"] = function(*arguments)
            except BaseException as error:
                outcome["error"] = error

        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        thread.join(BOUNDED_SECONDS)
        if thread.is_alive():
            frame = sys._current_frames().get(thread.ident or 0)
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
            pytest.fail(f"{function} still waits after {BOUNDED_SECONDS} s at {where}")
        if "error" in outcome:
            raise outcome["error"]
        return outcome["result"]

    return call


@pytest.fixture
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run a program in a fresh interpreter and return what it printed; it must end by itself."""

    def run(source: str, *, returncode: int | None = 0, **environment: str) -> Any:
        folder = tmp_path_factory.mktemp("script")
        path = folder / "program.py"
        path.write_text(textwrap.dedent(source))
        finished = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(path)],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=SCRIPT_SECONDS,
            check=False,
        )
        if returncode is not None:
            assert finished.returncode == returncode, finished.stdout + finished.stderr
        return finished

    return run
