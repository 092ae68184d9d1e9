"""What the tests let other processes do; importable, because spawned workers import it by name."""

from __future__ import annotations

import hashlib
import os
import signal

import numpy as np
from zrecord import DenseStore, ForkedHandle, RaggedStore


def digest(store) -> str:
    """A hash of every record of a store, read one way or the other."""
    result = hashlib.sha256()
    for record in store[:]:
        result.update(repr(record.shape).encode() + record.tobytes())
    return result.hexdigest()


def digest_many(store, rounds: int) -> set[str]:
    return {digest(store) for _ in range(rounds)}


def _outcome(call) -> str:
    try:
        call()
    except ForkedHandle as error:
        return type(error).__name__
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def writes_are_refused(store) -> list[str]:
    """Try every write of an inherited store; return the errors' names."""
    batch = store[:1] if isinstance(store, DenseStore) else list(store[:1])
    writes = (lambda: store.append(batch), lambda: store.delete(0), store.sync, store.compact)
    return [_outcome(write) for write in writes]


def append_until_killed(path: str, pipe) -> None:
    """Append batches of growing size and report each first index."""
    with RaggedStore(path, np.int32, "raw") as store:
        for batch in range(10_000):
            first = store.append(
                np.full(1 + i % 5, batch * 1000 + i, np.int32) for i in range(1 + batch % 7)
            )
            pipe.send((batch, first))


def append_then_die(path: str, inside: bool) -> None:
    """Be killed right after an append, or in the middle of one."""
    store = RaggedStore(path, np.int32)

    def records():
        yield np.arange(3, dtype=np.int32)
        if inside:
            os.kill(os.getpid(), signal.SIGKILL)

    store.append(records())
    os.kill(os.getpid(), signal.SIGKILL)
