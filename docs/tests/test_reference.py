"""The reference holds every public name, and the pages name no task and no version that is not."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import loaderx
import numpy as np
import pytest
import zrecord
from zrecord import DenseStore

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
TEXTS = [
    *(page for page in DOCS.glob("*/**/*.md") if "_build" not in page.parts),
    *ROOT.glob("*.md"),
    *ROOT.glob("packages/*/*.md"),
    DOCS / "record_figures.py",
]
DIRECTIVE = re.compile(
    r"\.\. (?:auto(?:class|function|data|exception)|py:data):: (\S+)"
)


@pytest.mark.parametrize("package", ["zrecord", "loaderx"])
def test_the_reference_holds_every_public_name(package):
    pages = (DOCS / package / "reference").glob("*.md")
    documented = {
        name
        for page in pages
        for name in DIRECTIVE.findall(page.read_text("utf-8"))
    }
    inner = {name for name in documented if "." in name}
    assert documented - inner == set(importlib.import_module(package).__all__)
    # A longer name is a module's path, then names inside it.
    for name in inner:
        module, _, rest = name.replace("::", ":").partition(":")
        if not rest:
            module, _, rest = name.rpartition(".")
        found = importlib.import_module(module)
        for part in rest.split("."):
            found = getattr(found, part)


def test_attributes_that_the_reference_writes_out():
    batch = zrecord.RaggedBatch(np.arange(3), np.array([0, 3]))
    assert batch.values.ndim == batch.offsets.ndim == 1
    assert {mode.name: int(mode) for mode in loaderx.Sampler.Mode} == {
        "SEQUENTIAL": 0, "IID": 1, "CYCLIC": 2,
    }  # fmt: skip
    assert "DataLoader" in loaderx.dataloader.__all__


def sessions() -> set[str]:
    """Return what `nox -s` can be followed by, without parameters."""
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(
            "nox.session" in ast.unparse(decorator)
            for decorator in node.decorator_list
        )
    }


def named(text: Path) -> set[str]:
    """Return the tasks that a text tells to run."""
    found = set()
    for words in re.findall(r"nox -s ([^`\n&|]*)", text.read_text("utf-8")):
        for name in words.partition(" -- ")[0].partition(" 2>")[0].split():
            found.add(re.sub(r"[-(].*", "", name.strip('"')))
    return found


@pytest.mark.parametrize(
    "text", TEXTS, ids=lambda text: text.relative_to(ROOT).as_posix()
)
def test_named_tasks_exist(text):
    missing = named(text) - sessions()
    assert not missing, (
        f"{text.relative_to(ROOT)}: nox has no session {sorted(missing)}"
    )


def test_every_task_is_named():
    assert sessions() <= set().union(*map(named, TEXTS))


def versions(page: str) -> dict[str, str]:
    rows = re.findall(
        r"^\| ([^|]+) \| ([\d.]+) \|",
        (DOCS / page).read_text("utf-8"),
        re.MULTILINE,
    )
    return dict(rows)


def constant(path: str, pattern: str) -> str:
    return re.search(pattern, (ROOT / path).read_text("utf-8"))[1]


def test_versions_of_zrecord(tmp_path):
    with DenseStore(tmp_path / "store", np.uint8, ()):
        pass
    shown = versions("zrecord/versions.md")
    assert shown == {
        "package": zrecord.__version__,
        "C ABI": constant(
            "native/include/zrecord.h", r"#define ZR_ABI_VERSION (\d+)"
        ),
        "on-disk format": str((tmp_path / "store/store.zr").read_bytes()[4]),
    }


def test_versions_of_loaderx():
    state = loaderx.DataLoader({"x": np.arange(9)}, batch_size=3).state_dict()
    assert versions("loaderx/versions.md") == {
        "package": loaderx.__version__,
        "C ABI of libzsampler": constant(
            "native/include/zsampler.h", r"#define ZS_ABI_VERSION (\d+)"
        ),
        "saved state": str(state["version"]),
    }


def test_every_measured_question_is_on_a_page():
    shown = set()
    for package in ("zrecord", "loaderx"):
        page = (DOCS / package / "benchmarks.md").read_text("utf-8")
        shown |= set(re.search(r"\{benchmarks\} (.+)", page)[1].split())
    results = {path.stem for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert {name.removesuffix("-free-threaded") for name in results} <= shown
