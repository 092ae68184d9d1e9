"""What the build of both packages adds to their Python files: the library and what goes with it.

A wheel or an editable install gets, inside its package,

* ``_lib/``: the library that build.zig compiles; with zrecord also its pkg-config file, and its
  header in ``include/``,
* ``_cffi.py``: the declarations of the header, compiled by cffi,

and in its metadata the licences and a bill of materials of what the library contains.
A source distribution gets ``native/`` instead, with the source of zstd where it is needed.

``ZRECORD_WHEEL`` chooses another platform of the table in build.zig than the running one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cffi
import fetch_zstd
import ziglang
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

_NATIVE = Path(__file__).resolve().parent

# The library of each package; zrecord's is linked with zstd and is meant for other programs too.
_LIBRARIES = {"zrecord": "zrecord", "loaderx": "zsampler"}

_PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
libdir=${{prefix}}/_lib

Name: zrecord
Description: Record store for machine-learning data
Version: {abi}
Cflags: -I${{includedir}}
Libs: ${{libdir}}/{file}
"""


class LicenceHook(MetadataHookInterface):
    """Names the licences of the package and of what its library contains.

    Their texts go into LICENSES/, an ignored folder.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Write the notices and list them in the metadata, with the licences' names."""
        licences = ["MIT"]
        zig = Path(ziglang.__file__).parent
        notices = {"zig.txt": (zig / "LICENSE").read_text("utf-8")}
        if metadata["name"] == "zrecord":
            licences.append("BSD-3-Clause")
            notices |= fetch_zstd.notices(fetch_zstd.source())
        if _contains_mingw(_wheel_tag()):
            licences.append("ZPL-2.1")
            notices["mingw-w64.txt"] = (zig / "lib/libc/mingw/COPYING").read_text("utf-8")
        folder = Path(self.root) / "LICENSES"
        folder.mkdir(exist_ok=True)
        for name, text in notices.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
        metadata["license"] = " AND ".join(licences)
        metadata["license-files"] = ["LICENSE", *(f"LICENSES/{name}" for name in sorted(notices))]


class LibraryHook(BuildHookInterface):
    """Compiles the package's library and adds everything that belongs to it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the sources to a source distribution, or the built files to a wheel."""
        package = self.metadata.name
        if self.target_name == "sdist":
            build_data["force_include"] |= _native_files(package)
            return
        tag = _wheel_tag()
        self._scratch = tempfile.TemporaryDirectory()
        scratch = Path(self._scratch.name)
        files = _build(package, tag, scratch)
        bill = scratch / f"{package}.cdx.json"
        bill.write_text(_bill_of_materials(package, self.metadata.version, tag), encoding="utf-8")
        build_data["sbom_files"].append(str(bill))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_with_alias(tag)}"
        folder = Path(self.root) / "src" / package
        if version == "editable":
            shutil.rmtree(folder / "_lib", ignore_errors=True)
        for name, file in files.items():
            if version == "editable":
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, folder / name)
            else:
                build_data["force_include"][str(file)] = f"{package}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built, now that it is in the archive."""
        if self.target_name != "sdist":
            self._scratch.cleanup()


def _native_files(package: str) -> dict[str, str]:
    """Return what a source distribution needs to build its library, without a network."""
    library = _LIBRARIES[package]
    own = ["build.zig", "fetch_zstd.py", "hatch_hooks.py", "zstd.txt"]
    own += [f"include/{library}.h", f"src/{library}"]
    files = {str(_NATIVE / name): f"native/{name}" for name in own}
    if package == "zrecord":
        files[str(fetch_zstd.source())] = "native/zstd"
    return files


def _wheel_tag() -> str:
    """Return the platform to build for: a tag of the table in build.zig."""
    table = re.findall(r'\.tag = "(\w+)"', (_NATIVE / "build.zig").read_text("utf-8"))
    chosen = os.environ.get("ZRECORD_WHEEL")
    if chosen:
        if chosen not in table:
            raise SystemExit(f"ZRECORD_WHEEL={chosen}: expected one of {', '.join(table)}")
        return chosen
    running = set(platform_tags())
    for tag in table:
        if tag in running:
            return tag
    raise SystemExit(
        f"no wheel platform fits this system ({next(platform_tags(), 'unknown')}); "
        f"the table in native/build.zig has {', '.join(table)}"
    )


def _contains_mingw(tag: str) -> bool:
    """Tell whether a library is linked with the start-up code of mingw-w64, which Zig brings."""
    return tag.startswith("win_")


def _with_alias(tag: str) -> str:
    """Add the older name of a glibc platform, for installers that know no other."""
    return tag.replace("manylinux_2_17_", "manylinux2014_") + f".{tag}" if "_2_17_" in tag else tag


def _build(package: str, tag: str, scratch: Path) -> dict[str, Path]:
    """Compile into `scratch`; return the files to add, by their names inside the package."""
    library = _LIBRARIES[package]
    command = [sys.executable, "-m", "ziglang", "build", library]
    command += [f"-Dwheel={tag}", "--prefix", str(scratch)]
    subprocess.run(command, cwd=_NATIVE, check=True)
    (built,) = (scratch / "lib").iterdir()

    header = _NATIVE / "include" / f"{library}.h"
    text = header.read_text(encoding="utf-8")
    region = re.search(r"/\* CFFI-BEGIN \*/(.*)/\* CFFI-END \*/", text, re.DOTALL)
    if region is None:
        raise SystemExit(f"{header} has no region between CFFI-BEGIN and CFFI-END")
    declarations = scratch / "_cffi.py"
    ffi = cffi.FFI()
    ffi.set_source(f"{package}._cffi", None)
    ffi.cdef(region[1])
    ffi.emit_python_code(str(declarations))

    files = {f"_lib/{built.name}": built, "_cffi.py": declarations}
    if package == "zrecord":
        abi = re.search(r"#define ZR_ABI_VERSION (\d+)", text)
        if abi is None:
            raise SystemExit(f"{header} does not define ZR_ABI_VERSION")
        pkg_config = scratch / "zrecord.pc"
        pkg_config.write_text(_PKG_CONFIG.format(abi=abi[1], file=built.name), encoding="utf-8")
        files["include/zrecord.h"] = header
        files["_lib/pkgconfig/zrecord.pc"] = pkg_config
    return files


def _bill_of_materials(package: str, package_version: str, tag: str) -> str:
    """Return a CycloneDX document of the code that the library contains beside the package's."""
    components = [_component("zig", version("ziglang"), "MIT", "pkg:github/ziglang/zig@{}")]
    if package == "zrecord":
        name, _, rest = (_NATIVE / "zstd.txt").read_text("utf-8").partition("==")
        zstd = _component(
            "zstd", fetch_zstd.VERSION, "BSD-3-Clause", "pkg:github/facebook/zstd@v{}"
        )
        zstd["pedigree"] = {"notes": f"from the source distribution {name} {rest.split()[0]}"}
        components.append(zstd)
    if _contains_mingw(tag):
        mingw = _component("mingw-w64", version("ziglang"), "ZPL-2.1", "pkg:github/ziglang/zig@{}")
        mingw["pedigree"] = {"notes": "start-up code, from the sources that this Zig has"}
        components.append(mingw)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": package,
                "name": package,
                "version": package_version,
                "licenses": [{"license": {"id": "MIT"}}],
                "purl": f"pkg:pypi/{package}@{package_version}",
            }
        },
        "components": components,
        "dependencies": [
            {"ref": package, "dependsOn": [component["bom-ref"] for component in components]}
        ],
    }
    return json.dumps(bill, indent=2) + "\n"


def _component(name: str, component_version: str, licence: str, purl: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": name,
        "name": name,
        "version": component_version,
        "licenses": [{"license": {"id": licence}}],
        "purl": purl.format(component_version),
    }
