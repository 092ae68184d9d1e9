"""The shared library: finding it, loading it, checking that it is the one this package speaks to.

This is the only module that touches cffi. The declarations in ``_cffi.py`` are compiled from the
marked region of ``include/zrecord.h`` when the package is built.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ._cffi import ffi as _ffi

ffi: Any = _ffi

_ABI_VERSION = 1
_HERE = os.path.dirname(os.path.abspath(__file__))
_LIBRARY_NAMES = {"darwin": "libzrecord.1.dylib", "win32": "zrecord.dll"}


def get_include() -> str:
    """Return the folder that holds the C header ``zrecord.h``.

    Returns
    -------
    str
        An absolute path, for a compiler's ``-I``.

    Examples
    --------
    >>> import os, zrecord
    >>> os.path.basename(zrecord.get_include())
    'include'
    """
    return os.path.join(_HERE, "include")


def get_library() -> str:
    """Return the path of the shared library that this package uses.

    Returns
    -------
    str
        An absolute path. Its folder also holds ``pkgconfig/zrecord.pc``.

    Examples
    --------
    >>> import zrecord
    >>> "zrecord" in zrecord.get_library()
    True
    """
    return os.path.join(_HERE, "_lib", _LIBRARY_NAMES.get(sys.platform, "libzrecord.so.1"))


def _load() -> Any:
    path = get_library()
    try:
        library = ffi.dlopen(path)
    except OSError as error:
        raise ImportError(f"zrecord cannot load its library {path}: {error}", path=path) from error
    found = library.zr_abi_version()
    if found != _ABI_VERSION:
        raise ImportError(
            f"{path} has C ABI version {found}, this zrecord needs {_ABI_VERSION}; "
            "install the package again",
            path=path,
        )
    return library


lib: Any = _load()


def build_info() -> str:
    """Return what the library says of its own build."""
    text: bytes = ffi.string(lib.zr_build_info())
    return text.decode("utf-8", "replace")
