"""Brings the C source of zstd, pinned by hash in zstd.txt, into the ignored folder zstd/.

No third-party source is committed. The pinned source package carries the complete library tree
of zstd; pip downloads it, refuses a wrong hash, and honours the user's own index settings.
``ZRECORD_ZSTD_SOURCE`` names a folder to use instead: a checkout or an unpacked release of zstd.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "1.5.7"

_NATIVE = Path(__file__).resolve().parent
_ROOT_IN_PACKAGE = "src/c/zstd/"
_WANTED = re.compile(
    r"LICENSE|lib/[^/]+\.h|lib/(common|compress|decompress|dictBuilder)/[^/]+\.(c|h|S)"
)


def source() -> Path:
    """Return the folder that holds zstd's LICENSE and lib/; fetch it when it is not there."""
    override = os.environ.get("ZRECORD_ZSTD_SOURCE")
    folder = Path(override) if override else _NATIVE / "zstd"
    if not override and not folder.is_dir():
        _fetch(folder)
    _check(folder)
    return folder


def notices(folder: Path) -> dict[str, str]:
    """Return the licence texts of everything in zstd that ends up in the library, by name."""
    divsufsort = (folder / "lib/dictBuilder/divsufsort.c").read_text(encoding="utf-8")
    comment = re.match(r"/\*(.*?)\*/", divsufsort, re.DOTALL)
    if comment is None or "Permission is hereby granted" not in comment[1]:
        raise SystemExit(f"{folder}/lib/dictBuilder/divsufsort.c does not begin with its licence")
    lines = (re.sub(r"^ \* ?", "", line) for line in comment[1].strip("\n ").splitlines())
    return {
        "zstd.txt": (folder / "LICENSE").read_text(encoding="utf-8"),
        "divsufsort.txt": "\n".join(lines) + "\n",
    }


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", ":all:", "--require-hashes"]
        command += ["--requirement", str(_NATIVE / "zstd.txt"), "--dest", scratch]
        subprocess.run(command, check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        # Fill a sibling and rename it, so an interrupted fetch is never taken for a whole one.
        partial = Path(tempfile.mkdtemp(prefix=".zstd-", dir=folder.parent))
        try:
            _unpack(archive, partial)
            partial.chmod(0o755)
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # another build has put it there meanwhile
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as package:
        for member in package:
            _, _, name = member.name.partition(_ROOT_IN_PACKAGE)
            if member.isfile() and _WANTED.fullmatch(name):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = package.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())


def _check(folder: Path) -> None:
    header = folder / "lib" / "zstd.h"
    if not header.is_file():
        raise SystemExit(f"no zstd source in {folder}: expected lib/zstd.h and LICENSE in it")
    text = header.read_text(encoding="utf-8")
    found = ".".join(re.findall(r"#define ZSTD_VERSION_(?:MAJOR|MINOR|RELEASE) +(\d+)", text))
    if found != VERSION:
        raise SystemExit(f"zstd {found or 'of no version'} in {folder}: expected {VERSION}")


if __name__ == "__main__":
    print(source())
