"""Loaders over zrecord stores: alike to arrays, and safe when stores change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import zrecord
from loaderx import DataLoader, LoaderxError, StateMismatch
from zrecord import CorruptRecord, DenseStore, RaggedBatch, RaggedStore, StoreClosed, ZrecordError

RECORDS = 200
pytestmark = pytest.mark.thread_unsafe(reason="tests change the stores of their fixture")


def images(records=RECORDS):
    return np.random.default_rng(1).integers(0, 255, (records, 4, 6), dtype=np.uint8)


def texts(records=RECORDS):
    rng = np.random.default_rng(2)
    return [rng.integers(0, 1000, rng.integers(1, 30), dtype=np.int32) for _ in range(records)]


@pytest.fixture
def stores(tmp_path, request):
    """Two stores of the same length, dense and ragged, closed by the test's end."""
    image_codec, text_codec = getattr(request, "param", ("raw", "zstd"))
    image = DenseStore(tmp_path / "image", np.uint8, (4, 6), image_codec)
    text = RaggedStore(tmp_path / "text", np.int32, text_codec)
    image.append(images())
    text.append(texts())
    with image, text:
        yield {"image": image, "text": text}


def digest(batch):
    text = batch["text"].to_list() if isinstance(batch["text"], RaggedBatch) else batch["text"]
    return batch["i"].tolist(), batch["image"].tobytes(), [t.tolist() for t in text]


@pytest.mark.parametrize("stores", [("raw", "raw"), ("zstd", "zstd")], indirect=True, ids=str)
@pytest.mark.parametrize("mode", ["sequential", "iid", "cyclic"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("workers", [0, 4])
def test_every_batch_is_the_source_bit_for_bit(stores, mode, packed, workers):
    image, text = images(), texts()
    with DataLoader(
        stores, workers, 16, mode=mode, seed=3, packed=packed, with_index="i"
    ) as loader:
        for batch in loader.take(30):
            indices = batch["i"]
            assert batch["image"].dtype == np.uint8
            assert np.array_equal(batch["image"], image[indices])
            assert isinstance(batch["text"], RaggedBatch if packed else list)
            records = batch["text"].to_list() if packed else batch["text"]
            assert len(records) == 16
            for record, index in zip(records, indices, strict=True):
                assert record.dtype == np.int32
                assert np.array_equal(record, text[index])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_stores_and_arrays_give_the_same_stream(stores, ranks):
    for rank in range(ranks):
        options = {
            "num_workers": 2, "batch_size": 16 // ranks, "rank": rank, "world_size": ranks,
            "seed": 8, "with_index": "i",
        }  # fmt: skip
        with (
            DataLoader({"image": stores["image"]}, **options) as stored,
            DataLoader({"image": images()}, **options) as array,
        ):
            for a, b in zip(stored.take(40), array.take(40), strict=True):
                assert a["i"].tolist() == b["i"].tolist()
                assert a["image"].tobytes() == b["image"].tobytes()
            for a, b in zip(stored.once(), array.once(), strict=True):
                assert a["image"].tobytes() == b["image"].tobytes()


def test_resume_over_reopened_stores(stores):
    with DataLoader(stores, 4, 16, seed=1, with_index="i") as loader:
        list(loader.take(17))
        state = json.dumps(loader.state_dict())
        expected = [digest(batch) for batch in loader.take(20)]
    paths = {name: store.path for name, store in stores.items()}
    for store in stores.values():
        store.close()
    with (
        DenseStore(paths["image"], mode="r") as image,
        RaggedStore(paths["text"], mode="r") as text,
        DataLoader({"image": image, "text": text}, 0, 16, seed=1, with_index="i") as loader,
    ):
        loader.load_state_dict(json.loads(state))
        assert [digest(batch) for batch in loader.take(20)] == expected


def test_a_store_that_grew_is_refused_and_named(stores):
    with DataLoader(stores, 1, 16) as loader:
        list(loader.take(3))
        state = loader.state_dict()
    stores["image"].append(images(5))
    stores["text"].append(texts(5))
    with DataLoader(stores, 1, 16) as loader:
        with pytest.raises(StateMismatch) as caught:
            loader.load_state_dict(state)
        message = str(caught.value)
        for name in stores:
            assert (
                f"stream {name!r} only grew: 200 records when the state was saved, 205" in message
            )
        assert "length" in message
        loader.load_state_dict(state, strict=False)
        assert loader.tell() == 3


def test_a_store_with_other_contents_is_refused_and_is_not_said_to_have_grown(stores, tmp_path):
    with DataLoader({"image": stores["image"]}, 1, 16) as loader:
        state = loader.state_dict()
    with DenseStore(tmp_path / "other", np.uint8, (4, 6), "raw") as other:
        other.append(images())
        loader = DataLoader({"image": other}, 1, 16)
        with loader, pytest.raises(StateMismatch, match="stream 'image' is not the same"):
            loader.load_state_dict(state)
    stores["image"].delete([0])
    stores["image"].append(images(1))
    loader = DataLoader({"image": stores["image"]}, 1, 16)
    with loader, pytest.raises(StateMismatch, match="stream 'image' is not the same"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("change", ["append", "delete"])
def test_a_store_that_changes_its_length_is_reported(stores, workers, change):
    with DataLoader(stores, workers, 16, 2) as loader:
        list(loader.take(3))
        if change == "append":
            stores["text"].append(texts(1))
        else:
            stores["text"].delete([5])
        with pytest.raises(LoaderxError, match=r"stream 'text' has (201|199) .* had 200"):
            list(loader.take(4))
        assert 3 <= loader.tell() <= 5


@pytest.mark.parametrize("workers", [0, 4])
def test_closing_a_store_under_the_loader_is_a_clear_error(stores, workers, bounded):
    with DataLoader(stores, workers, 16, 4) as loader:
        list(loader.take(3))
        stores["image"].close()
        with pytest.raises(StoreClosed) as caught:
            bounded(lambda: list(loader.take(6)))
        assert 3 <= loader.tell() <= 7
        assert "stream 'image'" in caught.value.__notes__[0]
        with pytest.raises(StoreClosed) as again:
            next(loader)
        assert again.value is caught.value


def test_closing_while_batches_are_gathered_never_touches_freed_memory(tmp_path, bounded):
    """Batches that were delivered stay right; the others end in StoreClosed."""
    array = images(5000)

    def race():
        for attempt in range(25):
            store = DenseStore(tmp_path / f"store{attempt}", np.uint8, (4, 6), "raw")
            store.append(array)
            with DataLoader({"x": store}, 4, 256, 4, with_index="i", seed=attempt) as loader:
                kept = []
                closer = threading.Timer(0.0005 * (attempt % 8), store.close)
                closer.start()
                with pytest.raises(StoreClosed):
                    kept.extend(loader)
                closer.join()
            for batch in kept[-20:]:
                assert np.array_equal(batch["x"], array[batch["i"]])

    bounded(race)


def test_the_stores_stay_open_after_close(stores):
    with DataLoader(stores, 4, 16) as loader:
        next(loader)
    assert not any(store.closed for store in stores.values())
    assert len(stores["image"][:3]) == 3


@pytest.mark.parametrize("workers", [0, 4])
def test_a_corrupt_record_is_an_error_at_its_step(tmp_path, workers):
    rows = np.arange(RECORDS * 16, dtype=np.uint32).reshape(RECORDS, 16)
    with DenseStore(tmp_path / "rows", np.uint32, (16,), "raw") as store:
        store.append(rows)
        store.sync()
    damaged = rows[100].tobytes()
    hit = 0
    for file in (tmp_path / "rows").iterdir():
        contents = bytearray(file.read_bytes())
        at = contents.find(damaged)
        if at >= 0:
            contents[at + 7] ^= 1
            file.write_bytes(contents)
            hit += 1
    assert hit == 1
    with (
        DenseStore(tmp_path / "rows", mode="r", checksums="always") as store,
        DataLoader({"rows": store}, workers, 16, 4, "sequential") as loader,
    ):
        for step, batch in enumerate(loader.take(6)):
            assert np.array_equal(batch["rows"], rows[step * 16 : step * 16 + 16])
        with pytest.raises(CorruptRecord) as caught:
            next(loader)
        assert caught.value.index == 100
        assert "stream 'rows'" in caught.value.__notes__[0]
        assert "step 6" in caught.value.__notes__[0]
        loader.seek(loader.tell() + 1)
        assert np.array_equal(next(loader)["rows"], rows[112:128])


def test_ranks_share_stores_read_only(stores, run_script):
    """Four processes open the same folders; together they read each global batch once."""
    for store in stores.values():
        store.sync()
    finished = run_script(
        f"""
import multiprocessing
import numpy as np
from loaderx import DataLoader
from zrecord import DenseStore, RaggedStore

def work(rank, answers):
    with (
        DenseStore({stores["image"].path!r}, mode="r") as image,
        RaggedStore({stores["text"].path!r}, mode="r") as text,
        DataLoader({{"image": image, "text": text}}, 2, 4, rank=rank, world_size=4, seed=6,
                   with_index="i") as loader,
    ):
        batches = [(b["i"].tolist(), b["image"].tobytes(), [t.tolist() for t in b["text"]])
                   for b in loader.take(24)]
        once = [b["i"].tolist() for b in loader.once()]
        answers.put((rank, batches, once))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    children = [context.Process(target=work, args=(rank, answers)) for rank in range(4)]
    [child.start() for child in children]
    got = sorted(answers.get() for _ in children)
    [child.join() for child in children]
    assert [child.exitcode for child in children] == [0] * 4
    with (
        DenseStore({stores["image"].path!r}, mode="r") as image,
        RaggedStore({stores["text"].path!r}, mode="r") as text,
        DataLoader({{"image": image, "text": text}}, 2, 16, seed=6, with_index="i") as loader,
    ):
        for step, whole in enumerate(loader.take(24)):
            parts = [batches[step] for _, batches, _ in got]
            assert sum((p[0] for p in parts), []) == whole["i"].tolist()
            assert b"".join(p[1] for p in parts) == whole["image"].tobytes()
            assert sum((p[2] for p in parts), []) == [t.tolist() for t in whole["text"]]
    covered = sorted(i for _, _, once in got for batch in once for i in batch)
    assert covered == list(range({RECORDS}))
    print("ok")
"""
    )
    assert finished.stdout == "ok\n"
    assert finished.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_stores_of_the_parent_are_read_by_a_loader_of_the_child(stores, run_script):
    stores["image"].sync()
    finished = run_script(
        f"""
import os, sys, warnings
import numpy as np
from loaderx import DataLoader, LoaderxError
from zrecord import DenseStore
warnings.simplefilter("ignore", DeprecationWarning)
image = DenseStore({stores["image"].path!r}, mode="r")
loader = DataLoader({{"image": image}}, 2, 16, seed=2)
expected = [batch["image"].tobytes() for batch in loader.take(10)]
child = os.fork()
if child == 0:
    try:
        next(loader)
    except LoaderxError:
        with DataLoader({{"image": image}}, 2, 16, seed=2) as own:
            same = [batch["image"].tobytes() for batch in own.take(10)] == expected
        os._exit(0 if same else 4)
    os._exit(5)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
loader.seek(0)
assert [batch["image"].tobytes() for batch in loader.take(10)] == expected
print("child", status)
"""
    )
    assert finished.stdout == "child 0\n"
    assert finished.stderr == ""


def test_a_script_with_open_stores_ends_in_silence(stores, run_script):
    stores["text"].sync()
    finished = run_script(
        f"""
from loaderx import DataLoader
from zrecord import RaggedStore
store = RaggedStore({stores["text"].path!r}, mode="r")
loader = DataLoader({{"text": store}}, 4, 16, packed=True)
next(loader)
"""
    )
    assert finished.stdout == finished.stderr == ""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_killed_runs_leave_nothing_that_stops_the_next(stores, tmp_path):
    """Four runs at once are killed in the middle; a fifth reads the same stores to the end."""
    for store in stores.values():
        store.sync()
    paths = {name: store.path for name, store in stores.items()}
    program = tmp_path / "run.py"
    program.write_text(
        f"""
import sys
from loaderx import DataLoader
from zrecord import DenseStore, RaggedStore
image = DenseStore({paths["image"]!r}, mode="r")
text = RaggedStore({paths["text"]!r}, mode="r")
loader = DataLoader({{"image": image, "text": text}}, 4, 16)
steps = int(sys.argv[1])
for step, batch in enumerate(loader):
    if step == 20: print("running", flush=True)
    if step == steps: break
"""
    )
    command = [sys.executable, str(program)]
    runs = [
        subprocess.Popen([*command, str(2**60)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        for run in runs:
            assert run.stdout.readline() == "running\n"
            maps = f"/proc/{run.pid}/maps"
            assert not os.path.exists(maps) or "/dev/shm" not in Path(maps).read_text()
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    files = sorted(os.listdir(paths["image"])), sorted(os.listdir(paths["text"]))
    last = subprocess.run([*command, "100"], capture_output=True, text=True, timeout=30)
    assert (last.returncode, last.stdout, last.stderr) == (0, "running\n", "")
    assert (sorted(os.listdir(paths["image"])), sorted(os.listdir(paths["text"]))) == files


def test_the_native_pool_is_the_stores_affair(stores):
    before = zrecord.get_num_threads()
    with DataLoader(stores, 3, 16, 4) as loader:
        list(loader.take(10))
        assert zrecord.get_num_threads() == before
        assert len(loader._ring.threads) == 3


def test_memory_threads_and_descriptors_stay_flat_over_stores(stores, run_script):
    if not os.path.exists("/proc/self/status"):
        pytest.skip("RssAnon is read from /proc, which is not here")
    for store in stores.values():
        store.sync()
    finished = run_script(
        f"""
import gc, os, threading
from loaderx import DataLoader
from zrecord import DenseStore, RaggedStore
def reading():
    gc.collect()
    with open("/proc/self/status") as lines:
        kib = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return kib, threading.active_count(), len(os.listdir("/proc/self/fd"))
readings = []
with (
    DenseStore({stores["image"].path!r}, mode="r") as image,
    RaggedStore({stores["text"].path!r}, mode="r") as text,
    DataLoader({{"image": image, "text": text}}, 2, 16, 4, packed=True) as loader,
):
    for _ in range(6):
        for _ in loader.take(1500): pass
        readings.append(reading())
memory, threads, files = zip(*readings[1:])
assert memory[-1] - memory[0] <= 1024, memory
assert len(set(threads)) == len(set(files)) == 1, readings
print("ok")
"""
    )
    assert finished.stdout == "ok\n"


def test_errors_of_zrecord_are_zrecord_errors(stores):
    stores["text"].close()
    with pytest.raises(ZrecordError):
        DataLoader(stores, 1, 16)
