"""Keeps what test programs report, for the pages: figures.json.

    nox -s crash 2>&1 | python docs/record_figures.py [REVISION]

A program reports its counts and its verdict on lines of their own, after its title::

    store fuzz: 2000 rounds, 500000 operations
    store fuzz: 2000 passed, 0 failed

What a run reports replaces what was kept under the same title; the rest stays. A run with failures
is not kept. REVISION is what was tested, if not the commit that is checked out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent / "figures.json"
# The test runner may have written the name of the test and three dots in front.
LINE = re.compile(
    r"(?:.*\.\.\.)?\s*([a-z][a-z -]*): ((?:\d+[:,;]?(?: [a-z_]+)*[,;]? ?)+)$"
)
COUNT = re.compile(r"(\d+)(?:((?: [a-z_]+)+)|:)")


def read(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return counts and failures by title; a title without a verdict is left out."""
    runs: dict[str, dict[str, Any]] = {}
    for line in lines:
        match = LINE.match(line.rstrip())
        if match is None:
            continue
        run = runs.setdefault(match[1], {"counts": {}})
        for number, name in COUNT.findall(match[2]):
            if name == " failed":
                run["failed"] = int(number)
            elif name != " passed" or not run["counts"]:
                run["counts"][name.strip().replace("_", " ") or "in total"] = int(
                    number
                )
    return {title: run for title, run in runs.items() if "failed" in run}


def main(revision: str | None) -> None:
    """Read standard input, show it, and keep its figures."""
    lines = []
    for line in sys.stdin:
        sys.stdout.write(line)
        lines.append(line)
    if revision is None:
        command = ["git", "-C", str(TARGET.parent), "rev-parse", "--short", "HEAD"]
        revision = subprocess.check_output(command, text=True).strip()
    kept = json.loads(TARGET.read_text("utf-8")) if TARGET.exists() else {}
    for title, run in read(lines).items():
        if run["failed"]:
            sys.exit(
                f"{title}: {run['failed']} failed; the figures stay as they are"
            )
        kept[title] = {**run, "revision": revision}
    TARGET.write_text(
        json.dumps(dict(sorted(kept.items())), indent=1) + "\n", "utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
