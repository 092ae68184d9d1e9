"""`--site NAME` restricts the tests of pages to those of one site."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--site", help="zrecord, loaderx or landing; all of them if not given"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    site = config.getoption("--site")
    if site is None:
        return
    others = {"zrecord", "loaderx", "landing"} - {site}
    left_out = [
        item for item in items if any(f"[{other}/" in item.name for other in others)
    ]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
