"""Checks that exactly the named packages, with what they require, are installed from our wheels.

    python check_installed.py DIST PACKAGE...

The name of a package may belong to somebody else in an index, so the origin is looked at too.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.metadata import distribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

_OURS = {"zrecord", "loaderx"}
_REQUIRED = {"numpy", "cffi", "msgpack", "pycparser"}
_INSTALLERS = {"pip", "setuptools", "wheel"}


def main(dist: Path, packages: list[str]) -> None:
    """Check the environment of the running Python; print what it holds."""
    for package in packages:
        installed = distribution(package)
        origin = json.loads(installed.read_text("direct_url.json") or "{}").get("url", "an index")
        wheel = Path(unquote(urlsplit(origin).path))
        assert wheel.parent == dist, f"{package} comes from {origin}, expected a wheel in {dist}"
        assert wheel.name.startswith(f"{package}-{installed.version}-"), f"{package} of {origin}"
        module = importlib.import_module(package)
        place = Path(module.__file__ or "").resolve()
        assert place.is_relative_to(Path(sys.prefix).resolve()), f"{package} is read from {place}"
        assert module.__version__ == installed.version, f"{package} says {module.__version__}"
    for package in _OURS.difference(packages):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        raise AssertionError(f"{package} can be imported beside {packages}")
    present = {item.metadata["Name"].lower(): item.version for item in distributions()}
    surplus = set(present) - set(packages) - _REQUIRED - _INSTALLERS
    assert not surplus, f"installed without being required: {sorted(surplus)}"
    names = sorted(set(present) - _INSTALLERS)
    print(f"Python {sys.version.split()[0]}:", *(f"{name} {present[name]}" for name in names))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
