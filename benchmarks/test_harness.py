"""A benchmark fails when a contender's result is wrong, whichever question and however wrong."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import contenders.packed_file
import numpy as np
import pytest
from harness import CONTENDERS, Contender, NotRun, Run, WrongResult, check_array, parse_options
from report import target_line
from targets import Target

SMOKE = ["--smoke"]
SOURCE = np.arange(24, dtype=np.int32).reshape(6, 4)


def swap_first(rows: Any) -> Any:
    changed = list(rows) if isinstance(rows, list) else rows.copy()
    first, last = changed[0].copy(), changed[-1].copy()
    changed[0], changed[-1] = last, first
    return changed


def flip_bit(rows: Any) -> Any:
    changed = [row.copy() for row in rows] if isinstance(rows, list) else rows.copy()
    changed[-1].reshape(-1).view(np.uint8)[-1] ^= 1
    return changed


WRONG: dict[str, Callable[[np.ndarray], Any]] = {
    "dtype": lambda rows: rows.astype(np.int64),
    "shape": lambda rows: rows[:, :3],
    "one fewer": lambda rows: rows[:-1],
    "order": lambda rows: rows[::-1],
    "value": flip_bit,
    "kind": lambda rows: rows.tolist(),
}


def test_the_right_result_passes():
    check_array(SOURCE.copy(), SOURCE)


@pytest.mark.parametrize("how", WRONG)
def test_each_kind_of_wrong_result_is_seen(how):
    with pytest.raises(WrongResult):
        check_array(WRONG[how](SOURCE), SOURCE)


class Broken(Contender):
    """A right contender whose results are changed before they are returned."""

    def __init__(self, inner: Contender, change: Callable[[Any], Any]) -> None:
        super().__init__(inner.name)
        self.inner = inner
        self.change = change

    def __call__(self, plan: Any) -> Any:
        return self.change(self.inner(plan))

    def prepare(self) -> None:
        self.inner.prepare()

    def seconds(self, plans: Any) -> float:
        return self.inner.seconds(plans)

    def close(self) -> None:
        self.inner.close()


CASES = {
    "dense": ("numpy", flip_bit, ["--shape", "128", "--codec", "raw"]),
    "ragged": ("packed", swap_first, []),
    "append": ("files", flip_bit, ["--shape", "2048", "--codec", "raw"]),
    "open": ("numpy", swap_first, []),
    "sampler": ("numpy", lambda drawn: drawn + np.uint64(1_000_000), []),
    "loader": ("loaderx", flip_bit, ["--workers", "0", "--shape", "3072", "--codec", "raw"]),
}


@pytest.mark.parametrize("question", CASES)
def test_a_smoke_benchmark_fails_when_a_result_is_wrong(question, monkeypatch, tmp_path):
    name, change, more = CASES[question]
    if question in ("sampler", "loader"):
        pytest.importorskip("loaderx", reason="this environment measures the stores only")
    module = importlib.import_module(f"contenders.{CONTENDERS[name][0]}")
    arguments = [*SMOKE, "--only", name, "--folder", str(tmp_path), "--rounds", "1", *more]
    main = importlib.import_module(question).main
    main(arguments)

    make = getattr(module, f"{question}_contenders")
    monkeypatch.setattr(
        module,
        f"{question}_contenders",
        lambda setting: (Broken(contender, change) for contender in make(setting)),
    )
    with pytest.raises(WrongResult):
        main(arguments)


def make_run(tmp_path: Any, *arguments: str) -> Run:
    options = parse_options("ragged", [*SMOKE, "--results", str(tmp_path), *arguments])
    return Run(options)


def test_a_rival_that_fails_is_named_with_its_reason(monkeypatch, tmp_path, capsys):
    def missing(setting: Any) -> Any:
        raise NotRun("no such library")

    monkeypatch.setattr(contenders.packed_file, "ragged_contenders", missing)
    run = make_run(tmp_path, "--only", "packed")
    run.measure("g", None, [0], check_array, {"records": 1, "bytes": 1})
    run.save()
    assert json.loads((tmp_path / "ragged.json").read_text("utf-8"))["not_run"] == {
        "packed": "no such library"
    }
    assert "not run: packed: no such library" in capsys.readouterr().out


def test_results_say_where_they_come_from(monkeypatch, tmp_path):
    def make(setting: Any) -> Any:
        yield Contender("slow", lambda plan: SOURCE[plan])
        yield Contender("fast", lambda plan: SOURCE[plan])

    monkeypatch.setattr(contenders.packed_file, "ragged_contenders", make)
    run = make_run(tmp_path, "--only", "packed", "--rounds", "3")
    plans = [np.array([5, 0]), np.array([1, 1])]
    check = lambda result, plan: check_array(result, SOURCE[plan])  # noqa: E731
    run.measure("g", None, plans, check, {"records": 2, "bytes": 32})
    run.save()
    document = json.loads((tmp_path / "ragged.json").read_text("utf-8"))
    assert document["machine"]["cpus"] >= 1
    assert "numpy" in document["versions"]
    assert set(document["revision"]) == {"commit", "changed"}
    assert [row["contender"] for row in document["rows"]] == ["slow", "fast"]
    for row in document["rows"]:
        assert len(row["seconds"]) == 3
        assert row["median"] == sorted(row["seconds"])[1]


def row(contender: str, median: float) -> dict[str, Any]:
    return {"group": "g", "contender": contender, "median": median, "records": 10}


def test_a_target_compares_medians():
    rows = [row("ours", 2.0), row("their best", 3.0), row("their other", 9.0), row("limit", 1.0)]
    document = {"rows": rows}
    ratio = Target("q", "g", ("ours",), ("their best", "their other"), 1.4, 2, limit=("limit",))
    line = target_line(document, ratio)
    assert line is not None
    assert (line["ratio"], line["met"], line["limit"]) == (1.5, True, 0.5)
    constant = Target("q", "g", ("ours",), (), 0.1, 0.05, "record")
    line = target_line(document, constant)
    assert line is not None
    assert (line["figure"], line["met"]) == ("200 ms", False)
    assert target_line({"rows": []}, constant) is None
