"""Loads the wheels of dist/wheels wherever a loader for them exists, and prints what was checked.

    python load_wheels.py DIST SCRATCH TOOLCHAIN

Runs on x86-64 Linux, in an environment that has this platform's wheels. TOOLCHAIN is a Python that
has ziglang and lief. Beside what runs natively it uses, where they are installed,

* musl's dynamic loader, for the musl wheels,
* qemu-user with a root folder of arm64 Debian, which ZRECORD_ARM64_ROOT names or apt-get fills,
* wine, for Windows on x86-64.

What is missing is reported as not run, with the reason. What fails makes the program fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_EXCHANGE = _ROOT / "packages/exchange_stores.py"
_PROGRAMS = {
    "zrecord": _ROOT / "packages/zrecord/examples/store.c",
    "loaderx": _ROOT / "packages/loaderx/examples/indices.c",
}
_NATIVE = "manylinux_2_17_x86_64"
_QEMU = ["qemu-aarch64", "qemu-aarch64-static"]
_ARM64_PACKAGES = ["libc6", "libstdc++6", "python3", "musl"]

# Wheel platform, Zig target. The others, macOS and Windows on arm64, have no loader here.
_LOADED = {
    _NATIVE: "x86_64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "win_amd64": "x86_64-windows-gnu",
}
_INSPECTED = ["macosx_11_0_x86_64", "macosx_11_0_arm64", "win_arm64"]

# In meta.zr, of the slot that may be lost with the machine: its start, which Windows does not tell,
# and the slot's sum.
_MACHINE_START = [slice(8192 + 32, 8192 + 48), slice(8192 + 136, 8192 + 144)]

# The crash and fault tests run on a simulated disk and find the same everywhere: under qemu they
# would take half an hour.
_EMULATED_FILTERS = [
    *("codec", "files", "format", "gather", "locks", "parallel", "regular", "spans", "verified"),
    *("golden_test", "header_test"),
]


class NotRun(Exception):
    """Something that a check needs is not there."""


class Loads:
    """The checks, and a row for each: platform, how, result."""

    def __init__(self, dist: Path, scratch: Path, toolchain: Path) -> None:
        self.dist, self.scratch, self.toolchain = dist, scratch, toolchain
        self.rows: list[tuple[str, str, str]] = []
        self.failed = 0
        self.environment = {
            **os.environ,
            "ZRECORD_NUM_THREADS": "1",
            "WINEPREFIX": str(scratch / "wine"),
            "WINEDEBUG": "-all",
        }
        self._root: Path | None = None

    def check(self, tag: str, how: str, run: Callable[[str], str]) -> None:
        """Run one check and note what came of it."""
        try:
            result = "passed" + run(tag)
        except NotRun as reason:
            result = f"not run: {reason}"
        except (AssertionError, subprocess.CalledProcessError) as error:
            self.failed += 1
            result = f"FAILED: {error}"
        self.rows.append((tag, how, result))
        print(f"{tag}: {how}: {result}", flush=True)

    def run(self, *command: object, **options: object) -> str:
        """Run a program; return what it prints."""
        words = [str(part) for part in command]
        done = subprocess.run(
            words, env=self.environment, stdout=subprocess.PIPE, check=False, text=True, **options
        )
        if done.returncode != 0:
            print(done.stdout)
            raise subprocess.CalledProcessError(done.returncode, words)
        return done.stdout

    def wheel(self, package: str, tag: str) -> Path:
        """Return the wheel of a platform."""
        found = [path for path in self.dist.glob(f"{package}-*.whl") if tag in path.name]
        assert len(found) == 1, f"{len(found)} wheels of {package} for {tag} in {self.dist}"
        return found[0]

    # Loaders

    def arm64_root(self) -> Path:
        """Return a folder with an arm64 system: Python, libc and musl."""
        if self._root is None:
            given = os.environ.get("ZRECORD_ARM64_ROOT")
            self._root = Path(given) if given else self._fetch_arm64_root()
        if not list(self._root.glob("usr/bin/python3.*")):
            raise NotRun(f"no Python in {self._root}")
        return self._root

    def _fetch_arm64_root(self) -> Path:
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise NotRun(f"no ZRECORD_ARM64_ROOT, and no {tool} to make one")
        state, root = self.scratch / "apt", self.scratch / "root"
        for folder in (state / "lists/partial", state / "archives/partial", root):
            folder.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        # A state of its own: this system's packages and architectures stay as they are.
        options = {
            "Dir::State": state,
            "Dir::State::lists": state / "lists",
            "Dir::State::status": state / "status",
            "Dir::Cache": state,
            "Dir::Cache::archives": state / "archives",
            "APT::Architecture": "arm64",
            "APT::Architectures": "arm64",
        }
        apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
        try:
            self.run(*apt, "update")
            install = ["install", "--download-only", "--no-install-recommends", "--yes"]
            self.run(*apt, *install, *_ARM64_PACKAGES)
        except subprocess.CalledProcessError as error:
            raise NotRun("apt-get brings no arm64 packages here") from error
        for archive in sorted((state / "archives").glob("*.deb")):
            self.run("dpkg-deb", "--extract", archive, root)
        return root

    def loader(self, tag: str) -> list[str]:
        """Return the words in front of a program of this platform that make it run here."""
        if tag.endswith("_aarch64"):
            qemu = next((found for name in _QEMU if (found := shutil.which(name))), None)
            if qemu is None:
                raise NotRun("no qemu-user for arm64")
            root = self.arm64_root()
            if "musl" in tag and not (root / "lib/ld-musl-aarch64.so.1").exists():
                raise NotRun(f"no musl in {root}")
            return [qemu, "-L", str(root)]
        if tag == "win_amd64":
            wine = shutil.which("wine")
            if wine is None:
                raise NotRun("no wine")
            return [wine]
        if "musl" in tag and not Path("/lib/ld-musl-x86_64.so.1").exists():
            raise NotRun("no musl: /lib/ld-musl-x86_64.so.1 is missing")
        return []

    # Checks

    def inspect(self, package: str) -> str:
        """Run the wheel check once more over all wheels of a package."""
        self.run(self.toolchain, _ROOT / "packages/check_wheel.py", package, self.dist)
        return ""

    def program(self, package: str, tag: str) -> list[str]:
        """Compile a program against a wheel's library; return how it is started."""
        loader = self.loader(tag)
        folder = self.scratch / tag
        with zipfile.ZipFile(self.wheel(package, tag)) as archive:
            archive.extractall(folder)
        (library,) = (p for p in (folder / package / "_lib").iterdir() if p.is_file())
        include = folder / "zrecord/include" if package == "zrecord" else _ROOT / "native/include"
        program = folder / f"{package}.exe"
        command = [self.toolchain, "-m", "ziglang", "cc", "-target", _LOADED[tag], "-O2", "-s"]
        command += ["-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined"]
        if tag.startswith("win"):
            # Windows looks for libraries beside the program.
            shutil.copy(library, folder)
        else:
            command += ["-dynamic", f"-Wl,-rpath,{library.parent}"]
        self.run(*command, f"-I{include}", _PROGRAMS[package], library, "-o", program)
        return [*loader, str(program)]

    def store_program(self, tag: str) -> str:
        """Exchange stores between a program with the wheel's library and Python."""
        program = self.program("zrecord", tag)
        folder = self._copies(tag, f"native-{tag}")
        own, native = folder / tag, folder / f"native-{tag}"
        wrote = self.run(*program, "write", own)
        assert wrote == self.run(*self.program("zrecord", _NATIVE), "write", native), wrote
        read = self.run(*program, "read", own)
        assert read == "9 10 11\n3 4 5\n6 7 8\n3 records, 0 damaged\n", f"the program read {read}"
        assert self.run(*program, "read", native) == read
        check = "import sys, zrecord; s = zrecord.DenseStore(sys.argv[1], mode='r'); "
        check += "assert s.verify().ok; print(s[:].tolist())"
        values = self.run(sys.executable, "-I", "-c", check, own)
        assert values == "[[9.0, 10.0, 11.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]\n", values
        return self._compare(own, native)

    def _copies(self, *names: str) -> Path:
        """Return a folder with copies of one empty store, which have its uuid."""
        folder = self.scratch / "points"
        if not folder.exists():
            folder.mkdir()
            make = "import sys, zrecord; zrecord.DenseStore(sys.argv[1], '<f4', (3,)).close()"
            self.run(sys.executable, "-I", "-c", make, folder / "empty")
        for copy in names:
            shutil.copytree(folder / "empty", folder / copy)
        return folder

    def _compare(self, own: Path, native: Path) -> str:
        names = sorted(path.name for path in native.iterdir())
        assert names == sorted(path.name for path in own.iterdir()), f"{own} has other files"
        same = "byte-identical to a native store"
        for name in names:
            mine, theirs = (bytearray((folder / name).read_bytes()) for folder in (own, native))
            if mine != theirs and name == "meta.zr" and own.name.startswith("win"):
                same += " but for the machine's start"
                for content in (mine, theirs):
                    for place in _MACHINE_START:
                        content[place] = bytes(place.stop - place.start)
            assert mine == theirs, f"{name} of {own} and {native} differ"
        return f", {same}"

    def sampler_program(self, tag: str) -> str:
        """Draw indices with the wheel's sampler: the same as natively."""
        indices = self.run(*self.program("loaderx", tag))
        native = self.run(*self.program("loaderx", _NATIVE))
        assert indices == native, f"{tag} draws {indices}, natively they are {native}"
        return ""

    def python(self, tag: str) -> str:
        """Exchange stores of every kind between Python with the wheel and native Python."""
        native, own = self.scratch / "stores/native", self.scratch / "stores" / tag
        native.mkdir(parents=True)
        here = [sys.executable, "-I", _EXCHANGE]
        there = here
        if tag != _NATIVE:
            there = self._emulated_python(tag)
        self.run(*here, "create", native)
        shutil.copytree(native, own)
        self.run(*here, "append", native)
        self.run(*there, "append", own)
        expected = self.run(*here, "read", native)
        for reader, folder in ((here, own), (there, native), (there, own)):
            found = self.run(*reader, "read", folder)
            assert found == expected, f"{tag} reads\n{found}\nnatively it is\n{expected}"
        for store in sorted(native.iterdir()):
            self._compare(own / store.name, store)
        return f", {len(expected.splitlines()) - 3} stores byte-identical to native ones"

    def _emulated_python(self, tag: str) -> list[object]:
        qemu = self.loader(tag)
        (python,) = self.arm64_root().glob("usr/bin/python3.[0-9][0-9]")
        site = self.scratch / "site"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
        pip += ["--only-binary", ":all:", "--implementation", "cp"]
        pip += ["--python-version", python.name.removeprefix("python")]
        for platform in ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", tag):
            pip += ["--platform", platform]
        wheels = [self.wheel(package, tag) for package in ("zrecord", "loaderx")]
        self.run(*pip, "--platform", "manylinux2014_aarch64", *wheels, "numpy", "cffi", "msgpack")
        return [*qemu, "-E", f"PYTHONPATH={site}", python, _EXCHANGE]

    def native_tests(self, tag: str) -> str:
        """Run the Zig tests of both libraries for a platform."""
        loader = self.loader(tag)
        command = [self.toolchain, "-m", "ziglang", "build"]
        # Not the oldest glibc: the tests are for the system that runs them.
        target = _LOADED[tag].removesuffix(".2.17")
        command += [f"-Dtarget={target}", "--summary", "line"]
        filters: list[str] = []
        said = ""
        if tag == "win_amd64":
            command += ["-fwine"]
        elif tag.endswith("_aarch64"):
            # Zig looks for it by this name, and for the root folder by that of the target.
            folder = self.scratch / "runtimes"
            folder.mkdir(exist_ok=True)
            (folder / "qemu-aarch64").symlink_to(loader[0])
            (folder / "aarch64-linux-gnu").symlink_to(self.arm64_root().resolve())
            self.environment["PATH"] = f"{folder}{os.pathsep}{self.environment['PATH']}"
            command += ["-fqemu", "--libc-runtimes", folder]
            filters = [f"-Dtest-filter={name}" for name in _EMULATED_FILTERS]
            said = ", without the searches on a simulated disk"
        for arguments in (["test-zsampler"], ["test-zrecord", *filters]):
            self.run(*command, *arguments, cwd=_ROOT / "native")
        return said


def main(dist: Path, scratch: Path, toolchain: Path) -> int:
    """Run every check that this system can; return how many failed."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    loads = Loads(dist.resolve(), scratch.resolve(), toolchain)
    loads.check("zrecord", "all wheels inspected", loads.inspect)
    loads.check("loaderx", "all wheels inspected", loads.inspect)
    for tag in _LOADED:
        loads.check(tag, "zrecord by a C program", loads.store_program)
        loads.check(tag, "loaderx by a C program", loads.sampler_program)
    for tag in (_NATIVE, "manylinux_2_17_aarch64"):
        loads.check(tag, "both wheels by Python", loads.python)
        shutil.rmtree(scratch / "stores")
    for tag in ("musllinux_1_2_x86_64", "manylinux_2_17_aarch64", "win_amd64"):
        loads.check(tag, "native tests", loads.native_tests)
    for tag in _INSPECTED:
        loads.rows.append((tag, "built and inspected", "not loaded: no loader on Linux"))
    widths = [max(len(row[column]) for row in loads.rows) for column in (0, 1)]
    print()
    for tag, how, result in loads.rows:
        print(f"{tag:{widths[0]}}  {how:{widths[1]}}  {result}")
    return min(loads.failed, 1)


if __name__ == "__main__":
    sys.exit(main(*(Path(argument) for argument in sys.argv[1:4])))
