"""Other processes: pickling, fork, spawn and forkserver, several readers, kill -9."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import worker_tasks
from conftest import RECORDS, ROWS, assert_same, assert_same_list
from zrecord import DenseStore, RaggedStore, StoreBusy

METHODS = multiprocessing.get_all_start_methods()
TIMEOUT = 60


def _run(method: str, count: int, task, *arguments):
    """Run a task in several processes at once; return their results."""
    context = multiprocessing.get_context(method)
    with warnings.catch_warnings():
        # Python warns where a process with threads forks: that is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        with context.Pool(count) as pool:
            results = [pool.apply_async(task, arguments) for _ in range(count)]
            return [result.get(TIMEOUT) for result in results]


# ---- pickling -----------------------------------------------------------------------------------


def test_a_pickled_store_opens_for_reading_by_absolute_path(dense, ragged, monkeypatch, tmp_path):
    for store in (dense, ragged):
        again = pickle.loads(pickle.dumps(store))
        assert type(again) is type(store)
        assert again.mode == "r"
        assert os.path.isabs(again.path)
        assert again.dtype == store.dtype
        assert_same_list(list(again), list(store))
        again.close()
    monkeypatch.chdir(tmp_path)
    with DenseStore("dense", mode="r") as relative:
        pickled = pickle.dumps(relative)
    monkeypatch.chdir("/")
    with pickle.loads(pickled) as again:
        assert_same(again[:], ROWS)


def test_a_copied_store_is_a_reader(dense):
    for again in (copy.copy(dense), copy.deepcopy(dense)):
        assert again.mode == "r"
        assert_same(again[:], ROWS)
        again.close()


def test_a_pickled_store_that_is_gone_names_the_path(tmp_path):
    import shutil

    with DenseStore(tmp_path / "s", "f4", ()) as store:
        pickled = pickle.dumps(store)
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(FileNotFoundError, match="gone") as caught:
        pickle.loads(pickled)
    assert caught.value.filename == str(tmp_path / "s")


def test_pickling_keeps_the_checksum_mode(tmp_path):
    with DenseStore(tmp_path / "s", "f4", (), "raw", checksums="off") as store:
        store.append(np.ones(3, "f4"))
        with pickle.loads(pickle.dumps(store)) as again:
            assert again._handle.info().checksums == store._handle.info().checksums


@pytest.mark.parametrize("method", METHODS)
def test_workers_read_a_pickled_store(dense, ragged, method):
    for store in (dense, ragged):
        expected = worker_tasks.digest(store)
        results = _run(method, 2, worker_tasks.digest_many, store, 20)
        assert results == [{expected}] * 2


# ---- fork ---------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif("fork" not in METHODS, reason="this system does not fork")


def _in_child(task) -> tuple[int, bytes]:
    """Fork, run the task in the child, return (exit code, what it returned as bytes)."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            os.write(write, repr(task()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    parts = []
    while data := os.read(read, 65536):
        parts.append(data)
    os.close(read)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), b"".join(parts)


@needs_fork
def test_a_forked_child_reads_and_its_writes_are_refused(dense, ragged):
    for store in (dense, ragged):
        expected = worker_tasks.digest(store)
        code, result = _in_child(
            lambda store=store: (worker_tasks.digest(store), worker_tasks.writes_are_refused(store))
        )
        assert code == 0
        assert eval(result) == (expected, ["ForkedHandle"] * 4)
        # The parent still writes, and its lock still holds.
        store.append(ROWS if store is dense else RECORDS)
        with pytest.raises(StoreBusy):
            type(store)(store.path)


@needs_fork
def test_two_forked_children_gather_at_once_while_the_parent_appends(tmp_path):
    rows = np.random.default_rng(0).integers(0, 256, (500, 4096), dtype="u1")
    with DenseStore(tmp_path / "s", "u1", (4096,)) as store:
        store.append(rows)
        store[:]  # the pool of threads is running now
        context = multiprocessing.get_context("fork")
        queue = context.Queue()

        def child():
            same = all(np.array_equal(store[:500], rows) for _ in range(10))
            queue.put((same, worker_tasks.writes_are_refused(store)))
            store.close()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            children = [context.Process(target=child) for _ in range(2)]
            for process in children:
                process.start()
        for _ in range(10):
            store.append(rows)
        answers = [queue.get(timeout=TIMEOUT) for _ in children]
        for process in children:
            process.join(TIMEOUT)
        assert [process.exitcode for process in children] == [0, 0]
        assert answers == [(True, ["ForkedHandle"] * 4)] * 2
        assert len(store) == 5500
        assert_same(store[5000:], rows)
        assert store.verify().ok


@needs_fork
def test_a_child_that_closes_or_drops_its_copy_does_not_free_the_parents_lock(dense):
    def closes():
        dense.close()
        return dense.closed

    assert _in_child(closes) == (0, b"True")
    with pytest.raises(StoreBusy):
        DenseStore(dense.path)
    assert dense.append(ROWS) == 10


@needs_fork
def test_a_child_opens_the_store_once_the_parent_closed_it(tmp_path):
    store = DenseStore(tmp_path / "s", "f4", (2, 3))
    store.append(ROWS)
    store.close()

    def child():
        with DenseStore(tmp_path / "s") as mine:
            return mine.append(ROWS)

    assert _in_child(child) == (0, b"10")
    with DenseStore(tmp_path / "s", mode="r") as again:
        assert len(again) == 20


@needs_fork
def test_a_fork_while_another_thread_appends(ragged):
    import threading

    inside, go_on = threading.Event(), threading.Event()

    def records():
        yield RECORDS[0]
        inside.set()
        assert go_on.wait(TIMEOUT)

    thread = threading.Thread(target=lambda: ragged.append(records()))
    thread.start()
    assert inside.wait(TIMEOUT)
    code, result = _in_child(
        lambda: (len(ragged), worker_tasks.writes_are_refused(ragged), ragged.close())
    )
    go_on.set()
    thread.join(TIMEOUT)
    assert code == 0
    assert eval(result) == (6, ["ForkedHandle"] * 4, None)
    assert_same_list(ragged[:], [*RECORDS, RECORDS[0]])


@needs_fork
def test_forks_while_threads_gather_and_append(tmp_path):
    """Whatever lock another thread holds at the moment of the fork, the child does not wait."""
    import threading

    rows = np.random.default_rng(0).integers(0, 4, (400, 2048), dtype="u1")
    with DenseStore(tmp_path / "s", "u1", (2048,)) as store:
        store.append(rows)
        stop = threading.Event()

        def work(step) -> None:
            while not stop.is_set():
                step()

        steps = [lambda: store[:400], lambda: store.append(rows[:5]), store.sync, store.stats]
        threads = [threading.Thread(target=work, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        try:
            for _ in range(15):
                code, result = _in_child(lambda: np.array_equal(store[:400], rows))
                assert (code, result) == (0, b"True")
        finally:
            stop.set()
            for thread in threads:
                thread.join(TIMEOUT)
        assert store.verify().ok


# ---- kill -9 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
def test_kill_inside_and_between_appends(tmp_path, inside):
    path = str(tmp_path / "s")
    with RaggedStore(path, np.int32) as store:
        store.append(RECORDS)
    context = multiprocessing.get_context("spawn")
    for round_ in range(3):
        child = context.Process(target=worker_tasks.append_then_die, args=(path, inside))
        child.start()
        child.join(TIMEOUT)
        assert child.exitcode == -9
        kept = 0 if inside else round_ + 1
        with RaggedStore(path, mode="r") as store:
            assert_same_list(store[:], [*RECORDS, *[np.arange(3, dtype=np.int32)] * kept])
            assert store.verify().ok
    with RaggedStore(path) as store:
        assert store.append(RECORDS[:1]) == 6 + kept
        assert store.verify().ok


def test_kill_at_any_moment_keeps_what_was_acknowledged(tmp_path):
    context = multiprocessing.get_context("spawn")
    for number in range(3):
        path = str(tmp_path / str(number))
        receive, send = context.Pipe(False)
        child = context.Process(target=worker_tasks.append_until_killed, args=(path, send))
        child.start()
        send.close()
        acknowledged = {}
        for _ in range(20 + 30 * number):
            batch, first = receive.recv()
            acknowledged[batch] = first
        child.kill()
        try:
            while True:
                batch, first = receive.recv()
                acknowledged[batch] = first
        except EOFError:
            pass
        child.join(TIMEOUT)
        last = max(acknowledged)
        with RaggedStore(path) as store:
            length = acknowledged[last] + 1 + last % 7
            # The append in flight may be there as well: whole, or not at all.
            assert len(store) in (length, length + 1 + (last + 1) % 7)
            for batch, first in acknowledged.items():
                expected = [
                    np.full(1 + i % 5, batch * 1000 + i, np.int32) for i in range(1 + batch % 7)
                ]
                assert_same_list(store[first : first + len(expected)], expected)
            assert store.verify().ok


def test_nothing_is_left_outside_the_store(tmp_path):
    shm = "/dev/shm"
    if not os.path.isdir(shm):
        pytest.skip("this system has no /dev/shm")
    before = set(os.listdir(shm))
    program = (
        "import sys, os, numpy as np, zrecord\n"
        "s = zrecord.DenseStore(sys.argv[1], 'f4', (4,))\n"
        "s.append(np.ones((100, 4), 'f4')); s[:]\n"
        "os.kill(os.getpid(), 9)\n"
    )
    for _ in range(2):
        runs = [
            subprocess.Popen([sys.executable, "-c", program, str(tmp_path / f"s{i}")])
            for i in range(4)
        ]
        assert [run.wait(TIMEOUT) for run in runs] == [-9] * 4
    assert set(os.listdir(shm)) <= before
    for i in range(4):
        with DenseStore(tmp_path / f"s{i}") as store:
            assert len(store) == 200


def test_four_at_once_create_one_store(tmp_path):
    program = (
        "import sys, numpy as np, zrecord\n"
        "try:\n"
        "    with zrecord.DenseStore(sys.argv[1], 'f4', (4,)) as s:\n"
        "        s.append(np.ones((1, 4), 'f4')); print('wrote')\n"
        "except zrecord.StoreBusy: print('busy')\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    said = [run.communicate(timeout=TIMEOUT)[0].strip() for run in runs]
    assert set(said) <= {"wrote", "busy"}
    assert "wrote" in said
    with DenseStore(tmp_path / "s", mode="r") as store:
        assert len(store) == said.count("wrote")


def test_many_readers_and_one_writer(tmp_path):
    with DenseStore(tmp_path / "s", "i8", (8,)) as store:
        store.append(np.arange(80).reshape(10, 8))
        readers = [DenseStore(tmp_path / "s", mode="r") for _ in range(5)]
        lengths = [10] * 5
        for step in range(20):
            first = store.append(np.full((3, 8), step))
            for number, reader in enumerate(readers):
                if (step + number) % 3 == 0:
                    assert reader.refresh() == first + 3
                    assert (reader[first] == step).all()
                assert len(reader) >= lengths[number]
                lengths[number] = len(reader)
        for reader in readers:
            reader.close()


def test_small_files_read_while_they_are_written(tmp_path):
    """A reader that opens while the writer syncs all the time never sees half a file."""
    import threading

    with DenseStore(tmp_path / "s", "i8", ()) as store:
        stop = threading.Event()

        def write():
            while not stop.is_set():
                store.append(np.arange(3))
                store.sync()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            seen = 0
            for _ in range(200):
                with DenseStore(tmp_path / "s", mode="r") as reader:
                    assert len(reader) >= seen
                    seen = len(reader)
                    assert_same(reader[:], np.tile(np.arange(3), seen // 3))
        finally:
            stop.set()
            thread.join(TIMEOUT)
