"""Every block of code on every page runs, in order, in a folder that was empty before the page.

* ``python`` blocks of a page share their names, as in one session.
* A ``{code-block}`` or ``{literalinclude}`` with a caption is a file of that name; an ``sh`` block
  may run or compile it.
* A ``text`` block is what the block before it prints; ``...`` stands for anything.
* ``% not run: REASON`` above a block, and ``% needs: MODULE`` on a page, are shown when they apply.
"""

from __future__ import annotations

import doctest
import importlib.util
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

DOCS = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page for page in DOCS.glob("*/**/*.md") if "_build" not in page.parts
)


class Block(NamedTuple):
    """A fenced block: its language, its file name if it has one, its text and its first line."""

    language: str
    file: str | None
    text: str
    line: int
    not_run: str | None


def blocks(page: Path) -> list[Block]:
    source = page.read_text("utf-8")
    lines = source.splitlines()
    found = []
    for token in MarkdownIt("commonmark").parse(source):
        if token.type != "fence":
            continue
        language, file, text = token.info.strip(), None, token.content
        first = token.map[0] + 1
        directive = re.fullmatch(r"\{code-block\} (\w+)", language)
        if directive:
            language = directive[1]
            options, _, text = text.partition("\n\n")
            file = re.search(r":caption: (\S+)", options)[1]
            first += options.count("\n") + 2
        elif language.startswith("{literalinclude}") and ":caption:" in text:
            included = page.parent / language.partition(" ")[2]
            file = re.search(r":caption: (\S+)", text)[1]
            text = included.read_text("utf-8")
        elif language.startswith("{"):
            continue
        above = next(
            (line for line in reversed(lines[: token.map[0]]) if line.strip()), ""
        )
        reason = re.fullmatch(r"% not run: (.+)", above)
        found.append(
            Block(language, file, text, first, reason[1] if reason else None)
        )
    return found


def show_difference(block: Block, printed: str | None, page: Path) -> None:
    where = f"{page.relative_to(DOCS)}:{block.line}"
    assert printed is not None, f"{where}: no block before it prints this"
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS
    if not checker.check_output(block.text, printed, flags):
        pytest.fail(
            f"{where}: the page shows\n{block.text}\nbut this is printed\n{printed}"
        )


def run_python(block: Block, page: Path, names: dict[str, object]) -> str:
    # Empty lines in front, so that a traceback shows the page's own line numbers.
    code = compile("\n" * block.line + block.text, str(page), "exec")
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def run_shell(block: Block, page: Path, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", block.text],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (
        f"{page.relative_to(DOCS)}:{block.line}: exit code {done.returncode}\n"
        f"{done.stdout}{done.stderr}"
    )
    return done.stdout


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix()
)
def test_page(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for module in re.findall(
        r"^% needs: (\w+)$", page.read_text("utf-8"), re.MULTILINE
    ):
        if importlib.util.find_spec(module) is None:
            pytest.skip(
                f"{page.relative_to(DOCS)} did not run: {module} is not installed"
            )
    names: dict[str, object] = {"__name__": "__page__"}
    printed: str | None = None
    for block in blocks(page):
        if block.not_run:
            with capsys.disabled():
                print(
                    f"\n{page.relative_to(DOCS)}:{block.line} not run: {block.not_run}"
                )
            printed = None
        elif block.file is not None:
            (tmp_path / block.file).write_text(block.text, "utf-8")
            printed = None
        elif block.language == "python":
            printed = run_python(block, page, names)
        elif block.language == "sh":
            printed = run_shell(block, page, tmp_path)
        elif block.language == "text":
            show_difference(block, printed, page)
        else:
            pytest.fail(
                f"{page}:{block.line}: a {block.language!r} block, which nothing runs"
            )


def test_blocks_are_found():
    assert sum(len(blocks(page)) for page in PAGES) > 40
