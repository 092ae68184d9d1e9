"""The package itself: names, versions, logging, files for C, examples, types, a quiet end."""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
import logging
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zrecord
from conftest import ROWS
from zrecord import DenseStore, RaggedStore

NAMES = {
    *("DICT_TIERS", "DenseStore", "RaggedBatch", "RaggedStore", "VerifyReport", "train_dict"),
    *("get_include", "get_library", "get_num_threads", "set_num_threads", "show_versions"),
    *("ZrecordError", "StoreBusy", "StoreClosed", "StoreFailed", "StoreChanged", "ReadOnlyStore"),
    *("ForkedHandle", "UnsupportedFormat", "CorruptStore", "CorruptRecord", "RecordIndexError"),
    "__version__",
}


def _modules() -> list[str]:
    found = pkgutil.iter_modules(zrecord.__path__, "zrecord.")
    return [m.name for m in found if m.name not in ("zrecord.__main__", "zrecord._cffi")]


def test_public_names():
    assert set(zrecord.__all__) == NAMES
    for name in NAMES:
        assert hasattr(zrecord, name)


@pytest.mark.parametrize("name", sorted(NAMES - {"__version__", "DICT_TIERS"}))
def test_every_public_name_says_what_it_is(name):
    public = getattr(zrecord, name)
    assert public.__doc__
    if isinstance(public, type) and public.__module__ in ("zrecord._dense", "zrecord._ragged"):
        for member in dir(public):
            if not member.startswith("_"):
                assert getattr(public, member).__doc__, member


@pytest.mark.parametrize("module", _modules())
def test_the_examples_run(module):
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_there_are_examples():
    examples = sum(
        len(test.examples)
        for module in _modules()
        for test in doctest.DocTestFinder().find(importlib.import_module(module))
    )
    assert examples > 20


def test_version_is_the_distributions():
    assert zrecord.__version__ == importlib.metadata.version("zrecord")


def test_show_versions(capsys):
    assert zrecord.show_versions() is None
    shown = capsys.readouterr().out
    for part in ("zrecord", zrecord.__version__, np.__version__, "msgpack", "cffi", "C ABI"):
        assert part in shown
    assert zrecord.get_library() in shown


def test_files_for_c():
    assert (Path(zrecord.get_include()) / "zrecord.h").is_file()
    assert Path(zrecord.get_library()).is_file()
    assert os.path.isabs(zrecord.get_include())
    assert os.path.isabs(zrecord.get_library())


def test_typed():
    assert (Path(zrecord.__file__).parent / "py.typed").is_file()


def test_logging_without_output():
    logger = logging.getLogger("zrecord")
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    assert logger.level == logging.NOTSET


def test_only_one_module_knows_cffi():
    for file in Path(zrecord.__file__).parent.glob("*.py"):
        if file.name not in ("_native.py", "_cffi.py") and not file.name.startswith("_cffi"):
            text = file.read_text(encoding="utf-8")
            assert "import cffi" not in text
            assert "_cffi import" not in text


def test_a_stranger_library_is_refused_at_import():
    program = (
        "import zrecord._cffi as c\n"
        "class Other:\n"
        "    def zr_abi_version(self): return 99\n"
        "class Ffi:\n"
        "    def __getattr__(self, name): return getattr(real, name)\n"
        "    def dlopen(self, path): return Other()\n"
        "real, c.ffi = c.ffi, Ffi()\n"
    )
    # The package imports its parts in order, so the stand-in is put in place by an import hook.
    hook = (
        "import sys, importlib.util, types\n"
        "package = types.ModuleType('zrecord')\n"
        "package.__path__ = importlib.util.find_spec('zrecord').submodule_search_locations\n"
        "sys.modules['zrecord'] = package\n"
    )
    done = _python(hook + program + "import zrecord._native\n")
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "C ABI version 99" in done.stderr


# ---- a quiet end --------------------------------------------------------------------------------


def _python(program: str, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *options, "-c", program], capture_output=True, text=True, timeout=60
    )


MAKE = (
    "import numpy as np, tempfile, zrecord\n"
    "s = zrecord.DenseStore(tempfile.mkdtemp() + '/s', 'f4', (4,))\n"
    "s.append(np.ones((1000, 4), 'f4'))\n"
)


@pytest.mark.parametrize(
    "program",
    [
        MAKE,
        MAKE + "batch = s[:]\n",
        MAKE + "it = iter(s); next(it)\n",
        MAKE + "s.sync()\n",
        MAKE + "s.close(); batch = s\n",
        MAKE + "class Keep:\n    def __del__(self): self.s\nk = Keep(); k.s = s\n",
        MAKE + "import threading, time\n"
        "def read():\n    while True: s[:]\n"
        "for _ in range(3): threading.Thread(target=read, daemon=True).start()\n"
        "time.sleep(0.2)\n",
    ],
)
def test_the_end_of_a_program_is_silent(program):
    done = _python(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_dropped_store_warns_of_what_was_not_synced(tmp_path):
    store = DenseStore(tmp_path / "s", "f4", (2, 3))
    store.append(ROWS)
    with pytest.warns(ResourceWarning, match="close"):
        del store
    with DenseStore(tmp_path / "s", mode="r") as again:
        assert len(again) == 10


@pytest.mark.filterwarnings("error")
def test_a_dropped_store_with_nothing_to_lose_is_silent(tmp_path):
    store = DenseStore(tmp_path / "s", "f4", (2, 3))
    store.append(ROWS)
    store.sync()
    del store
    store = RaggedStore(tmp_path / "r", "f4")
    del store
    store = DenseStore(tmp_path / "s", mode="r")
    assert len(store) == 10
    del store
    store = DenseStore(tmp_path / "s")
    store.append(ROWS)
    store.close()
    del store


def test_a_dropped_store_frees_its_lock(tmp_path):
    store = DenseStore(tmp_path / "s", "f4", (2, 3))
    store.append(ROWS)
    store.sync()
    del store
    with DenseStore(tmp_path / "s") as again:
        assert len(again) == 10


# ---- types --------------------------------------------------------------------------------------

PROGRAM = Path(__file__).parent / "typing_program.py"


def _check(*command: str) -> None:
    environment = {**os.environ, "MYPYPATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        [*command, str(PROGRAM)], capture_output=True, text=True, cwd="/", env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_typing_program_by_mypy(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    cache = f"--cache-dir={tmp_path}"
    _check(sys.executable, "-m", "mypy", "--strict", "--warn-unreachable", cache)


def test_the_typing_program_by_pyright():
    if shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    _check("pyright", "--pythonpath", sys.executable)
