"""The Sphinx directive `figures`: what test programs reported, out of figures.json.

    ```{figures}
    crash states: what is tested, in words
    ```

A program that figures.json does not have is a warning, and so an error: the pages name no figure
that was not recorded (record_figures.py) from a run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

SOURCE = Path(__file__).resolve().parent / "figures.json"
HEADINGS = (
    "program",
    "what it does",
    "its last recorded run",
    "failed",
    "revision",
)


class Figures(Directive):
    """Draw a table of the programs that the content names, one a line."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.state.document.settings.env.note_dependency(str(SOURCE))
        recorded = json.loads(SOURCE.read_text("utf-8"))
        rows = []
        for line in self.content:
            title, _, words = line.partition(":")
            if title not in recorded:
                getLogger(__name__).warning("figures.json has no run of %r", title)
                continue
            run = recorded[title]
            counts = ", ".join(f"{n:,} {name}" for name, n in run["counts"].items())
            rows.append(
                (title, words.strip(), counts, f"{run['failed']}", run["revision"])
            )
        return [table(HEADINGS, rows)]


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> nodes.table:
    """Return a table of plain text."""
    body = nodes.tbody()
    for row in rows:
        body += _row(row)
    group = nodes.tgroup(
        "", *(nodes.colspec(colwidth=1) for _ in headings), cols=len(headings)
    )
    group += nodes.thead("", _row(headings))
    group += body
    return nodes.table("", group)


def _row(cells: tuple[str, ...]) -> nodes.row:
    return nodes.row(
        "", *(nodes.entry("", nodes.paragraph(text=cell)) for cell in cells)
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("figures", Figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
