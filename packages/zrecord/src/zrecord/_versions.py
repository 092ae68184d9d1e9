"""What to paste into a bug report."""

from __future__ import annotations

import platform
import sys

from ._native import build_info, get_library, lib
from ._status import FORMAT_VERSION
from ._threads import get_num_threads


def show_versions() -> None:
    """Print the versions of zrecord, its library, its dependencies and the system.

    Examples
    --------
    >>> import zrecord
    >>> zrecord.show_versions()  # doctest: +ELLIPSIS
    zrecord    ...
    """
    rows = [
        ("zrecord", _version("zrecord")),
        ("library", build_info()),
        ("loaded from", get_library()),
        ("C ABI", str(lib.zr_abi_version())),
        ("format", str(FORMAT_VERSION)),
        ("threads", str(get_num_threads())),
        ("python", sys.version.replace("\n", " ")),
        ("system", platform.platform()),
    ]
    rows += [(name, _version(name)) for name in ("numpy", "cffi", "msgpack", "ml_dtypes", "rich")]
    for name, value in rows:
        sys.stdout.write(f"{name:<12} {value}\n")


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
