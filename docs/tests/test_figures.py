"""The figures of test programmes: what is read from their output, and what the pages hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import record_figures

OUTPUT = """\
+- run test crash_test
crash states: 10 scripts 28 kills 3 during_recovery
crash states: 10 passed, 0 failed
  store fuzz: 2 rounds, 50 operations
  store fuzz: 1 passed, 1 failed
no verdict: 3 rounds
canary: caught after 144 operations
"""


def test_what_is_read():
    assert record_figures.read(OUTPUT.splitlines()) == {
        "crash states": {
            "counts": {
                "scripts": 10,
                "kills": 28,
                "during_recovery": 3,
                "passed": 10,
            },
            "failed": 0,
        },
        "store fuzz": {
            "counts": {"rounds": 2, "operations": 50, "passed": 1},
            "failed": 1,
        },
    }


def test_what_is_kept():
    kept = json.loads(record_figures.TARGET.read_text("utf-8"))
    for title, run in kept.items():
        assert run["failed"] == 0, title
        assert run["counts"], title
        assert run["revision"], title
