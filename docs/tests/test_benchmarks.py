"""Benchmark results become tables: rates, ratios to ours, and what did not run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import benchmarks

DOCUMENT = {
    "machine": {
        "processor": "P",
        "cpus": 2,
        "system": "Linux",
        "python": "CPython 3.13",
    },
    "started": "2030-01-02T03:04:05+00:00",
    "rows": [
        {
            "group": "g",
            "contender": "slow",
            "median": 0.02,
            "records": 256,
            "bytes": 2**20,
        },
        {
            "group": "g",
            "contender": "zrecord",
            "median": 0.01,
            "records": 256,
            "bytes": 2**20,
        },
        {"group": "size", "contender": "zrecord", "value": 12.5, "unit": "MiB"},
    ],
    "not_run": {"other": "not <installed>"},
}


def test_tables_of_a_question():
    section = benchmarks._section("dense", DOCUMENT)
    timed, sizes = (raw.astext() for raw in section.findall(nodes.raw))
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in timed.split("<tr")[2:]]
    assert [row[:5] for row in rows] == [
        ["zrecord", "10 ms", "25,600", "100", "1.00"],
        ["slow", "20 ms", "12,800", "50", "2.00"],
    ]
    assert "width:100.0%" in rows[0][5]
    assert "width:50.0%" in rows[1][5]
    assert "12.5 MiB" in sizes
    assert "Not run: other (not <installed>)." in section.astext()
    assert "2030-01-02" in section.astext()
