"""Checks a built wheel of one package: contents, tag, library, licences, bill of materials.

    python check_wheel.py PACKAGE DIST [REPOSITORY]

DIST holds the source distribution and the wheels that were built from it. REPOSITORY, if given,
holds a wheel built straight from the repository: both must be the same, byte for byte.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import lief

_ROOT = Path(__file__).resolve().parents[1]
_LIBRARIES = {"zrecord": "zrecord", "loaderx": "zsampler"}
_CONTAINED = {"zrecord": {"zig", "zstd"}, "loaderx": {"zig"}}

# What a library may need: parts of the operating system, and nothing else.
_SYSTEM_LIBRARIES = re.compile(
    r"lib(c|m|dl|rt|pthread)\.so(\.\d+)?|ld-linux[-\w]*\.so\.\d|/usr/lib/libSystem\.B\.dylib"
    r"|(kernel32|ntdll|advapi32|ws2_32|ucrtbase|msvcrt|api-ms-win-[-\w]+)\.dll",
    re.IGNORECASE,
)
_GLIBC_MAX = (2, 17)
# musl has no versions of symbols. Of these it has the first only as of 1.2.3 and the second of
# 1.2.5, and names that end in 64 not for programs that are linked with the library.
_NOT_IN_MUSL = re.compile(r"qsort_r|statx|\w+64")

# What linkers export on their own from every macOS and Windows library.
_LINKER_SYMBOLS = {"_mh_dylib_header", "__dso_handle", "_DllMainCRTStartup"}


def main(package: str, dist: Path, repository: Path | None) -> None:
    """Check the source distribution and all wheels of `package` in `dist`."""
    (sdist,) = dist.glob(f"{package}-*.tar.gz")
    _check_sdist(package, sdist)
    wheels = sorted(dist.glob(f"{package}-*.whl"))
    assert wheels, f"no wheel of {package} in {dist}"
    for wheel in wheels:
        _check_wheel(package, wheel)
        if repository is not None:
            _check_same(wheel, repository / wheel.name)


def _check_sdist(package: str, path: Path) -> None:
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    library = _LIBRARIES[package]
    wanted = {
        "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml",
        "native/build.zig", f"native/include/{library}.h", f"native/src/{library}/c_api.zig",
    }  # fmt: skip
    if package == "zrecord":
        wanted |= {"native/zstd/LICENSE", "native/zstd/lib/zstd.h", "LICENSES/zstd.txt"}
    assert wanted <= names, f"{path.name} lacks {sorted(wanted - names)}"
    built = {name for name in names if re.search(r"(^|/)(_lib|_cffi\.py|\.zig-cache)(/|$)", name)}
    assert not built, f"{path.name} holds what a build made: {sorted(built)}"
    print(f"{path.name}: {len(names)} files, builds without a network")


def _check_wheel(package: str, path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    metadata = message_from_bytes(files[f"{info}/METADATA"])
    tag = _check_tag(path, message_from_bytes(files[f"{info}/WHEEL"]))
    library = _check_contents(package, path, files, info)
    _check_licences(package, path, files, info, metadata)
    _check_bill(package, path, files, info, metadata)
    exports = _check_library(package, files[library], library, tag)
    print(
        f"{path.name}: {len(files)} files, {len(files[library]) // 1024} KiB library, "
        f"{exports} exports"
    )


def _check_tag(path: Path, wheel: Message) -> str:
    tags = path.stem.split("-")[4].split(".")
    declared = [tag.removeprefix("py3-none-") for tag in wheel.get_all("Tag", [])]
    assert sorted(declared) == sorted(tags), f"{path.name} declares the tags {declared}"
    assert wheel["Root-Is-Purelib"] == "false", f"{path.name} says that it is pure Python"
    return tags[-1]


def _check_contents(package: str, path: Path, files: dict[str, bytes], info: str) -> str:
    source = _ROOT / "packages" / package / "src"
    expected = {
        file.relative_to(source).as_posix()
        for file in (source / package).rglob("*")
        if file.suffix in {".py", ".pyi", ".typed"}
    }
    expected |= {f"{package}/_cffi.py"}
    if package == "zrecord":
        expected |= {"zrecord/include/zrecord.h", "zrecord/_lib/pkgconfig/zrecord.pc"}
    found = {name for name in files if not name.startswith(f"{info}/")}
    (library,) = found - expected or {"nothing"}
    assert library.startswith(f"{package}/_lib/"), f"{path.name} holds {library} as its library"
    missing = expected - found
    assert not missing, f"{path.name} lacks {sorted(missing)}"
    return library


def _check_licences(
    package: str, path: Path, files: dict[str, bytes], info: str, metadata: Message
) -> None:
    listed = metadata.get_all("License-File", [])
    texts = {name: files.get(f"{info}/licenses/{name}", b"").decode() for name in listed}
    wanted = {"LICENSE": "the zrecord and loaderx authors", "LICENSES/zig.txt": "Zig contributors"}
    if package == "zrecord":
        wanted |= {"LICENSES/zstd.txt": "Meta Platforms", "LICENSES/divsufsort.txt": "Yuta Mori"}
    expression = "MIT AND BSD-3-Clause" if package == "zrecord" else "MIT"
    if _is_windows(path):
        expression += " AND ZPL-2.1"
        wanted |= {"LICENSES/mingw-w64.txt": "mingw-w64 project"}
    assert set(listed) == set(wanted), f"{path.name} lists the licences {listed}"
    found = metadata["License-Expression"]
    assert found == expression, f"{path.name} is under {found}, expected {expression}"
    for name, words in wanted.items():
        assert words in texts[name], f"{name} of {path.name} does not name {words}"


def _check_bill(
    package: str, path: Path, files: dict[str, bytes], info: str, metadata: Message
) -> None:
    bill = json.loads(files[f"{info}/sboms/{package}.cdx.json"])
    subject = bill["metadata"]["component"]
    assert (subject["name"], subject["version"]) == (package, metadata["Version"]), path.name
    contained = {component["name"] for component in bill["components"]}
    expected = _CONTAINED[package] | ({"mingw-w64"} if _is_windows(path) else set())
    assert contained == expected, f"the bill of {path.name} lists {sorted(contained)}"


def _is_windows(path: Path) -> bool:
    return "-win_" in path.name


def _check_library(package: str, content: bytes, name: str, tag: str) -> int:
    lief.logging.disable()
    binary = lief.parse(list(content))
    assert binary is not None, f"{name} is not a library that can be read"
    needed = {str(getattr(library, "name", library)) for library in binary.libraries}
    if isinstance(binary, lief.ELF.Binary):
        exported = {str(s.name) for s in binary.dynamic_symbols if s.name and s.shndx != 0}
        _check_elf(binary, name, tag)
    elif isinstance(binary, lief.MachO.Binary):
        exported = {str(symbol.name).removeprefix("_") for symbol in binary.exported_symbols}
        own = f"@rpath/{Path(name).name}"
        assert own in needed, f"{name} has another install name"
        needed.discard(own)
    else:
        exported = {str(function.name) for function in binary.exported_functions}
    exported -= _LINKER_SYMBOLS
    interface = (_ROOT / "native/include/abi.txt").read_text("utf-8")
    line = rf"^{_LIBRARIES[package]} function (\w+) = "
    listed = set(re.findall(line, interface, re.MULTILINE))
    assert listed, f"the list of C interfaces has no function of {package}"
    assert exported == listed, (
        f"{name} exports other functions than the list of its C interface: only exported "
        f"{sorted(exported - listed)}, only listed {sorted(listed - exported)}"
    )
    foreign = {library for library in needed if not _SYSTEM_LIBRARIES.fullmatch(library)}
    assert not foreign, f"{name} of {tag} needs {sorted(foreign)}"
    return len(exported)


def _check_elf(binary: lief.ELF.Binary, name: str, tag: str) -> None:
    soname = binary.get(lief.ELF.DynamicEntry.TAG.SONAME)
    assert isinstance(soname, lief.ELF.DynamicSharedObject), f"{name} has no SONAME"
    assert soname.name == Path(name).name, f"{name} has the SONAME {soname.name}"
    versions = {
        str(symbol.name)
        for library in binary.symbols_version_requirement
        for symbol in library.get_auxiliary_symbols()
    }
    numbers = {v: tuple(map(int, re.findall(r"\d+", v))) for v in versions if "GLIBC_" in v}
    newer = sorted(version for version, number in numbers.items() if number > _GLIBC_MAX)
    assert not newer, f"{name} needs symbols of {newer}"
    if tag.startswith("musllinux"):
        symbols = {str(symbol.name) for symbol in binary.dynamic_symbols if symbol.shndx == 0}
        missing = sorted(symbol for symbol in symbols if _NOT_IN_MUSL.fullmatch(symbol))
        assert symbols, f"{name} imports nothing"
        assert not missing, f"{name} of {tag} needs {missing}, which musl does not always have"


def _check_same(wheel: Path, other: Path) -> None:
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(other) as second:
        names = set(first.namelist()) ^ set(second.namelist())
        assert not names, f"only in one of two wheels {wheel.name}: {sorted(names)}"
        for name in first.namelist():
            assert first.read(name) == second.read(name), f"{name} differs in {wheel.name}"
    assert wheel.read_bytes() == other.read_bytes(), f"two archives {wheel.name} differ"
    print(f"{wheel.name}: from the source distribution and from the repository are the same bytes")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
