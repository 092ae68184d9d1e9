"""Opening and creating: the three modes, what is compared, what is refused untouched."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import ROWS, assert_same
from zrecord import (
    CorruptStore,
    DenseStore,
    RaggedStore,
    ReadOnlyStore,
    StoreBusy,
    UnsupportedFormat,
    ZrecordError,
)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_mode_a_creates_with_missing_parents(tmp_path):
    path = tmp_path / "a" / "b" / "c"
    with DenseStore(path, "f4", (2,)) as store:
        assert store.mode == "a"
        assert len(store) == 0
    assert path.is_dir()


def test_mode_a_creates_in_an_empty_folder(tmp_path):
    with RaggedStore(tmp_path, "i4") as store:
        assert store.append([np.ones(2, "i4")]) == 0


def test_mode_a_opens_what_is_there_for_reading_and_writing(tmp_path):
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(ROWS)
    with DenseStore(tmp_path / "s") as store:
        assert store.dtype == np.float32
        assert store.item_shape == (2, 3)
        assert store.append(ROWS[:1]) == 10
        assert_same(store[:], np.concatenate([ROWS, ROWS[:1]]))


@pytest.mark.parametrize("kind", [DenseStore, RaggedStore])
@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("empty_folder", [False, True])
def test_nothing_there_without_dtype_is_file_not_found(tmp_path, kind, mode, empty_folder):
    path = tmp_path / "s"
    if empty_folder:
        path.mkdir()
    with pytest.raises(FileNotFoundError) as caught:
        kind(path, mode=mode)
    assert caught.value.filename == str(path)
    assert path.exists() == empty_folder


def test_mode_r_never_creates(tmp_path):
    with pytest.raises(FileNotFoundError):
        DenseStore(tmp_path / "s", "f4", (2,), mode="r")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [{"dtype": "f4"}, {"item_shape": (2,)}])
@pytest.mark.parametrize("mode", ["a", "x"])
def test_creating_with_part_of_the_identity_is_a_type_error(tmp_path, arguments, mode):
    with pytest.raises(TypeError, match="creating"):
        DenseStore(tmp_path / "s", mode=mode, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_mode_x_creates_without_looking_twice(tmp_path):
    with pytest.raises(TypeError):
        RaggedStore(tmp_path / "s", mode="x")
    with RaggedStore(tmp_path / "s", "i4", mode="x") as store:
        assert store.mode == "x"
        assert store.append([np.ones(1, "i4")]) == 0


def test_mode_x_refuses_a_store_and_touches_nothing(tmp_path):
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(ROWS)
    before = _tree(tmp_path)
    with pytest.raises(FileExistsError) as caught:
        DenseStore(tmp_path / "s", "f4", (2, 3), mode="x")
    assert caught.value.filename == str(tmp_path / "s")
    with pytest.raises(FileExistsError):
        RaggedStore(tmp_path / "s", "i4", mode="x")
    assert _tree(tmp_path) == before


def test_creating_over_a_store_in_use_touches_nothing(tmp_path):
    with DenseStore(tmp_path / "s", "f4", (2, 3)) as store:
        store.append(ROWS)
        with pytest.raises(FileExistsError):
            DenseStore(tmp_path / "s", "f8", (9,), mode="x")
        with pytest.raises(StoreBusy):
            DenseStore(tmp_path / "s", "f4", (2, 3))
        assert_same(store[:], ROWS)
        assert store.append(ROWS) == 10


@pytest.mark.parametrize("kind", [DenseStore, RaggedStore])
@pytest.mark.parametrize("name", ["photo.jpg", "lock2", "meta.zr", "0.chunk", ".hidden"])
def test_a_folder_with_anything_else_is_refused_untouched(tmp_path, kind, name):
    (tmp_path / name).write_bytes(b"mine")
    arguments = ("f4", (2,)) if kind is DenseStore else ("f4",)
    with pytest.raises(UnsupportedFormat, match=tmp_path.name):
        kind(tmp_path, *arguments)
    with pytest.raises(UnsupportedFormat):
        kind(tmp_path, mode="r")
    with pytest.raises(FileExistsError):
        kind(tmp_path, *arguments, mode="x")
    assert _tree(tmp_path) == {name: b"mine"}


def test_an_unfinished_creation_is_said_to_be_one_and_cleared_by_the_next(tmp_path):
    path = tmp_path / "s"
    path.mkdir()
    (path / "lock").touch()
    (path / "meta.zr").write_bytes(b"half")
    with pytest.raises(UnsupportedFormat, match="never ended"):
        DenseStore(path, mode="r")
    with pytest.raises(UnsupportedFormat, match="never ended"):
        DenseStore(path)
    assert _tree(path) == {"lock": b"", "meta.zr": b"half"}
    with DenseStore(path, "f4", (2, 3)) as store:
        store.append(ROWS)
        assert_same(store[:], ROWS)


def test_an_unfinished_creation_beside_a_foreign_file_is_kept(tmp_path):
    path = tmp_path / "s"
    path.mkdir()
    (path / "lock").touch()
    (path / "notes.txt").write_bytes(b"mine")
    with pytest.raises(UnsupportedFormat):
        DenseStore(path, "f4", (2, 3))
    assert _tree(path) == {"lock": b"", "notes.txt": b"mine"}


def test_another_kind_is_a_value_error_naming_both(tmp_path):
    DenseStore(tmp_path / "d", "f4", ()).close()
    RaggedStore(tmp_path / "r", "f4").close()
    for mode in ("a", "r"):
        with pytest.raises(ValueError, match=r"dense.*ragged"):
            RaggedStore(tmp_path / "d", mode=mode)
        with pytest.raises(ValueError, match=r"ragged.*dense"):
            DenseStore(tmp_path / "r", mode=mode)


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize(
    ("arguments", "both"),
    [
        ({"dtype": "f8"}, r"float32.*float64"),
        ({"dtype": ">f4"}, r"float32.*>f4"),
        ({"item_shape": (3, 2)}, r"\(2, 3\).*\(3, 2\)"),
        ({"item_shape": ()}, r"\(2, 3\).*\(\)"),
        ({"codec": "raw"}, r"zstd.*raw"),
        ({"codec": "zstd_dict"}, r"zstd.*zstd_dict"),
    ],
)
def test_another_type_is_a_value_error_naming_both(tmp_path, mode, arguments, both):
    DenseStore(tmp_path / "s", "f4", (2, 3)).close()
    with pytest.raises(ValueError, match=both):
        DenseStore(tmp_path / "s", mode=mode, **arguments)


def test_the_type_is_compared_before_the_lock_is_taken(tmp_path):
    with (
        DenseStore(tmp_path / "s", "f4", (2, 3)),
        pytest.raises(ValueError, match="float64"),
    ):
        DenseStore(tmp_path / "s", "f8", (2, 3))


def test_what_is_given_again_may_be_all_of_it(tmp_path):
    DenseStore(tmp_path / "s", "f4", (2, 3), "raw").close()
    with DenseStore(tmp_path / "s", np.float32, [2, 3], "raw") as store:
        assert store.codec == "raw"


def test_two_writers_and_the_advice(dense):
    with pytest.raises(StoreBusy, match='mode="r"') as caught:
        DenseStore(dense.path)
    assert isinstance(caught.value, BlockingIOError)
    with DenseStore(dense.path, mode="r") as reader:
        assert_same(reader[:], ROWS)


def test_a_reader_does_not_write(dense):
    with DenseStore(dense.path, mode="r") as reader:
        for write in (
            lambda: reader.append(ROWS),
            lambda: reader.append(ROWS[:0]),
            lambda: reader.delete(0),
            reader.compact,
            reader.sync,
        ):
            with pytest.raises(ReadOnlyStore) as caught:
                write()
            assert isinstance(caught.value, PermissionError)
            assert caught.value.filename == dense.path


def test_codec_default_is_zstd(tmp_path):
    with DenseStore(tmp_path / "s", "f4", ()) as store:
        assert store.codec == "zstd"
        assert not store.has_dict


def test_each_codec_gives_the_records_back(tmp_path, codec, codec_options):
    with DenseStore(tmp_path / "s", "f4", (2, 3), **codec_options) as store:
        store.append(ROWS)
        assert store.codec == codec
        assert store.has_dict == (codec == "zstd_dict")
    with DenseStore(tmp_path / "s", mode="r") as store:
        assert store.codec == codec
        assert store.has_dict == (codec == "zstd_dict")
        assert_same(store[:], ROWS)


def test_zstd_dict_needs_dict_bytes_at_creation(tmp_path, dictionary):
    with pytest.raises(ValueError, match="dict_bytes"):
        RaggedStore(tmp_path / "s", "u1", "zstd_dict")
    for codec in (None, "raw", "zstd"):
        with pytest.raises(ValueError, match="zstd_dict"):
            RaggedStore(tmp_path / "s", "u1", codec, dictionary)
    assert list(tmp_path.iterdir()) == []
    RaggedStore(tmp_path / "s", "u1", "zstd_dict", dictionary).close()
    for mode in ("a", "r"):
        with pytest.raises(ValueError, match="creation"):
            RaggedStore(tmp_path / "s", dict_bytes=dictionary, mode=mode)
    with pytest.raises(ValueError, match="16777216"):
        RaggedStore(tmp_path / "t", "u1", "zstd_dict", b"")
    with pytest.raises(TypeError, match="int"):
        RaggedStore(tmp_path / "t", "u1", "zstd_dict", 5)
    with RaggedStore(tmp_path / "t", "u1", "zstd_dict", bytearray(dictionary)) as store:
        assert store.has_dict


@pytest.mark.parametrize("name", ["codec", "mode", "checksums"])
def test_an_unknown_choice_is_a_value_error_that_lists_them(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} is .*lz4"):
        DenseStore(tmp_path / "s", "f4", (), **{name: "lz4"})
    with pytest.raises(TypeError, match=name):
        DenseStore(tmp_path / "s", "f4", (), **{name: 3})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("checksums", [None, "always", "once", "off"])
def test_checksum_modes_read_the_same(tmp_path, checksums, codec, codec_options):
    with DenseStore(tmp_path / "s", "f4", (2, 3), **codec_options, checksums=checksums) as store:
        store.append(ROWS)
        assert_same(store[::-1], ROWS[::-1])
    with DenseStore(tmp_path / "s", mode="r", checksums=checksums) as store:
        for _ in range(2):
            assert_same(store[:], ROWS)
        assert store.verify().ok


def test_paths_of_every_kind(tmp_path):
    for number, path in enumerate(
        [tmp_path / "p", str(tmp_path / "s"), os.fsencode(tmp_path / "b")]
    ):
        with DenseStore(path, "i8", ()) as store:
            assert store.append(np.array([number])) == 0
            assert store.path == os.fsdecode(path)
        with DenseStore(path, mode="r") as store:
            assert store[0] == number
    with pytest.raises(TypeError):
        DenseStore(5, "i8", ())
    with pytest.raises(ValueError, match="NUL"):
        DenseStore("a\0b", "i8", ())


def test_a_path_that_is_not_utf8(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff\xfe"
    try:
        os.mkdir(path)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with RaggedStore(path, "u1") as store:
        store.append([b"abc"])
    with RaggedStore(os.fsdecode(path), mode="r") as store:
        assert bytes(store[0]) == b"abc"


def test_a_relative_path_outlives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with DenseStore("s", "f4", (2, 3)) as store:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        store.append(ROWS)
        assert_same(store[:], ROWS)
        assert store.path == "s"
    assert list((tmp_path / "other").iterdir()) == []


def test_a_path_that_is_a_file_is_the_ordinary_error(tmp_path):
    path = tmp_path / "s"
    path.write_bytes(b"a file")
    for arguments in ({}, {"dtype": "f4", "item_shape": ()}):
        for mode in ("a", "r"):
            with pytest.raises(OSError, match="s") as caught:
                DenseStore(path, mode=mode, **arguments)
            assert caught.value.errno
            assert caught.value.filename.startswith(str(path))
    assert path.read_bytes() == b"a file"


def test_a_damaged_header_says_so(tmp_path):
    DenseStore(tmp_path / "s", "f4", (2, 3)).close()
    header = tmp_path / "s" / "store.zr"
    whole = header.read_bytes()
    for cut in (0, 1, 31, 32, len(whole) - 1):
        header.write_bytes(whole[:cut])
        with pytest.raises((CorruptStore, UnsupportedFormat), match="s"):
            DenseStore(tmp_path / "s", mode="r")
    header.write_bytes(whole)
    DenseStore(tmp_path / "s", mode="r").close()


@pytest.mark.parametrize("version", [4, 6, 99])
def test_another_format_version_is_one_clear_message(tmp_path, version):
    DenseStore(tmp_path / "s", "f4", (2, 3)).close()
    header = tmp_path / "s" / "store.zr"
    data = bytearray(header.read_bytes())
    data[4] = version
    header.write_bytes(bytes(data))
    for arguments in ({"mode": "r"}, {}, {"dtype": "f4", "item_shape": (2, 3)}):
        with pytest.raises(UnsupportedFormat, match=rf"version {version}\b.* version 5"):
            DenseStore(tmp_path / "s", **arguments)
    assert header.read_bytes() == data


@pytest.mark.parametrize("name", ["store.zr", "meta.zr", "0.loc", "0.chunk"])
@pytest.mark.parametrize("special", ["fifo", "folder", "link to nothing", "link to /dev/zero"])
def test_special_files_in_the_folder_do_not_hang(tmp_path, name, special):
    with DenseStore(tmp_path / "s", "f4", (2, 3), "raw") as store:
        store.append(ROWS)
    path = tmp_path / "s" / name
    path.unlink()
    if special == "fifo":
        os.mkfifo(path)
    elif special == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if "zero" in special else "nothing")
    for mode in ("r", "a"):
        with pytest.raises((ZrecordError, OSError), match="s"):
            DenseStore(tmp_path / "s", mode=mode)[:]


def test_repr_reads_like_the_call(tmp_path):
    with DenseStore(tmp_path / "s", "f4", (2, 3), "raw") as store:
        expected = (
            f"DenseStore({str(tmp_path / 's')!r}, dtype='float32', item_shape=(2, 3), "
            "codec='raw', mode='a')"
        )
        assert repr(store) == expected
    assert repr(store) == f"<closed DenseStore {str(tmp_path / 's')!r}>"
    with eval(expected) as again:
        assert repr(again) == expected
    with RaggedStore(tmp_path / "r", "i4") as store:
        assert repr(store) == f"RaggedStore({store.path!r}, dtype='int32', codec='zstd', mode='a')"


def test_mapping_can_be_turned_off(tmp_path, monkeypatch):
    monkeypatch.setenv("ZRECORD_MMAP", "0")
    with DenseStore(tmp_path / "s", "f4", (2, 3), "raw") as store:
        store.append(ROWS)
        assert_same(store[::2], ROWS[::2])
        mapped = Path(f"/proc/{os.getpid()}/maps")
        if mapped.exists():
            assert str(tmp_path / "s") not in mapped.read_text()
