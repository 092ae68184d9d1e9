"""Two Sphinx directives that draw benchmarks/results/*.json.

    ```{benchmarks} dense ragged
    ```

draws a table with bars for each group of the named questions, and

    ```{distances} dense ragged
    ```

one table of what they aim at: the rival's time over ours, and the share of the machine's limit. A
question without a file is said to be not measured.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

HARNESS = Path(__file__).resolve().parents[1] / "benchmarks"
RESULTS = HARNESS / "results"
sys.path.append(str(HARNESS))
from report import target_line  # noqa: E402
from targets import TARGETS  # noqa: E402

OURS = ("zrecord", "loaderx")
PREDECESSOR = "loaderx 1.7"


def is_ours(contender: str) -> bool:
    """Tell whether a row is one of these two packages; its predecessor is a rival."""
    return contender.startswith(OURS) and not contender.startswith(PREDECESSOR)


class Benchmarks(Directive):
    """Draw the results of the named questions."""

    required_arguments = 1
    final_argument_whitespace = True
    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        """Return a section for each question that was measured."""
        drawn: list[nodes.Node] = []
        missing = []
        for question in self.arguments[0].split():
            found = sorted(RESULTS.glob(f"{question}.json")) + sorted(
                RESULTS.glob(f"{question}-free-threaded.json")
            )
            for path in found:
                self.state.document.settings.env.note_dependency(str(path))
                drawn.append(
                    _section(path.stem, json.loads(path.read_text("utf-8")))
                )
            if not found:
                missing.append(question)
        if missing:
            words = f"Not measured, or not committed: {', '.join(missing)}."
            drawn.append(nodes.paragraph(text=words))
        return drawn


class Distances(Directive):
    """Draw how far the results of the named questions are from their targets and limits."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return one table."""
        lines = []
        for question in self.arguments[0].split():
            path = RESULTS / f"{question}.json"
            if path.exists():
                self.state.document.settings.env.note_dependency(str(path))
                document = json.loads(path.read_text("utf-8"))
                asked = [t for t in TARGETS if t.question == question]
                lines += [_distance(document, target) for target in asked]
        if not lines:
            return [nodes.paragraph(text="Not measured, or not committed.")]
        head = ("figure", "ours", "against", "reached", "asked", "of the limit")
        return [
            nodes.raw(
                "",
                '<table class="benchmark"><thead><tr>'
                + "".join(f"<th>{cell}</th>" for cell in head)
                + f"</tr></thead><tbody>{''.join(lines)}</tbody></table>",
                format="html",
            )
        ]


def _distance(document: dict[str, Any], target: Any) -> str:
    line = target_line(document, target)
    what = f"{target.question}: {target.group}"
    if line is None:
        cells = [
            what,
            target.ours[0],
            target.against[0] if target.against else "",
            "not run",
        ]
        cells += ["", ""]
    else:
        share = "" if line["limit"] is None else f"{line['limit']:.2f}"
        against, asked = line["against"], line["at_least"]
        cells = [what, line["ours"], against, line["figure"], asked, share]
    kind = "" if line is None or line["met"] else ' class="missed"'
    return (
        f"<tr{kind}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
    )


def _section(name: str, document: dict[str, Any]) -> nodes.section:
    section = nodes.section(ids=[nodes.make_id(name)])
    section += nodes.title(text=name)
    machine = document["machine"]
    section += nodes.paragraph(
        text=f"{machine['processor']}, {machine['cpus']} CPUs, {machine['system']}, "
        f"{machine['python']}; {document['started'][:10]}."
    )
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        groups.setdefault(row["group"], []).append(row)
    for group, rows in groups.items():
        section += nodes.rubric(text=group)
        section += nodes.raw("", _table(rows), format="html")
    if document["not_run"]:
        reasons = "; ".join(
            f"{who} ({why})" for who, why in sorted(document["not_run"].items())
        )
        section += nodes.paragraph(text=f"Not run: {reasons}.")
    return section


def _table(rows: list[dict[str, Any]]) -> str:
    timed = [row for row in rows if "median" in row]
    if timed:
        lines = []
        ours = [row for row in timed if is_ours(row["contender"])]
        base = min((row["median"] for row in ours), default=None)
        best = min(row["median"] for row in timed)
        for row in sorted(timed, key=lambda row: float(row["median"])):
            ratio = f"{row['median'] / base:.2f}" if base else ""
            cells = (
                _duration(row["median"]), _rate(row, "records"), _rate(row, "bytes"), ratio,
            )  # fmt: skip
            bar = f'<div class="bar" style="width:{100 * best / row["median"]:.1f}%"></div>'
            lines.append(_line(row, cells, bar))
        return (
            '<table class="benchmark"><thead><tr><th>contender</th><th>a batch</th>'
            "<th>records/s</th><th>MiB/s</th><th>time, our best = 1</th><th>speed</th></tr></thead>"
            f"<tbody>{''.join(lines)}</tbody></table>"
        )
    lines = [
        _line(row, (f"{row['value']:.4g} {escape(row['unit'])}",), "")
        for row in rows
    ]
    return (
        '<table class="benchmark"><thead><tr><th>contender</th><th>value</th><th></th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _line(row: dict[str, Any], cells: tuple[str, ...], bar: str) -> str:
    kind = ' class="ours"' if is_ours(row["contender"]) else ""
    middle = "".join(f"<td>{cell}</td>" for cell in cells)
    return (
        f"<tr{kind}><td>{escape(row['contender'])}</td>{middle}<td>{bar}</td></tr>"
    )


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _rate(row: dict[str, Any], what: str) -> str:
    if not row.get(what):
        return ""
    rate = row[what] / row["median"]
    return f"{rate / 2**20:,.0f}" if what == "bytes" else f"{rate:,.0f}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("benchmarks", Benchmarks)
    app.add_directive("distances", Distances)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
