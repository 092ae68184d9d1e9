"""The program in the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_programs():
    assert PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_runs(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(program, str(README), "exec"), names)
    assert names["batch"].shape == (4, 8, 8)
    assert [bytes(text) for text in names["texts"]] == [b"and a longer record", b"a record"]
