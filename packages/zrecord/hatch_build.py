"""Hands this package's build to native/hatch_hooks.py, which both packages share."""

import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
# A source distribution carries native/ itself; in the repository it lies beside packages/.
_NATIVE = _PACKAGE / "native"
if not _NATIVE.is_dir():
    _NATIVE = _PACKAGE.parents[1] / "native"
sys.path.insert(0, str(_NATIVE))

from hatch_hooks import LibraryHook, LicenceHook  # noqa: E402

__all__ = ["LibraryHook", "LicenceHook"]
