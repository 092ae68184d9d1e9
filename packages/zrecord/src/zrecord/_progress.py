"""Progress on a terminal: rich's bar where rich is installed, else one line that is rewritten."""

from __future__ import annotations

import sys
import time
from typing import Any

_INTERVAL = 0.1  # seconds between two writes


class ProgressLine:
    """Shows how far a command is; silent where standard error is no terminal.

    Parameters
    ----------
    label : str
        What is going on.
    total : int
        For `advance`; `show` brings its own.
    """

    def __init__(self, label: str, total: int = 0) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._shown = 0.0
        self._bar: Any = None
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> ProgressLine:
        if self._terminal:
            try:
                from rich.console import Console  # type: ignore[import-not-found,unused-ignore]
                from rich.progress import Progress  # type: ignore[import-not-found,unused-ignore]
            except ImportError:
                return self
            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total or None)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._terminal and self._shown:
            sys.stderr.write("\r\x1b[K")

    def show(self, done: int, total: int) -> None:
        """Show `done` of `total`."""
        self._done, self._total = done, total
        now = time.monotonic()
        if not self._terminal or now - self._shown < _INTERVAL:
            return
        self._shown = now
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        else:
            share = 100 * done // max(1, total)
            sys.stderr.write(f"\r{self._label} {min(share, 100)}%\x1b[K")
            sys.stderr.flush()

    def advance(self, count: int) -> None:
        """Show `count` more than before."""
        self.show(self._done + count, self._total)
