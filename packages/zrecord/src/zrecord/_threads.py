"""How many threads one call may use."""

from __future__ import annotations

import math
import operator
import os
from typing import SupportsIndex

from ._native import lib

_THREADS_MAX = 1024
_VARIABLE = "ZRECORD_NUM_THREADS"


def _quota_v2(root: str, group: str) -> float:
    """Return the smallest cpu.max on the way from the group to the root, in CPUs."""
    quota = math.inf
    while True:
        try:
            with open(f"{root}{group.rstrip('/')}/cpu.max", encoding="ascii") as file:
                limit, period = file.read().split()
            if limit != "max":
                quota = min(quota, int(limit) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            pass
        if group in ("", "/"):
            return quota
        group = os.path.dirname(group)


def _quota_v1(root: str, group: str) -> float:
    for folder in (f"{root}/cpu{group}", f"{root}/cpu"):
        try:
            with open(f"{folder}/cpu.cfs_quota_us", encoding="ascii") as file:
                limit = int(file.read())
            with open(f"{folder}/cpu.cfs_period_us", encoding="ascii") as file:
                period = int(file.read())
        except (OSError, ValueError):
            continue
        return limit / period if limit > 0 and period > 0 else math.inf
    return math.inf


def _cgroup_quota(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float:
    """Return the CPUs that the control group grants; infinite where there is no limit."""
    try:
        with open(groups, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return math.inf
    quota = math.inf
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            quota = min(quota, _quota_v2(root, group))
        elif "cpu" in controllers.split(","):
            quota = min(quota, _quota_v1(root, group))
    return quota


def _default_threads() -> int:
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        cpus = os.cpu_count() or 1
    count = max(1, min(cpus, math.ceil(min(_cgroup_quota(), _THREADS_MAX))))
    # From four on, one is left to the program that consumes the records.
    return count - 1 if count >= 4 else count


def set_num_threads(n: SupportsIndex) -> None:
    """Set how many threads one call may use, the calling one included.

    Parameters
    ----------
    n : int
        From 1 to 1024.

    Raises
    ------
    TypeError
        If `n` is not an integer.
    ValueError
        If `n` is out of range.

    Examples
    --------
    >>> import zrecord
    >>> before = zrecord.get_num_threads()
    >>> zrecord.set_num_threads(2)
    >>> zrecord.get_num_threads()
    2
    >>> zrecord.set_num_threads(before)
    """
    if isinstance(n, bool):
        raise TypeError("the number of threads is an integer, got a bool")
    count = operator.index(n)
    if not 1 <= count <= _THREADS_MAX:
        raise ValueError(f"the number of threads is 1 to {_THREADS_MAX}, got {count}")
    lib.zr_set_num_threads(count)


def get_num_threads() -> int:
    """Return how many threads one call may use, the calling one included.

    The default follows the CPUs that this process may run on and the quota of its control group,
    with one left free from four on. The environment variable ``ZRECORD_NUM_THREADS`` replaces it.

    Returns
    -------
    int
        At least 1.

    Examples
    --------
    >>> import zrecord
    >>> zrecord.get_num_threads() >= 1
    True
    """
    return int(lib.zr_get_num_threads())


def configure_threads() -> None:
    """Apply the environment variable, or the default."""
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        set_num_threads(_default_threads())
        return
    try:
        set_num_threads(int(text))
    except ValueError:
        raise ValueError(
            f"the environment variable {_VARIABLE} is {text!r}, "
            f"expected an integer from 1 to {_THREADS_MAX}"
        ) from None
