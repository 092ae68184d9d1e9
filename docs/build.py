"""Builds sites of the documentation, warnings as errors, without a network.

    python docs/build.py SITE...

SITE is zrecord, loaderx or landing. What is built lies in docs/_build/SITE.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import check_links
from sphinx_settings import DOCS, OUTPUT, PACKAGES, inventory


def main(sites: list[str]) -> int:
    """Build the sites and check their links; return the exit code."""
    # Each site refers to the other, so both inventories come first. They need no references
    # resolved: an empty one stands in for what is not there yet.
    for package in PACKAGES:
        _write_empty(inventory(package))
    for package in PACKAGES:
        target = OUTPUT / "inventories" / package
        _sphinx("inventory", package, target)
        shutil.copyfile(target / "objects.inv", inventory(package))
    for site in sites:
        shutil.rmtree(OUTPUT / site, ignore_errors=True)
        _sphinx("html", site, OUTPUT / site)
    return check_links.main(sites)


def _sphinx(builder: str, site: str, target: Path) -> None:
    doctrees = OUTPUT / "doctrees" / site
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        builder,
    ]
    subprocess.run(
        [*command, "-d", str(doctrees), str(DOCS / site), str(target)], check=True
    )


def _write_empty(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "# Sphinx inventory version 2\n# Project: none\n# Version: 0\n# compressed using zlib\n"
    path.write_bytes(head.encode() + zlib.compress(b""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [*PACKAGES, "landing"]))
