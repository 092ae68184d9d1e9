"""The programs in the READMEs run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from zrecord import DenseStore, RaggedStore

PACKAGE = Path(__file__).parents[1]


def programs(readme: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, readme: Path) -> dict:
    names: dict = {}
    exec(compile(program, str(readme), "exec"), names)
    for stream in names["streams"].values():
        stream.close()
    return names


def test_the_program_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with DenseStore("images", np.uint8, (8, 8)) as store:
        store.append(np.zeros((100, 8, 8), np.uint8))
    with RaggedStore("texts", np.uint8) as store:
        store.append([b"a text"] * 100)
    (program,) = programs(PACKAGE / "README.md")
    names = run(program, PACKAGE / "README.md")
    assert names["batch"]["image"].shape == (64, 8, 8)
    assert names["state"]["step"] == 1000


def test_the_program_of_the_repository(tmp_path, monkeypatch):
    readme = PACKAGE.parents[1] / "README.md"
    if not (readme.is_file() and (readme.parent / "noxfile.py").is_file()):
        pytest.skip("these tests come from a source distribution, without the repository's README")
    monkeypatch.chdir(tmp_path)
    (program,) = programs(readme)
    names = run(program, readme)
    assert names["state"]["step"] == 10
