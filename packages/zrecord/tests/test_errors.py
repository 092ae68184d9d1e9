"""The error tree, its messages, and what comes from the system."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import shutil
import subprocess
import tempfile

import numpy as np
import pytest
import zrecord
from conftest import ROWS, assert_same
from zrecord import CorruptRecord, DenseStore, RaggedStore, StoreClosed, _status, errors
from zrecord._native import ffi, lib

TREE = {
    "StoreBusy": ("ZrecordError", BlockingIOError),
    "StoreClosed": ("ZrecordError", ValueError),
    "StoreFailed": ("ZrecordError", OSError),
    "StoreChanged": ("ZrecordError", Exception),
    "ReadOnlyStore": ("ZrecordError", PermissionError),
    "ForkedHandle": ("ZrecordError", Exception),
    "UnsupportedFormat": ("ZrecordError", Exception),
    "CorruptStore": ("ZrecordError", Exception),
    "CorruptRecord": ("CorruptStore", Exception),
    "RecordIndexError": ("ZrecordError", IndexError),
}


def test_the_tree():
    assert set(errors.__all__) == set(TREE) | {"ZrecordError"}
    assert issubclass(errors.ZrecordError, Exception)
    for name, (parent, built_in) in TREE.items():
        error = getattr(zrecord, name)
        assert error is getattr(errors, name)
        assert issubclass(error, getattr(errors, parent))
        assert issubclass(error, built_in)
        assert not issubclass(error, RuntimeError)


@pytest.mark.parametrize("name", list(TREE))
def test_an_error_arrives_as_itself_from_another_process(name):
    error = getattr(zrecord, name)
    made = error("a message", 5) if name == "CorruptRecord" else error("a message")
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is error
    assert str(again) == "a message"
    if name == "CorruptRecord":
        assert again.index == 5
    if issubclass(error, OSError):
        again = pickle.loads(pickle.dumps(error(errno.EIO, "a message", "path")))
        assert (again.errno, again.filename) == (errno.EIO, "path")


def _statuses() -> dict[int, str]:
    return {v: name for v, name in ffi.typeof("enum zr_status").elements.items() if v != lib.ZR_OK}


@pytest.mark.parametrize("status", sorted(_statuses()), ids=lambda s: _statuses()[s])
def test_every_status_has_its_exception(status):
    assert status in _status._FAILURES
    error = ffi.new("zr_error *")
    error.status = status
    error.os_errno = errno.ENOSPC
    error.file_kind = lib.ZR_FILE_CHUNK
    error.file_id = 3
    error.record = 12
    error.found = 4
    made = _status.failure(status, error, "the/path")
    assert isinstance(made, (errors.ZrecordError, OSError, ValueError, MemoryError))
    text = str(made)
    assert "the/path" in text or status == lib.ZR_TOO_FEW_SAMPLES
    assert "<" not in text


def test_an_unknown_status_is_no_crash():
    made = _status.failure(999, ffi.new("zr_error *"), "the/path")
    assert type(made) is errors.ZrecordError
    assert "999" in str(made)


def test_a_damaged_record_names_file_record_expected_and_found():
    error = ffi.new("zr_error *")
    error.status = lib.ZR_CORRUPT_RECORD
    error.file_kind, error.file_id, error.record = lib.ZR_FILE_CHUNK, 7, 42
    error.offset, error.expected, error.found = 4096, 0xABC, 0xDEF
    made = _status.failure(error.status, error, "the/path")
    assert made.index == 42
    for part in ("the/path", "record 42", "7.chunk", "offset 4096", "0xabc", "0xdef"):
        assert part in str(made)
    error.offset = 0
    assert "offset" not in str(_status.failure(error.status, error, "the/path"))


@pytest.mark.parametrize("close", ["close", "with", "twice"])
def test_after_close_every_method_says_so(tmp_path, close):
    dense = DenseStore(tmp_path / "d", "f4", (2, 3))
    ragged = RaggedStore(tmp_path / "r", "i4")
    dense.append(ROWS)
    ragged.append([np.ones(2, "i4")])
    for store in (dense, ragged):
        assert not store.closed
        if close == "with":
            with store:
                pass
        else:
            store.close()
        if close == "twice":
            store.close()
        assert store.closed
        for call in (
            lambda s: s[0],
            lambda s: s[:],
            lambda s: s[[0]],
            lambda s: s[[]],
            lambda s: s.gather(np.array([0])),
            len,
            list,
            lambda s: s.will_need([0]),
            lambda s: s.delete([0]),
            lambda s: s.compact(),
            lambda s: s.sync(),
            lambda s: s.stats(),
            lambda s: s.verify(),
            lambda s: s.refresh(),
            lambda s: s.fingerprint,
            lambda s: pickle.dumps(s),
            bool,
        ):
            with pytest.raises(StoreClosed, match=store.path) as caught:
                call(store)
            assert isinstance(caught.value, ValueError)
        store.close()
        assert "closed" in repr(store)
        assert store.dtype
        assert store.codec == "zstd"
        assert store.path
    with pytest.raises(StoreClosed):
        dense.append(ROWS)
    with pytest.raises(StoreClosed):
        ragged.append([])
    with pytest.raises(StoreClosed):
        ragged.gather_packed([0])
    with pytest.raises(StoreClosed):
        ragged.lengths()


def test_an_error_inside_with_arrives_and_the_store_is_closed(tmp_path):
    store = DenseStore(tmp_path / "s", "f4", (2, 3))
    store.append(ROWS)
    with pytest.raises(KeyError, match="mine"), store:
        raise KeyError("mine")
    assert store.closed
    with DenseStore(tmp_path / "s") as again:
        assert_same(again[:], ROWS)


def test_no_permission_is_the_ordinary_error(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the read-only mount test covers it")
    (tmp_path / "p").mkdir(mode=0o555)
    with pytest.raises(PermissionError) as caught:
        DenseStore(tmp_path / "p" / "s", "f4", ())
    assert caught.value.filename


def test_a_folder_without_write_permission_opens_for_reading(tmp_path):
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(ROWS)
    folder = tmp_path / "s"
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        with DenseStore(folder, mode="r") as store:
            assert_same(store[:], ROWS)
            assert store.verify().ok
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                DenseStore(folder)
    finally:
        folder.chmod(0o755)


@pytest.fixture
def mounted(request):
    """A folder under which the test mounts something, or a skip with the reason."""
    folder = tempfile.mkdtemp(prefix="zrecord-mount-")
    mounts = []

    def mount(*arguments: str) -> str:
        done = subprocess.run(["mount", *arguments, folder], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        mounts.append(folder)
        return folder

    if shutil.which("mount") is None or os.name != "posix":
        pytest.skip("there is no mount command here")
    yield mount
    left = [subprocess.run(["umount", folder], capture_output=True).stderr for _ in mounts]
    if any(left):
        subprocess.run(["umount", "--lazy", folder], check=True)
    os.rmdir(folder)
    assert not any(left), left


def test_a_read_only_mount_opens_for_reading(tmp_path, mounted):
    with RaggedStore(tmp_path / "s", "u1") as store:
        store.append([b"abc", b"de"])
    folder = mounted("--bind", "-o", "ro", str(tmp_path))
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
    with RaggedStore(folder + "/s", mode="r") as store:
        assert [bytes(record) for record in store] == [b"abc", b"de"]
        assert store.verify().ok
    for call in (
        lambda: RaggedStore(folder + "/s"),
        lambda: RaggedStore(folder + "/new", "u1"),
    ):
        with pytest.raises(OSError, match=r"[Rr]ead-only") as caught:
            call()
        assert caught.value.errno == errno.EROFS
        assert caught.value.filename.startswith(folder)


@pytest.mark.parametrize("kind", ["dense", "ragged"])
def test_a_full_disk_keeps_what_was_there_and_goes_on_once_space_is_freed(mounted, kind):
    folder = mounted("-t", "tmpfs", "-o", "size=10m", "tmpfs")
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, (100, 10_000), dtype="u1")
    ballast = folder + "/ballast"
    with open(ballast, "wb") as file:
        file.write(bytes(4 * 2**20))
    if kind == "dense":
        store = DenseStore(folder + "/s", "u1", (10_000,), "raw")
    else:
        store = RaggedStore(folder + "/s", "u1", "raw")
    with store:
        store.append(first)
        too_much = rng.integers(0, 256, (700, 10_000), dtype="u1")
        for _ in range(3):
            with pytest.raises(OSError, match="No space") as caught:
                store.append(too_much)
            assert caught.value.errno == errno.ENOSPC
            assert caught.value.filename.startswith(folder + "/s/")
            assert len(store) == 100
            assert np.array_equal(np.stack(list(store[:])), first)
        assert store.append(first[:2]) == 100
        os.unlink(ballast)
        assert store.append(first) == 102
        assert store.verify().ok
    with type(store)(folder + "/s", mode="r") as store:
        assert len(store) == 202
        assert np.array_equal(np.stack(list(store[102:])), first)
    # The temporary file system is unmounted with everything in it.


def test_creating_on_a_full_disk_leaves_nothing_that_is_in_the_way(mounted):
    folder = mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    ballast = folder + "/ballast"
    _fill(ballast)
    with pytest.raises(OSError, match="No space") as caught:
        DenseStore(folder + "/s", "u1", ())
    assert caught.value.errno == errno.ENOSPC
    os.unlink(ballast)
    with DenseStore(folder + "/s", "u1", ()) as store:
        assert store.append(np.ones(3, "u1")) == 0


def _fill(path: str) -> None:
    """Write until the disk is full."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_damaged_record_says_where_it_lies(tmp_path):
    with DenseStore(tmp_path / "s", np.uint8, (100,), "raw") as store:
        store.append(np.zeros((5, 100), np.uint8))
    (chunk,) = (tmp_path / "s").glob("*.chunk")
    content = bytearray(chunk.read_bytes())
    content[310] ^= 1
    chunk.write_bytes(content)
    with DenseStore(tmp_path / "s", mode="r") as store:
        with pytest.raises(CorruptRecord, match="offset 300") as caught:
            store.gather([1, 3])
        assert caught.value.index == 3
