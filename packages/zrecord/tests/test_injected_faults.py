"""Failures of the system that only an injector can bring about: strace answers in its place."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROWS, assert_same
from zrecord import DenseStore

HEAD = """
import json, sys
import numpy as np
import zrecord
from zrecord import DenseStore

def outcome(call):
    try:
        result = call()
    except Exception as error:
        names = [c.__name__ for c in type(error).__mro__]
        return [names, getattr(error, "errno", None), getattr(error, "filename", None), str(error)]
    return np.asarray(result).tolist()

def say(*values):
    print(json.dumps(values), flush=True)

path = sys.argv[1]
"""


class _Injected:
    """A program whose system calls are answered by strace."""

    def __init__(
        self, rule: str, program: str, *arguments: object, file: Path | None = None
    ) -> None:
        call = rule.partition(":")[0]
        self._process = subprocess.Popen(
            [
                *("strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={rule}"),
                *(() if file is None else ("-P", str(file))),
                *(sys.executable, "-c", HEAD + program, *map(str, arguments)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self):
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(self._process.stderr.read())
        return json.loads(line)

    def go_on(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        _, messages = self._process.communicate(timeout=60)
        assert (self._process.returncode, messages) == (0, "")


@pytest.fixture
def inject():
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    probe = ["strace", "-o", "/dev/null", "-e", "inject=getppid:error=EIO", "true"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("strace may not trace or inject here")
    return _Injected


def test_a_reader_without_lock_notices_that_records_moved(tmp_path, inject):
    with DenseStore(tmp_path / "s", "f4", (2, 3), "raw") as store:
        store.append(ROWS)
        reader = inject(
            "flock:error=ENOLCK",
            """
store = DenseStore(path, mode="r")
say(outcome(lambda: store[:]))
sys.stdin.readline()
say(outcome(lambda: store[:]), outcome(store.refresh), outcome(lambda: store[:]))
store.close()
""",
            store.path,
        )
        assert reader.hear() == [ROWS.tolist()]
        store.delete(0)
        reader.go_on()
        changed, length, records = reader.hear()
        assert changed[0][:2] == ["StoreChanged", "ZrecordError"]
        assert "refresh" in changed[3]
        assert length == 9
        assert records == store[:].tolist()
        reader.end()


def test_after_a_failed_fsync_the_handle_only_reads(tmp_path, inject):
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(ROWS)
    writer = inject(
        "fsync,fdatasync:error=EIO",
        """
store = DenseStore(path)
rows = store[:]
say(store.append(rows), outcome(store.sync), outcome(store.sync))
say(outcome(lambda: store.append(rows)), outcome(lambda: store.delete(0)))
say(outcome(lambda: store[:]), len(store), outcome(store.close), store.closed)
""",
        tmp_path / "s",
        file=tmp_path / "s" / "0.chunk",
    )
    first, failed, again = writer.hear()
    assert first == 10
    assert failed[0][0] == "OSError"
    assert failed[1] == 5
    assert failed[2].startswith(str(tmp_path / "s"))
    for refused in (again, *writer.hear()):
        assert refused[0][:3] == ["StoreFailed", "ZrecordError", "OSError"]
        assert refused[1] == 5
    rows, length, closing, closed = writer.hear()
    assert rows == np.concatenate([ROWS, ROWS]).tolist()
    assert length == 20
    assert "OSError" in closing[0]
    assert closed
    writer.end()
    with DenseStore(tmp_path / "s") as store:
        assert len(store) in (10, 20)
        assert_same(store[:10], ROWS)
        assert store.verify().ok


@pytest.mark.parametrize("error", ["EIO", "EDQUOT", "ENOSPC"])
def test_a_failed_write_leaves_the_store_as_it_was(tmp_path, inject, error):
    with DenseStore(tmp_path / "s", "f4", (2, 3), "raw") as store:
        store.append(ROWS)
    writer = inject(
        f"pwrite64,pwritev,pwritev2:error={error}:when=1",
        """
store = DenseStore(path)
rows = store[:]
# The first write of each thread fails, so it takes some tries until all have had theirs.
outcomes = []
while not outcomes or outcomes[-1] != 10:
    assert len(store) == 10
    outcomes.append(outcome(lambda: store.append(rows)))
say(outcomes)
store.close()
""",
        tmp_path / "s",
    )
    (outcomes,) = writer.hear()
    assert len(outcomes) > 1
    for failed in outcomes[:-1]:
        assert "OSError" in failed[0]
        assert failed[1] == getattr(errno, error)
        assert failed[2].startswith(str(tmp_path / "s"))
    writer.end()
    with DenseStore(tmp_path / "s", mode="r") as store:
        assert_same(store[:], np.concatenate([ROWS, ROWS]))
        assert store.verify().ok


def test_interrupted_calls_are_taken_up_again(tmp_path, inject):
    writer = inject(
        "pwrite64,pwritev,flock:error=EINTR:when=1+2",
        """
with DenseStore(path, "i8", ()) as store:
    store.append(np.arange(1000))
    store.sync()
    say(outcome(lambda: store[::100]))
""",
        tmp_path / "s",
    )
    assert writer.hear() == [list(range(0, 1000, 100))]
    writer.end()
    with DenseStore(tmp_path / "s", mode="r") as store:
        assert_same(store[:], np.arange(1000))
