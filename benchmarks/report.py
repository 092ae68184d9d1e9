"""Prints the tables of saved results, and draws them.

python report.py [RESULTS-FOLDER] [--figures FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import HERE, print_group
from targets import TARGETS, Target, best

ORDER = ["dense", "ragged", "append", "open", "sampler", "loader", "memory"]


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return all documents of a folder, in the order of the questions."""
    documents = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(documents, key=lambda d: (ORDER.index(d["question"]), d["free_threaded"]))


def groups_of(document: dict[str, Any]) -> list[str]:
    """Return the groups of a document in the order in which they were measured."""
    return list(dict.fromkeys(row["group"] for row in document["rows"]))


# ---- tables -------------------------------------------------------------------------------------


def target_line(document: dict[str, Any], target: Target) -> dict[str, Any] | None:
    """Return what a target's line shows, or None if the document lacks a figure for it.

    Returns
    -------
    dict
        ``figure``, ``ratio`` (None for constants), ``at_least``, ``aim``, ``met`` and ``limit``,
        the share of the limit that is reached.
    """
    ours = best(document["rows"], target.group, target.ours)
    against = best(document["rows"], target.group, target.against)
    if ours is None or (against is None and target.seconds_per is None):
        return None
    line: dict[str, Any] = {"ours": ours["contender"], "limit": None, "ratio": None}
    if target.seconds_per is None:
        assert against is not None
        line["against"] = against["contender"]
        line["ratio"] = against["median"] / ours["median"]
        line["figure"] = f"{line['ratio']:.2f}"
        line["at_least"], line["aim"] = f"{target.at_least:g}", f"{target.aim:g}"
        line["met"] = line["ratio"] >= target.at_least
    else:
        value, unit = _constant(ours, target.seconds_per)
        line["against"] = "constant"
        line["figure"] = _time(value, unit)
        line["at_least"] = f"at most {_time(target.at_least, unit)}"
        line["aim"] = _time(target.aim, unit)
        line["met"] = value <= target.at_least
    limit = best(document["rows"], target.group, target.limit)
    if limit is not None:
        line["limit"] = limit["median"] / ours["median"]
        line["limit_name"] = limit["contender"]
    return line


def _constant(row: dict[str, Any], per: str) -> tuple[float, str]:
    if per == "value":
        return row["value"], ""
    return (row["median"] / row["records"] if per == "record" else row["median"]), "s"


def _time(value: float, unit: str) -> str:
    if not unit:
        return f"{value:.2f}"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value * 1e9:.3g} ns"


def print_targets(documents: Sequence[dict[str, Any]]) -> None:
    """Print the table of what must be reached."""
    print("\n| what | ours | against | figure | at least | aim | met | of the limit |")
    print("|---|---|---|---:|---:|---:|---|---:|")
    for document in documents:
        if document["free_threaded"]:
            continue
        for target in TARGETS:
            if target.question != document["question"]:
                continue
            what = f"{target.question}: {target.group}"
            line = target_line(document, target)
            if line is None:
                names = " or ".join(target.against[:3]) or "a constant"
                print(f"| {what} | {target.ours[0]} | {names} | not run | | | | |")
                continue
            limit = "-" if line["limit"] is None else f"{line['limit']:.2f} ({line['limit_name']})"
            print(
                f"| {what} | {line['ours']} | {line['against']} | {line['figure']} "
                f"| {line['at_least']} | {line['aim']} | {'yes' if line['met'] else 'no'} "
                f"| {limit} |"
            )


def print_document(document: dict[str, Any]) -> None:
    """Print where a question was measured, and its tables."""
    machine = document["machine"]
    commit = document["revision"]["commit"] or "unknown"
    changed = " and changes" if document["revision"]["changed"] else ""
    print(f"\n# {document['question']}{', free-threaded' * document['free_threaded']}\n")
    print(
        f"{machine['processor']}, {machine['cpus']} CPUs, {machine['system']}, "
        f"{machine['python']}, revision {commit[:12]}{changed}, {document['started']}"
    )
    for group in groups_of(document):
        if any("value" in row for row in document["rows"] if row["group"] == group):
            for row in document["rows"]:
                if row["group"] == group:
                    print(f"\n{group}\n  {row['contender']:<34}{row['value']:.3f} {row['unit']}")
        else:
            print_group(document["rows"], group)
    for name, reason in document["not_run"].items():
        print(f"not run: {name}: {reason}")


# ---- figures ------------------------------------------------------------------------------------


def draw(document: dict[str, Any], folder: Path) -> None:
    """Draw the rates of each group as bars, into an SVG and a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = [
        group
        for group in groups_of(document)
        if any("median" in row for row in document["rows"] if row["group"] == group)
    ]
    if not groups:
        return
    rows = {
        group: sorted(
            (row for row in document["rows"] if row["group"] == group),
            key=lambda row: -row["median"],
        )
        for group in groups
    }
    heights = [0.26 * len(rows[group]) + 0.9 for group in groups]
    figure, axes = plt.subplots(
        len(groups), 1, figsize=(8, sum(heights)), height_ratios=heights, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, group in zip(axes[:, 0], groups, strict=True):
        times = [row["median"] * 1e6 for row in rows[group]]
        names = [row["contender"] for row in rows[group]]
        colors = ["#1f6f8b" if _is_ours(name) else "#b8b8b8" for name in names]
        bars = axis.barh(names, times, color=colors)
        axis.bar_label(bars, [f"{time:,.4g}" for time in times], padding=3, fontsize=7)
        axis.set_xscale("log")
        axis.margins(x=0.12)
        axis.set_title(group, loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("microseconds a batch, median; less is better", fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    suffix = "-free-threaded" if document["free_threaded"] else ""
    for kind in ("svg", "png"):
        metadata = {"Date": None} if kind == "svg" else None
        path = folder / f"{document['question']}{suffix}.{kind}"
        figure.savefig(path, dpi=120, metadata=metadata)
    plt.close(figure)


def _is_ours(name: str) -> bool:
    return name.startswith(("zrecord", "loaderx")) and not name.startswith("loaderx 1.7")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything, and draw if asked to."""
    parser = argparse.ArgumentParser(prog="report.py")
    parser.add_argument("results", nargs="?", type=Path, default=HERE / "results")
    parser.add_argument("--figures", type=Path, help="draw into this folder")
    options = parser.parse_args(arguments)
    documents = read_results(options.results)
    for document in documents:
        print_document(document)
    print_targets(documents)
    if not any(document["free_threaded"] for document in documents):
        print("\nfree-threaded interpreter: not run")
    if options.figures is not None:
        for document in documents:
            draw(document, options.figures)


if __name__ == "__main__":
    main()
