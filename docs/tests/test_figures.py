"""The figures of test programs: what is read from their output, and what the pages hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import record_figures

OUTPUT = """\
+- run test crash_test
1/4 crash_test.test.crash states...crash states: 10 scripts 28 kills 3 during_recovery
crash states: 10 passed, 0 failed
  store fuzz: 2 rounds, 50 operations
  store fuzz: 1 passed, 1 failed
flipped bits: 20: 15 same 5 refused; 0 failed
mistakes: 25 passed, 0 failed
no verdict: 3 rounds
canary: caught after 144 operations
"""


def test_what_is_read():
    def run(failed, **counts):
        return {
            "counts": {k.replace("_", " "): n for k, n in counts.items()},
            "failed": failed,
        }

    assert record_figures.read(OUTPUT.splitlines()) == {
        "crash states": run(0, scripts=10, kills=28, during_recovery=3),
        "store fuzz": run(1, rounds=2, operations=50),
        "flipped bits": run(0, in_total=20, same=15, refused=5),
        "mistakes": run(0, passed=25),
    }


def test_what_is_kept():
    kept = json.loads(record_figures.TARGET.read_text("utf-8"))
    for title, run in kept.items():
        assert run["failed"] == 0, title
        assert run["counts"], title
        assert run["revision"], title
