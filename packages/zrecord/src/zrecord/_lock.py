"""A lock that an interrupt cannot leave behind locked."""

from __future__ import annotations

import sys
from _thread import RLock


class Lock(RLock):  # type: ignore[misc] # the stubs call it final
    """A re-entrant lock for ``with``, also where a signal handler raises on the way in.

    CPython 3.14 looks for signals between the call that takes a lock and the block whose end gives
    it back, where other versions do not. There it is taken by an instruction that is no call.
    """

    if sys.version_info[:2] == (3, 14):

        def __enter__(self, blocking: bool = True, timeout: float = -1) -> bool:
            # The calls are done before `map` is asked for its only item.
            (taken,) = map(self.acquire, (blocking,), (timeout,))
            return taken
