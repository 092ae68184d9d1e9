"""The command line: results, exit codes, nothing left behind by a failure."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import zrecord
from conftest import RECORDS, ROWS, assert_same, assert_same_list
from zrecord import DenseStore, RaggedStore
from zrecord.cli import main


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command in a folder of its own: (exit code, output, messages)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
        done = capsys.readouterr()
        return code, done.out, done.err

    return run


@pytest.fixture
def run_json(run):
    """Run a command with --json that succeeds; return what it printed."""

    def run_json(*arguments: object, code: int = 0):
        exit_code, out, err = run(*arguments, "--json")
        assert (exit_code, err) == (code, "") or code
        assert exit_code == code
        assert out.count("\n") == 1
        return json.loads(out)

    return run_json


@pytest.fixture
def stores(tmp_path):
    with DenseStore(tmp_path / "d", "f4", (2, 3), "raw") as store:
        store.append(ROWS)
        store.delete([0, 1])
    with RaggedStore(tmp_path / "r", "i4") as store:
        store.append(RECORDS)


def _damage(folder, offset: int = -1) -> None:
    """Flip one bit of the first chunk."""
    chunk = next(iter(sorted(folder.glob("*.chunk"))))
    data = bytearray(chunk.read_bytes())
    data[offset] ^= 1
    chunk.write_bytes(bytes(data))


# ---- info, head, verify, compact ----------------------------------------------------------------


def test_info(run, run_json, stores):
    facts = run_json("info", "d")
    assert facts["kind"] == "dense"
    assert facts["dtype"] == "<f4"
    assert facts["item_shape"] == [2, 3]
    assert facts["codec"] == "raw"
    assert facts["records"] == 8
    assert facts["live_bytes"] == 8 * 24
    assert facts["reclaimable"] == 2 * 24
    assert facts["format_version"] == 5
    with DenseStore("d", mode="r") as store:
        assert [facts["uuid"], facts["epoch"]] == store.fingerprint[:2]
        assert {name: facts[name] for name in store.stats()} == store.stats()
    ragged = run_json("info", "r")
    assert ragged["kind"] == "ragged"
    assert "item_shape" not in ragged
    code, out, err = run("info", "r")
    assert (code, err) == (0, "")
    assert "ragged" in out
    assert "records" in out


def test_head(run, run_json, stores):
    code, out, _ = run("head", "r")
    assert code == 0
    assert out.splitlines()[0] == "0 (5,) [0, 1, 2, 3, 4]"
    assert out.splitlines()[1] == "1 () 7"
    assert len(out.splitlines()) == 5
    assert len(run("head", "d", "-n", 3)[1].splitlines()) == 3
    assert run("head", "d", "-n", 0)[1] == ""
    assert len(run("head", "d", "-n", 100)[1].splitlines()) == 8
    shown = run_json("head", "r", "-n", 2)
    assert shown["length"] == 6
    assert shown["records"] == [
        {"index": 0, "shape": [5], "items": [0, 1, 2, 3, 4]},
        {"index": 1, "shape": [], "items": [7]},
    ]
    assert run("head", "d", "-n", -1)[0] == 2


@pytest.mark.parametrize(
    "rows",
    [
        np.array([np.nan, np.inf, 1.5]),
        np.array(["2020-01-01", "NaT"], "M8[D]"),
        np.array([1 + 2j]),
        np.array([b"a\xff"]),
        np.array(["ü"]),
        np.zeros(2, "V3"),
        np.zeros(2, [("a", "f4"), ("b", "U2", (2,))]),
        np.array([True]),
    ],
    ids=lambda rows: rows.dtype.str,
)
def test_head_shows_every_type(run, run_json, rows):
    with DenseStore("s", rows.dtype, ()) as store:
        store.append(rows)
    assert run("head", "s")[0] == 0
    assert len(run_json("head", "s")["records"]) == len(rows)
    assert run_json("info", "s")["records"] == len(rows)


def test_verify(run, run_json, stores):
    code, out, err = run("verify", "d")
    assert (code, err) == (0, "")
    assert "8 records" in out
    report = run_json("verify", "r")
    assert report["ok"]
    assert report["records"] == 6
    assert report["damaged"] == []


def test_compact(run, run_json, stores, tmp_path):
    assert run_json("compact", "d")["freed_bytes"] == 48
    assert run_json("compact", "d")["freed_bytes"] == 0
    assert run("compact", "r")[0] == 0
    with DenseStore("d", mode="r") as store:
        assert store.stats()["reclaimable"] == 0
        assert len(store) == 8
        assert store.verify().ok


# ---- a store with one flipped byte --------------------------------------------------------------


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("kind", ["dense", "ragged"])
def test_one_flipped_byte(run, run_json, tmp_path, codec, kind):
    if kind == "dense":
        with DenseStore("s", "f4", (2, 3), codec) as store:
            store.append(ROWS)
    else:
        with RaggedStore("s", "i4", codec) as store:
            store.append(RECORDS)
    count = 10 if kind == "dense" else 6
    _damage(tmp_path / "s")
    assert run_json("info", "s")["records"] == count
    report = run_json("verify", "s", code=1)
    assert not report["ok"]
    assert [finding["index"] for finding in report["damaged"]] == [count - 1]
    assert "0.chunk" in report["damaged"][0]["reason"]
    code, out, _ = run("verify", "s")
    assert code == 1
    assert f"record {count - 1}:" in out
    before = sorted(tmp_path.iterdir())
    for command in (("copy", "s", "t"), ("copy", "s", "t", "--codec", "raw")):
        code, out, err = run(*command)
        assert code == 1
        assert f"record {count - 1}" in err
        assert sorted(tmp_path.iterdir()) == before
    code, _, err = run("export", "s", "t.npz")
    assert code == 1
    assert f"record {count - 1}" in err
    assert sorted(tmp_path.iterdir()) == before
    assert run("head", "s", "-n", count - 1)[0] == 0
    assert run("head", "s", "-n", count)[0] == 1


# ---- copy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_copy_recodes_in_index_order(run, run_json, stores, codec):
    for source in ("d", "r"):
        target = f"{source}-{codec}"
        facts = run_json("copy", source, target, "--codec", codec)
        assert facts["codec"] == codec
        assert facts["reclaimable"] == 0
        kind = DenseStore if source == "d" else RaggedStore
        with kind(source, mode="r") as old, kind(target, mode="r") as new:
            assert new.codec == codec
            assert new.dtype == old.dtype
            assert_same_list(list(new), list(old))
            assert new.verify().ok
            assert new.fingerprint[0] != old.fingerprint[0]


def test_copy_keeps_the_codec_without_a_word(run_json, stores):
    assert run_json("copy", "d", "t")["codec"] == "raw"
    assert run_json("copy", "r", "deep/er/t")["codec"] == "zstd"


def test_copy_with_a_dictionary(run, run_json, tmp_path, dictionary):
    records = [np.arange(i, i + 60, dtype="i4") for i in range(800)]
    with RaggedStore("s", "i4") as store:
        store.append(records)
    facts = run_json("copy", "s", "t", "--codec", "zstd_dict", "--tier", "fast")
    assert facts["codec"] == "zstd_dict"
    (tmp_path / "dict").write_bytes(dictionary)
    run_json("copy", "s", "u", "--codec", "zstd_dict", "--dict", "dict")
    for target in ("t", "u"):
        with RaggedStore(target, mode="r") as store:
            assert store.has_dict
            assert_same_list(list(store), records)
    code, _, err = run("copy", "s", "v", "--codec", "raw", "--dict", "dict")
    assert code == 2
    assert "zstd_dict" in err
    assert not (tmp_path / "v").exists()


def test_copy_never_replaces(run, stores, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    for target in ("d", "r", "full", "file"):
        code, _, err = run("copy", "d", target)
        assert code == 2
        assert target in err
    (tmp_path / "empty").mkdir()
    assert run("copy", "d", "empty")[0] == 0
    with DenseStore("empty", mode="r") as store:
        assert len(store) == 8


# ---- import and export --------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", ">i2", "M8[s]", "S4", "?", [("a", "u1"), ("b", "f8")]])
def test_npy_there_and_back(run, run_json, dtype, order):
    rows = np.zeros((50, 3, 2), dtype)
    rows.reshape(-1).view("u1")[:] = np.arange(rows.nbytes) % 2
    rows = np.asarray(rows, order=order)
    np.save("rows.npy", rows)
    assert run_json("import", "rows.npy", "s")["records"] == 50
    with DenseStore("s", mode="r") as store:
        assert store.dtype == rows.dtype
        assert store.item_shape == (3, 2)
        assert_same(store[:], np.ascontiguousarray(rows))
    assert run_json("export", "s", "back.npy")["records"] == 50
    assert_same(np.load("back.npy"), np.ascontiguousarray(rows))
    assert run_json("export", "s", "back.npz")["records"] == 50
    assert_same(np.load("back.npz")["records"], np.ascontiguousarray(rows))
    assert run_json("import", "back.npz", "again", "--codec", "raw")["codec"] == "raw"
    with DenseStore("again", mode="r") as store:
        assert_same(store[:], np.ascontiguousarray(rows))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_of_one_array_is_a_dense_store(run_json, save):
    save("rows.npz", rows=np.asfortranarray(ROWS))
    run_json("import", "rows.npz", "s")
    with DenseStore("s", mode="r") as store:
        assert_same(store[:], ROWS)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_of_several_arrays_is_a_ragged_store_in_file_order(run_json, save):
    records = [*RECORDS, np.asfortranarray(RECORDS[2])]
    save("records.npz", *records)
    assert run_json("import", "records.npz", "s")["records"] == 7
    with RaggedStore("s", mode="r") as store:
        assert_same_list(store[:], [np.array(record, order="C") for record in records])


@pytest.mark.parametrize("flat", [True, False])
def test_ragged_npz_there_and_back(run_json, flat):
    records = [np.arange(1 + i % 9, dtype="f2") for i in range(3000)] if flat else RECORDS
    with RaggedStore("s", records[0].dtype) as store:
        store.append(records)
    assert run_json("export", "s", "packed.npz")["records"] == len(records)
    with np.load("packed.npz") as packed:
        assert sorted(packed) == sorted(["offsets", "values"] + ["dims", "ranks"] * (not flat))
        assert packed["offsets"].tolist() == [0, *np.cumsum([r.size for r in records])]
        assert_same(packed["values"], np.concatenate([r.reshape(-1) for r in records]))
    run_json("import", "packed.npz", "again")
    with RaggedStore("again", mode="r") as store:
        assert_same_list(store[:], records)


def test_an_empty_store_there_and_back(run_json):
    DenseStore("d", "f4", (2,)).close()
    RaggedStore("r", "f4").close()
    run_json("export", "d", "d.npy")
    assert np.load("d.npy").shape == (0, 2)
    run_json("import", "d.npy", "d2")
    run_json("export", "r", "r.npz")
    run_json("import", "r.npz", "r2")
    with RaggedStore("r2", mode="r") as store:
        assert len(store) == 0
        assert store.dtype == np.float32


def _bad_files() -> dict[str, object]:
    return {
        "objects.npy": lambda path: np.save(path, np.array([None, 1]), allow_pickle=True),
        "scalar.npy": lambda path: np.save(path, np.array(1.0)),
        "narrow.npy": lambda path: np.save(path, np.ones((3, 0))),
        "text.npy": lambda path: path.write_bytes(b"not an array"),
        "empty.npy": lambda path: path.write_bytes(b""),
        "text.npz": lambda path: path.write_bytes(b"not an archive"),
        "none.npz": lambda path: np.savez(path),
        "objects.npz": lambda path: np.savez(path, a=np.array([None]), b=np.array([None])),
        "mixed.npz": lambda path: np.savez(path, np.ones(2), np.ones(2, "i4")),
        "hollow.npz": lambda path: np.savez(path, np.ones(2), np.ones(0)),
        "offsets.npz": lambda path: np.savez(path, values=np.ones(3), offsets=np.array([0, 2])),
        "down.npz": lambda path: np.savez(path, values=np.ones(3), offsets=np.array([0, 2, 1, 3])),
        "start.npz": lambda path: np.savez(path, values=np.ones(3), offsets=np.array([1, 3])),
        "float.npz": lambda path: np.savez(path, values=np.ones(3), offsets=np.array([0.0, 3])),
        "nooffset.npz": lambda path: np.savez(path, values=np.ones(0), offsets=np.array([], "i8")),
        "dims.npz": lambda path: np.savez(
            path,
            values=np.ones(4),
            offsets=np.array([0, 4]),
            ranks=np.array([2]),
            dims=np.array([2, 3]),
        ),
        "few.npz": lambda path: np.savez(
            path,
            values=np.ones(4),
            offsets=np.array([0, 4]),
            ranks=np.array([2]),
            dims=np.array([4]),
        ),
        "other.txt": lambda path: path.write_bytes(b"x"),
    }


@pytest.mark.parametrize("name", _bad_files())
def test_a_file_that_is_no_import_leaves_nothing_behind(run, tmp_path, name):
    _bad_files()[name](tmp_path / name)
    before = sorted(tmp_path.iterdir())
    code, out, err = run("import", name, "s")
    assert code == 2
    assert err.startswith("zrecord: ")
    assert out == ""
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_file_that_ends_too_early_leaves_nothing_behind(run, tmp_path, suffix, share):
    path = tmp_path / f"rows.{suffix}"
    rows = np.random.default_rng(0).integers(0, 256, (1000, 100), dtype="u1")
    np.save(path, rows) if suffix == "npy" else np.savez(path, rows)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert run("import", path, "s")[0] == 2
    assert sorted(tmp_path.iterdir()) == [path]


def test_export_refuses_what_does_not_fit_and_never_replaces(run, stores, tmp_path):
    assert run("export", "r", "r.npy")[0] == 2
    assert run("export", "d", "d.csv")[0] == 2
    (tmp_path / "there.npy").write_bytes(b"mine")
    code, _, err = run("export", "d", "there.npy")
    assert code == 2
    assert "there.npy" in err
    assert (tmp_path / "there.npy").read_bytes() == b"mine"
    overlaid = np.dtype({"names": ["a", "b"], "formats": ["<u4", "<u2"], "offsets": [0, 0]})
    DenseStore("s", overlaid, ()).close()
    assert run("export", "s", "s.npy")[0] == 2
    assert not (tmp_path / "s.npy").exists()


# ---- train-dict ---------------------------------------------------------------------------------


def test_train_dict(run, run_json, tmp_path):
    with RaggedStore("s", "i4") as store:
        store.append([np.arange(i, i + 60, dtype="i4") for i in range(800)])
    facts = run_json("train-dict", "s", "dict", "--tier", "fast")
    assert facts["dict_bytes"] == (tmp_path / "dict").stat().st_size <= 32 * 1024
    DenseStore("few", "f4", ()).close()
    code, _, err = run("train-dict", "few", "dict2")
    assert code == 2
    assert "0 samples" in err
    assert not (tmp_path / "dict2").exists()


# ---- usage --------------------------------------------------------------------------------------

COMMANDS = ["info", "head", "verify", "compact", "copy", "import", "export", "train-dict"]


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_usage_is_exit_code_2(run, tmp_path, command):
    for arguments in ((), ("a", "b", "c"), ("nothing", "--nonsense")):
        assert run(command, *arguments)[0] == 2
    two = () if command in COMMANDS[:4] else ("target",)
    code, out, err = run(command, "nothing-there", *two)
    assert code == 2
    assert out == ""
    assert "nothing-there" in err
    code, out, _ = run(command, "nothing-there", *two, "--json")
    assert code == 2
    assert json.loads(out)["error"]
    assert list(tmp_path.iterdir()) == []


def test_no_command_and_an_unknown_one(run):
    assert run()[0] == 2
    assert run("nonsense")[0] == 2
    assert run("--version")[:2] == (0, f"zrecord {zrecord.__version__}\n")
    code, out, _ = run("--help")
    assert code == 0
    for command in COMMANDS:
        assert command in out


@pytest.mark.parametrize("command", COMMANDS[:4])
def test_what_is_no_store_is_unreadable(run, tmp_path, command):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "photo.jpg").touch()
    (tmp_path / "file").touch()
    for path in ("folder", "file"):
        code, _, err = run(command, path)
        assert code == 2
        assert path in err


def test_compact_of_a_store_in_use(run, stores):
    with DenseStore("d"):
        code, _, err = run("compact", "d")
    assert code == 2
    assert "another handle" in err


def test_as_a_module_and_as_a_program(stores, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "zrecord", "verify", "d", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"]


def test_a_reader_that_goes_away_is_no_error(stores, tmp_path):
    command = f"{sys.executable} -m zrecord head r -n 6 | true"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- progress -----------------------------------------------------------------------------------


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rich", [True, False])
def test_progress_on_a_terminal_only(run, stores, monkeypatch, rich):
    if rich:
        pytest.importorskip("rich", reason="the package rich is not installed")
    else:
        for name in ("rich", "rich.console", "rich.progress"):
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("zrecord._progress._INTERVAL", 0)
    terminal = _Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        for command in (("verify", "d"), ("copy", "d", "t"), ("export", "d", "d.npy")):
            assert run(*command)[0] == 0
    shown = terminal.getvalue()
    assert "verify" in shown
    assert "%" in shown
    _, _, err = run("verify", "d")
    assert err == ""


def test_ctrl_c_stops_and_leaves_nothing_behind(run, stores, monkeypatch, tmp_path):
    def stop(self, span):
        raise KeyboardInterrupt

    monkeypatch.setattr(DenseStore, "gather", stop)
    before = sorted(tmp_path.iterdir())
    code, _, err = run("copy", "d", "t")
    assert code == 130
    assert err == "zrecord: stopped\n"
    assert sorted(tmp_path.iterdir()) == before
    assert os.listdir(tmp_path / "d")
