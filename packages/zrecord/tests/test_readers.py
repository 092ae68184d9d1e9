"""Readers beside a writer, on media that cannot be written, under another user, behind a delete."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import reader_tasks
from conftest import RECORDS, ROWS, assert_same, assert_same_list
from zrecord import DenseStore, RaggedStore, ReadOnlyStore, StoreBusy

TIMEOUT = 120
fcntl = pytest.importorskip("fcntl", reason="locks and permissions of POSIX systems")


@pytest.mark.parametrize("kind", ["dense", "ragged"])
def test_four_readers_follow_a_writer_that_is_killed_twice(tmp_path, kind):
    total = 10_000
    path = str(tmp_path / "s")
    reader_tasks.make(kind, path, "x").close()
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        readers = [
            pool.apply_async(reader_tasks.read, (kind, path, total, seed)) for seed in range(4)
        ]
        with reader_tasks.make(kind, path, "r") as watch:
            for kill_at in (total // 3, 2 * total // 3, None):
                writer = context.Process(target=reader_tasks.write, args=(kind, path, total))
                writer.start()
                if kill_at is None:
                    writer.join(TIMEOUT)
                    assert writer.exitcode == 0
                    continue
                while watch.refresh() < kill_at and writer.is_alive():
                    pass
                before = watch.refresh()
                writer.kill()
                writer.join(TIMEOUT)
                assert writer.exitcode == -9
                assert watch.refresh() >= before
        assert [reader.get(TIMEOUT) for reader in readers] == [""] * 4
    with reader_tasks.make(kind, path, "r") as store:
        assert len(store) == total
        for index in range(0, total, 997):
            assert_same(store[index], reader_tasks.record(kind, index))


# ---- without permission to write ----------------------------------------------------------------

READ = """
import sys, numpy as np, zrecord
with zrecord.DenseStore(sys.argv[1], mode="r") as store:
    assert store.verify().ok and len(store) == 10
    assert store[:].tobytes() == np.arange(60, dtype=np.float32).tobytes()
    assert store.refresh() == 10
try:
    zrecord.DenseStore(sys.argv[1])
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def test_a_read_only_mount(tmp_path):
    store, mount = tmp_path / "store", tmp_path / "mount"
    with DenseStore(store, np.float32, (2, 3)) as writer:
        writer.append(ROWS)
    mount.mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("no unshare: a mount of this process alone cannot be made")
    # A name space of its own: the mount goes with the process.
    script = (
        'mount --bind "$1" "$2" && mount -o remount,ro,bind "$2" || exit 77\nexec "$3" -c "$4" "$2"'
    )
    flags = "-m" if os.geteuid() == 0 else "-rm"
    done = subprocess.run(
        ["unshare", flags, "sh", "-c", script, "sh", store, mount, sys.executable, READ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"this system does not let tests mount: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in (["PermissionError", "13"], ["OSError", "30"])


@contextlib.contextmanager
def _folder_for_all():
    """Yield a folder that every user can enter; the folders of pytest are its user's own."""
    folder = Path(tempfile.mkdtemp(prefix="zrecord-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)


def _as_another_user(task) -> str:
    """Run the task in a forked child that may not write what this user owns."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            answer = task()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, str(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_a_folder_without_write_permission():
    with _folder_for_all() as folder:
        path = folder / "s"
        with RaggedStore(path, np.int32) as store:
            store.append(RECORDS)
        for file in path.iterdir():
            file.chmod(0o444)
        path.chmod(0o555)

        def reads():
            with RaggedStore(path, mode="r") as store:
                assert_same_list(store[:], RECORDS)
                with pytest.raises(ReadOnlyStore):
                    store.append(RECORDS)
                return f"{len(store)} {store.refresh()} {store.verify().ok}"

        def writes():
            with pytest.raises(PermissionError) as caught:
                RaggedStore(path)
            return f"{caught.value.errno} {os.path.dirname(caught.value.filename)}"

        before = {file.name: file.read_bytes() for file in path.iterdir()}
        assert _as_another_user(reads) == "6 6 True"
        assert _as_another_user(writes) == f"13 {path}"
        assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.mark.parametrize("name", ["store.zr", "meta.zr", "journal.zr", "0.loc", "0.chunk"])
def test_a_file_that_may_not_be_read_is_a_permission_error_that_names_it(name):
    with _folder_for_all() as folder:
        path = folder / "s"
        with DenseStore(path, np.float32, (2, 3)) as store:
            store.append(ROWS)
        (path / name).chmod(0)

        def reads():
            with pytest.raises(PermissionError) as caught, DenseStore(path, mode="r") as store:
                store[:]
            return f"{caught.value.errno} {caught.value.filename}"

        assert _as_another_user(reads) == f"13 {path / name}"


# ---- fork ---------------------------------------------------------------------------------------


def _fork(task) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            task()
            code = 0
        finally:
            os._exit(code)
    return child


def test_a_child_gathers_on_while_the_parent_appends_and_closes(tmp_path):
    store = DenseStore(tmp_path / "s", np.int64, (4,), "raw")
    store.append(np.stack([reader_tasks.record("dense", i) for i in range(100)]))
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    expected = store[:]

    def child():
        assert store[:].tobytes() == expected.tobytes()
        os.write(ready_write, b"1")
        os.read(go_read, 1)  # the parent has closed
        for _ in range(50):
            assert store[:100].tobytes() == expected.tobytes()
        assert store.refresh() == 150

    child_id = _fork(child)
    assert os.read(ready_read, 1) == b"1"
    store.append(np.stack([reader_tasks.record("dense", i) for i in range(100, 150)]))
    store.close()
    os.write(go_write, b"1")
    _, status = os.waitpid(child_id, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for end in (ready_read, ready_write, go_read, go_write):
        os.close(end)


def test_a_child_that_never_touches_the_store_holds_no_lock(tmp_path):
    read, write = os.pipe()
    store = DenseStore(tmp_path / "s", np.float32, (2, 3))
    reader = DenseStore(tmp_path / "s", mode="r")
    store.append(ROWS)

    def child():
        os.close(write)
        os.read(read, 1)  # until the parent lets go

    child_id = _fork(child)
    reader.close()
    store.close()
    with DenseStore(tmp_path / "s") as again:
        assert again.delete(0) == 1
    os.close(write)
    os.waitpid(child_id, 0)
    os.close(read)


def test_a_child_that_has_not_run_yet_holds_no_lock(tmp_path):
    # A fork without Python's handlers: such a child still has everything that its parent had.
    fork = ctypes.PyDLL(None).fork
    read, write = os.pipe()
    store = DenseStore(tmp_path / "s", np.float32, (2, 3))
    reader = DenseStore(tmp_path / "s", mode="r")
    store.append(ROWS)
    child_id = fork()
    if not child_id:
        os.close(write)
        os.read(read, 1)  # until the parent lets go
        os._exit(0)
    try:
        reader.close()
        store.close()
        with DenseStore(tmp_path / "s") as again:
            assert again.delete(0) == 1
    finally:
        os.close(write)
        os.waitpid(child_id, 0)
        os.close(read)


# ---- deletes and readers ------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda s: s.delete([0, 3]), lambda s: s.compact()])
def test_a_change_that_moves_records_needs_readers_gone_and_says_so(tmp_path, change):
    with RaggedStore(tmp_path / "s", np.int32, "raw") as store:
        store.append(RECORDS)
        store.delete(1)
        before = [*RECORDS[:1], RECORDS[5], *RECORDS[2:5]]
        readers = [RaggedStore(tmp_path / "s", mode="r") for _ in range(2)]
        for reader in readers:
            with pytest.raises(StoreBusy, match=r"readers.*close them") as caught:
                change(store)
            assert caught.value.errno
            assert_same_list(store[:], before)
            assert_same_list(reader[:], before)
            reader.close()
        change(store)
        assert store.verify().ok


def test_a_reader_that_opens_during_a_delete_waits(dense):
    """The lock that a delete holds is held here by hand."""
    opened = threading.Event()
    with open(os.path.join(dense.path, "readers.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

        def read():
            with DenseStore(dense.path, mode="r") as reader:
                assert_same(reader[:], ROWS)
            opened.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert not opened.wait(0.2)
        fcntl.flock(lock, fcntl.LOCK_UN)
        thread.join(TIMEOUT)
    assert opened.is_set()
