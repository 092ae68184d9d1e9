"""C and C++ programs, compiled against the installed package: they and Python read each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zrecord
from zrecord import DenseStore

SOURCE = Path(__file__).resolve().parents[1] / "examples/store.c"
LIBRARY = Path(zrecord.get_library())
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
LANGUAGES = {
    "c11": (["gcc", "cc", "clang"], ["-std=c11", "-x", "c"]),
    "c++17": (["g++", "c++", "clang++"], ["-std=c++17", "-x", "c++"]),
}

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the command lines are those of gcc and clang on Unix"
)


def _run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stderr}"
    return done.stdout


def _compile(language: str, folder: Path, include: list[str], library: list[str]) -> Path:
    names, options = LANGUAGES[language]
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip(f"no compiler for {language} is on PATH: none of {', '.join(names)}")
    program = folder / "store"
    rpath = f"-Wl,-rpath,{LIBRARY.parent}"
    # -x none: what follows the source is a library again.
    source = [*options, str(SOURCE), "-x", "none"]
    _run(compiler, *STRICT, *include, *source, *library, rpath, "-o", program)
    return program


def _check_both_ways(program: Path, folder: Path) -> None:
    written = folder / "written by C"
    assert _run(program, "write", written) == "appended 4 at 0, deleted 1\n3 records, 0 damaged\n"
    expected = np.arange(12, dtype=np.float32).reshape(4, 3)
    with DenseStore(written, mode="r") as store:
        assert store.dtype == np.float32
        assert store.item_shape == (3,)
        assert store.codec == "zstd"
        # The last record took the place of the deleted one.
        np.testing.assert_array_equal(store[:], expected[[3, 1, 2]])
        assert store.verify().ok
    # What C wrote grows by what C appends to it again, under one identity.
    assert _run(program, "write", written).startswith("appended 4 at 3")

    read = folder / "written by Python"
    points = np.random.default_rng(3).integers(-999, 999, (150, 3)).astype(np.float32)
    with DenseStore(read, np.float32, (3,)) as store:
        store.append(points)
    *lines, verified = _run(program, "read", read).splitlines()
    np.testing.assert_array_equal(np.array([line.split() for line in lines], np.float32), points)
    assert verified == "150 records, 0 damaged"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_and_python_read_each_others_stores(language, tmp_path):
    include = [f"-I{zrecord.get_include()}"]
    program = _compile(language, tmp_path, include, [str(LIBRARY)])
    _check_both_ways(program, tmp_path)


def test_a_program_by_pkg_config(tmp_path):
    tool = shutil.which("pkg-config")
    if tool is None:
        pytest.skip("pkg-config is not on PATH")
    path = str(LIBRARY.parent / "pkgconfig")
    flags = {
        what: _run(tool, what, "zrecord", PKG_CONFIG_PATH=path).split()
        for what in ("--cflags", "--libs")
    }
    program = _compile("c11", tmp_path, flags["--cflags"], flags["--libs"])
    _check_both_ways(program, tmp_path)
    header = (Path(zrecord.get_include()) / "zrecord.h").read_text("utf-8")
    version = _run(tool, "--modversion", "zrecord", PKG_CONFIG_PATH=path).strip()
    assert f"#define ZR_ABI_VERSION {version}\n" in header


def test_a_program_that_fails_says_so(tmp_path):
    include = [f"-I{zrecord.get_include()}"]
    program = _compile("c11", tmp_path, include, [str(LIBRARY)])
    done = subprocess.run([program, "read", tmp_path / "none"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("status 300,")
