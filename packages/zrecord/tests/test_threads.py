"""Any method from any thread; writes from inside a write; how many threads a call uses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zrecord
from conftest import RECORDS, ROWS, assert_same, assert_same_list
from zrecord import DenseStore, RaggedStore, StoreClosed, ZrecordError, _threads

TIMEOUT = 60


# ---- interrupts --------------------------------------------------------------------------------

# Another process interrupts: its signals come between any two instructions. It sends the next one
# when the last was dealt with.
INTERRUPTER = """
import os, random, signal, sys, time
while os.read(0, 1):
    time.sleep(random.random() * 0.001)
    os.kill(int(sys.argv[1]), signal.SIGINT)
"""
INTERRUPTED = """
import os, signal, subprocess, sys, threading, time
import numpy as np
import zrecord

PACKAGE = os.path.dirname(zrecord.__file__)
store = zrecord.DenseStore(sys.argv[1], np.int64, (), "raw")
interrupts = 0
def handler(number, frame):
    global interrupts
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            interrupts += 1
            raise KeyboardInterrupt
        frame = frame.f_back
    go_on()
signal.signal(signal.SIGINT, handler)
command = [sys.executable, "-c", sys.argv[2], str(os.getpid())]
interrupter = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
def go_on():
    try:
        os.write(interrupter.stdin.fileno(), b"x")
    except BrokenPipeError:
        pass
go_on()
returned = tried = 0
deadline = time.monotonic() + 20
while interrupts < 300 and time.monotonic() < deadline:
    tried += 1
    try:
        store.append(np.array([tried]))
        returned += 1
    except KeyboardInterrupt:
        go_on()
interrupter.kill()
interrupter.wait()
assert interrupts >= 20, interrupts
# A lock left behind would be the main thread's: another one meets it.
other = threading.Thread(target=store.append, args=(np.array([-1]),), daemon=True)
other.start()
other.join(10)
assert not other.is_alive()
assert returned < len(store) <= tried + 1, (returned, len(store), tried)
found = store[:]
assert (np.diff(found[:-1]) > 0).all() and found[-1] == -1
store.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill sends no SIGINT on Windows")
def test_an_interrupt_leaves_no_store_locked(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "s"), INTERRUPTER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr


# ---- writes from inside a write -----------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.append([RECORDS[0]]),
        lambda s: s.append(iter([])),
        lambda s: s.sync(),
        lambda s: s.delete(0),
        lambda s: s.compact(),
        lambda s: s.close(),
    ],
    ids=["append", "append nothing", "sync", "delete", "compact", "close"],
)
def test_an_iterable_that_writes_to_its_store_is_refused_not_hung(ragged, write):
    def records():
        yield RECORDS[0]
        write(ragged)
        yield RECORDS[0]

    with pytest.raises(ZrecordError, match="from inside another call"):
        ragged.append(records())
    assert not ragged.closed
    assert_same_list(ragged[:], RECORDS)
    assert ragged.append(RECORDS[:1]) == 6


def test_an_iterable_may_read_its_store_and_catch_the_refusal(ragged):
    def records():
        yield from ragged
        with pytest.raises(ZrecordError):
            ragged.sync()
        assert len(ragged) == 6
        assert ragged.verify().ok
        yield ragged[2]

    assert ragged.append(records()) == 6
    assert_same_list(ragged[:], [*RECORDS, *RECORDS, RECORDS[2]])


def test_an_iterable_may_write_to_another_store(ragged, dense):
    def records():
        dense.append(ROWS)
        yield RECORDS[0]

    ragged.append(records())
    assert len(dense) == 20


def test_writes_of_other_threads_wait_for_an_append(ragged):
    inside, go_on = threading.Event(), threading.Event()

    def records():
        yield RECORDS[0]
        inside.set()
        assert go_on.wait(TIMEOUT)
        yield RECORDS[1]

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ragged.append, records())
        assert inside.wait(TIMEOUT)
        others = [pool.submit(ragged.append, [RECORDS[2]]), pool.submit(ragged.sync)]
        # Reading goes on meanwhile, and does not see the append.
        assert_same_list(ragged[:], RECORDS)
        assert not any(other.done() for other in others)
        go_on.set()
        assert first.result(TIMEOUT) == 6
        assert others[0].result(TIMEOUT) == 8
        others[1].result(TIMEOUT)
    assert_same_list(ragged[6:], [RECORDS[0], RECORDS[1], RECORDS[2]])


def test_close_waits_for_an_append_of_another_thread(ragged):
    inside, go_on = threading.Event(), threading.Event()

    def records():
        inside.set()
        assert go_on.wait(TIMEOUT)
        yield RECORDS[0]

    with ThreadPoolExecutor(2) as pool:
        append = pool.submit(ragged.append, records())
        assert inside.wait(TIMEOUT)
        close = pool.submit(ragged.close)
        go_on.set()
        assert append.result(TIMEOUT) == 6
        close.result(TIMEOUT)
    assert ragged.closed
    with RaggedStore(ragged.path, mode="r") as again:
        assert len(again) == 7


# ---- any method from any thread -----------------------------------------------------------------


def test_threads_read_beside_one_that_appends(tmp_path, codec, codec_options):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (200, 300), dtype="u1")
    records = [rows[i, : 1 + i] for i in range(200)]
    with (
        DenseStore(tmp_path / "d", "u1", (300,), **codec_options) as dense,
        RaggedStore(tmp_path / "r", "u1", **codec_options) as ragged,
        ThreadPoolExecutor(4) as pool,
    ):
        dense.append(rows)
        ragged.append(records)
        done = threading.Event()

        def read(seed: int) -> int:
            mine = np.random.default_rng(seed)
            rounds = 0
            while not done.is_set() or rounds == 0:
                indices = mine.integers(0, min(len(dense), len(ragged)), 20)
                assert_same(dense[indices], rows[indices % 200])
                assert_same_list(ragged[indices], [records[i % 200] for i in indices])
                dense.stats(), ragged.lengths(indices), repr(dense), dense.will_need(indices)
                rounds += 1
            return rounds

        readers = [pool.submit(read, seed) for seed in range(4)]
        for step in range(8):
            dense.append(rows)
            ragged.append(iter(records))
            if step % 4 == 0:
                dense.sync()
                ragged.sync()
        done.set()
        assert all(reader.result(TIMEOUT) > 0 for reader in readers)
        assert len(dense) == len(ragged) == 1800
        assert dense.verify().ok
        assert ragged.verify().ok


def test_threads_read_beside_one_that_deletes_and_compacts(tmp_path):
    records = [np.full(1 + i % 7, i, np.int32) for i in range(500)]
    with RaggedStore(tmp_path / "r", "i4") as store, ThreadPoolExecutor(3) as pool:
        store.append(records)
        done = threading.Event()

        def read(seed: int) -> None:
            mine = np.random.default_rng(seed)
            while not done.is_set():
                for record in store[mine.integers(0, 100, 30)]:
                    # Whatever moved, each record is one of those that were appended, whole.
                    assert_same(record, records[record[0]])

        readers = [pool.submit(read, seed) for seed in range(3)]
        for _ in range(10):
            store.delete([5, 17, 99])
            store.append(records[:3])
            store.compact()
        done.set()
        for reader in readers:
            reader.result(TIMEOUT)
        assert len(store) == 500
        assert store.verify().ok


def test_close_beside_threads_that_read(tmp_path):
    for _ in range(10):
        store = DenseStore(tmp_path / "s", "u1", (1000,), "raw")
        store.append(np.ones((300, 1000), "u1"))

        def read(store=store) -> int:
            try:
                while True:
                    assert store[:].all()
            except StoreClosed:
                return 1

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(4)]
            store.close()
            assert sum(reader.result(TIMEOUT) for reader in readers) == 4


def test_many_threads_append_each_batch_whole(tmp_path):
    with DenseStore(tmp_path / "s", "i8", ()) as store:

        def append(value: int) -> int:
            return store.append(np.full(value % 5 + 1, value))

        with ThreadPoolExecutor(8) as pool:
            firsts = list(pool.map(append, range(200)))
        for value, first in enumerate(firsts):
            assert (store[first : first + value % 5 + 1] == value).all()
        assert len(store) == sum(value % 5 + 1 for value in range(200))


# ---- how many threads ---------------------------------------------------------------------------


def test_set_and_get():
    before = zrecord.get_num_threads()
    assert before >= 1
    try:
        for count in (1, 2, np.int64(3), 1024):
            zrecord.set_num_threads(count)
            assert zrecord.get_num_threads() == count
        for wrong in (0, -1, 1025, 10**30):
            with pytest.raises(ValueError, match="1 to 1024"):
                zrecord.set_num_threads(wrong)
        for wrong in (1.0, "2", None, True):
            with pytest.raises(TypeError):
                zrecord.set_num_threads(wrong)
        assert zrecord.get_num_threads() == 1024
    finally:
        zrecord.set_num_threads(before)


@pytest.fixture
def set_threads():
    before = zrecord.get_num_threads()
    yield zrecord.set_num_threads
    zrecord.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_number_of_threads_changes_no_result(
    tmp_path, count, codec, codec_options, set_threads
):
    rows = np.random.default_rng(1).integers(0, 9, (300, 5000), dtype="u2")
    set_threads(count)
    with DenseStore(tmp_path / "s", "u2", (5000,), **codec_options) as store:
        store.append(rows)
        indices = np.random.default_rng(2).integers(0, 300, 1000)
        assert_same(store[indices], rows[indices])


def test_raw_records_lie_in_order_whatever_threads_wrote_them(tmp_path, set_threads):
    # Gathers that need no table entry build on it.
    records = np.random.default_rng(3).integers(0, 256, (3000, 5000), dtype=np.uint8)
    set_threads(4)
    with DenseStore(tmp_path / "s", np.uint8, (5000,), "raw") as store:
        store.append(records[:1])
        store.append(records[1:])
    (chunk,) = (tmp_path / "s").glob("*.chunk")
    assert chunk.read_bytes() == records.tobytes()


def test_the_environment_variable(monkeypatch):
    before = zrecord.get_num_threads()
    try:
        monkeypatch.setenv("ZRECORD_NUM_THREADS", " 3 ")
        _threads.configure_threads()
        assert zrecord.get_num_threads() == 3
        for nothing in ("", "  "):
            monkeypatch.setenv("ZRECORD_NUM_THREADS", nothing)
            _threads.configure_threads()
            assert zrecord.get_num_threads() == _threads._default_threads()
        for wrong in ("0", "many", "2.5", "1025", "-1"):
            monkeypatch.setenv("ZRECORD_NUM_THREADS", wrong)
            with pytest.raises(ValueError, match=f"ZRECORD_NUM_THREADS is '{wrong}'"):
                _threads.configure_threads()
        assert zrecord.get_num_threads() == _threads._default_threads()
    finally:
        zrecord.set_num_threads(before)


def test_the_environment_variable_is_read_at_import():
    started = subprocess.run(
        [sys.executable, "-c", "import zrecord; print(zrecord.get_num_threads())"],
        env={**os.environ, "ZRECORD_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
    )
    assert started.stdout == "3\n"


@pytest.mark.parametrize(
    ("cpus", "quota", "count"),
    [
        (1, float("inf"), 1),
        (2, float("inf"), 2),
        (3, float("inf"), 3),
        (4, float("inf"), 3),
        (64, float("inf"), 63),
        (64, 2.0, 2),
        (64, 1.5, 2),
        (64, 0.1, 1),
        (64, 8.0, 7),
        (2, 16.0, 2),
    ],
)
def test_the_default_leaves_one_cpu_free_from_four_up(monkeypatch, cpus, quota, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)), raising=False)
    monkeypatch.setattr(_threads, "_cgroup_quota", lambda: quota)
    assert _threads._default_threads() == count


def test_the_quota_of_a_control_group(tmp_path):
    groups = tmp_path / "cgroup"
    root = tmp_path / "fs"
    (root / "a" / "b").mkdir(parents=True)

    def quota() -> float:
        return _threads._cgroup_quota(str(groups), str(root))

    assert quota() == float("inf")
    groups.write_text("0::/a/b\n")
    assert quota() == float("inf")
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert quota() == float("inf")
    (root / "a" / "cpu.max").write_text("250000 100000\n")
    assert quota() == 2.5
    (root / "a" / "b" / "cpu.max").write_text("50000 100000\n")
    assert quota() == 0.5
    (root / "a" / "b" / "cpu.max").write_text("nonsense\n")
    assert quota() == 2.5

    groups.write_text("4:memory:/x\n3:cpu,cpuacct:/job\n")
    assert quota() == float("inf")
    (root / "cpu" / "job").mkdir(parents=True)
    (root / "cpu" / "job" / "cpu.cfs_quota_us").write_text("300000\n")
    (root / "cpu" / "job" / "cpu.cfs_period_us").write_text("100000\n")
    assert quota() == 3.0
    (root / "cpu" / "job" / "cpu.cfs_quota_us").write_text("-1\n")
    assert quota() == float("inf")
