"""Everything that builds, tests and measures the project; ``nox --list`` is the table of contents.

Every test runs against the built wheels, installed by path, from another folder.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).resolve().parent
DIST = ROOT / "dist"
PACKAGES = ["zrecord", "loaderx"]
SITES = [*PACKAGES, "landing"]
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]
PROJECTS = {
    name: nox.project.load_toml(ROOT / f"packages/{name}/pyproject.toml") for name in PACKAGES
}
BUILD_REQUIREMENTS = {r for p in PROJECTS.values() for r in p["build-system"]["requires"]}


def run_in(session: nox.Session, other: str, *arguments: str, **environment: str) -> None:
    """Run Python in the environment of another session."""
    folder = ROOT / session.cache_dir.parent / other
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    session.run(str(python), *arguments, external=True, env=environment)


def run_in_toolchain(session: nox.Session, *arguments: str, **environment: str) -> None:
    """Run Python in the environment of the `toolchain` session."""
    run_in(session, "toolchain", *arguments, **environment)


def zig_build(session: nox.Session, *arguments: str) -> None:
    """Run steps of native/build.zig; arguments after ``--`` are handed on."""
    run_in_toolchain(session, "native/fetch_zstd.py")
    with session.chdir("native"):
        run_in_toolchain(session, "-m", "ziglang", "build", *arguments, *session.posargs)


def install_wheels(session: nox.Session, *packages: str, constraints: tuple[str, ...] = ()) -> None:
    """Install built wheels by path, in one command, and check that nothing else came along.

    Never by name: in an index a name may belong to others.
    """
    paths = []
    for package in packages:
        found = sorted(DIST.glob(f"{package}-*.whl"))
        if len(found) != 1:
            session.error(f"expected one wheel of {package} in {DIST}, found {len(found)}")
        paths.append(str(found[0]))
    session.install(*paths, *constraints)
    check = str(ROOT / "packages/check_installed.py")
    # Isolated: the check must not find the packages' folders beside itself.
    session.run("python", "-I", check, str(DIST), *packages)


def run_tests(session: nox.Session, package: str, *tests: str) -> None:
    """Run tests of a package from an empty folder, so that nothing but the wheel is imported."""
    session.install(*nox.project.dependency_groups(PROJECTS[package], "test"))
    with session.chdir(session.create_tmp()):
        folder = ROOT / "packages" / package / "tests"
        paths = [str(folder / name) for name in tests or [""]]
        session.run("python", "-m", "pytest", "-p", "no:cacheprovider", *paths, *session.posargs)


@nox.session(reuse_venv=True, default=False)
def toolchain(session: nox.Session) -> None:
    """Install the compiler and the build tools; the sessions that build share them."""
    zstd = "backports.zstd; python_version < '3.14'"  # for the second reader
    session.install(*sorted(BUILD_REQUIREMENTS), "build", "lief", "twine", zstd)


@nox.session(venv_backend="none", requires=["toolchain"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def build(session: nox.Session, package: str) -> None:
    """Build and check a package: dist/ gets its source distribution and, out of that, its wheel."""
    for old in DIST.glob(f"{package}-*"):
        old.unlink()
    folder = str(ROOT / "packages" / package)
    run_in_toolchain(session, "-m", "build", "--no-isolation", "--outdir", str(DIST), folder)
    run_in_toolchain(session, "packages/check_wheel.py", package, str(DIST))
    archives = map(str, sorted(DIST.glob(f"{package}-*")))
    run_in_toolchain(session, "-m", "twine", "check", "--strict", *archives)


@nox.session(venv_backend="none", requires=["build"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def rebuild(session: nox.Session, package: str) -> None:
    """Build a wheel once more, straight from the repository: it must have the same bytes."""
    repository = session.create_tmp()
    command = ["-m", "build", "--no-isolation", "--wheel", "--outdir", repository]
    run_in_toolchain(session, *command, str(ROOT / "packages" / package))
    run_in_toolchain(session, "packages/check_wheel.py", package, str(DIST), repository)


@nox.session(venv_backend="none", requires=["toolchain"])
def test_native(session: nox.Session) -> None:
    """Run the Zig tests, a million crashes among them, and compare the C interface."""
    zig_build(session, "test")
    run_in_toolchain(session, "native/test/abi.py")


@nox.session(venv_backend="none", requires=["toolchain"])
def stress(session: nox.Session) -> None:
    """Kill, damage, fuzz and race the store; search the model; analyse all eight targets."""
    zig_build(session, "stress", "check-all")
    run_in_toolchain(session, "native/test/protocol_model.py")
    run_in_toolchain(session, "native/test/annotate.py")


@nox.session(python=PYTHONS, requires=["build(zrecord)"])
def test_zrecord(session: nox.Session) -> None:
    """Test the zrecord wheel, alone in a fresh environment, on every Python that is found."""
    install_wheels(session, "zrecord")
    if session.python in PYTHONS[:4]:
        # For bfloat16. It has no wheels for later ones, and wants a newer numpy than the minimum.
        session.install("ml_dtypes")
    run_tests(session, "zrecord")


@nox.session(python=PYTHONS, requires=["build"])
def test_loaderx(session: nox.Session) -> None:
    """Test both wheels, in a fresh environment, on every Python that is found."""
    install_wheels(session, "zrecord", "loaderx")
    run_tests(session, "loaderx")


@nox.session(python=PYTHONS[0], requires=["build"])
def slow_paths(session: nox.Session) -> None:
    """Test stores, and loaders of them, with the fast paths off: no mapping, one thread."""
    install_wheels(session, *PACKAGES)
    # As for `test_zrecord`: the newest Python, on which CI runs that, has no wheel of it.
    session.install("ml_dtypes")
    session.env.update(ZRECORD_MMAP="0", ZRECORD_NUM_THREADS="1")
    run_tests(session, "zrecord")
    run_tests(session, "loaderx", "test_zrecord_streams.py", "test_faults.py")


@nox.session(python=PYTHONS, requires=["build"])
def interpreters(session: nox.Session) -> None:
    """Test what depends most on the interpreter, on every Python that is found."""
    install_wheels(session, *PACKAGES)
    run_tests(session, "zrecord", "test_opening.py", "test_dense.py", "test_processes.py")
    run_tests(session, "loaderx", "test_order.py", "test_processes.py", "test_state.py")


@nox.session(python=PYTHONS[0], requires=["build"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def minimums(session: nox.Session, package: str) -> None:
    """Test a package with the oldest versions of what it requires."""
    required = {r for p in PROJECTS.values() for r in p["project"]["dependencies"]}
    (bound,) = (r.partition(">=")[2] for r in required if r.startswith("zrecord"))
    built = PROJECTS["zrecord"]["project"]["version"]
    if bound != built:
        session.error(f"loaderx accepts zrecord {bound}, of which there is no wheel, only {built}")
    session.log(f"zrecord {built} is both the oldest that loaderx accepts and the current one")
    oldest = sorted(r.replace(">=", "==") for r in required if not r.startswith("zrecord"))
    install_wheels(session, *PACKAGES[: PACKAGES.index(package) + 1], constraints=tuple(oldest))
    run_tests(session, package)


@nox.session(requires=["build"])
def quickstart(session: nox.Session) -> None:
    """Train a classifier on real images through stores and loader, and resume it exactly."""
    install_wheels(session, *PACKAGES)
    session.install("scikit-learn")
    session.run("python", "-I", str(ROOT / "packages/loaderx/examples/quickstart.py"))
    run_tests(session, "loaderx", "test_quickstart.py")


@nox.session(requires=["build"])
def realdata(session: nox.Session) -> None:
    """Load real images and sequences in every mode and compare each batch with its source."""
    install_wheels(session, *PACKAGES)
    session.install("scikit-learn")
    run_tests(session, "loaderx", "test_realdata.py")


@nox.session(requires=["build"], default=False)
def docs_tools(session: nox.Session) -> None:
    """Install both wheels, and what builds and tests the documentation."""
    install_wheels(session, *PACKAGES)
    session.install("-r", "docs/requirements.txt")


@nox.session(venv_backend="none", requires=["docs_tools"])
@nox.parametrize("site", SITES, ids=SITES)
def docs(session: nox.Session, site: str) -> None:
    """Build a site of the documentation into docs/_build/ and run every program on its pages."""
    run_in(session, "docs_tools", "docs/build.py", site)
    tests = [str(ROOT / "docs/tests"), "--site", site]
    with session.chdir(session.create_tmp()):
        run_in(session, "docs_tools", "-m", "pytest", "-p", "no:cacheprovider", "-rs", *tests)


RIVALS = [
    "h5py", "zarr>=3", "blosc2", "lmdb", "array-record", "bagz", "pyarrow", "matplotlib",
]  # fmt: skip
LOADER_RIVALS = ["torch", "grain", "matplotlib"]


@nox.session(requires=["build(zrecord)"], default=False)
def bench_zrecord(session: nox.Session) -> None:
    """Measure the stores beside their rivals; after ``--``: ``--smoke``, questions, options."""
    measure(session, ["zrecord"], ["dense", "ragged", "append", "open"], RIVALS)


@nox.session(requires=["build"], default=False)
def bench_loaderx(session: nox.Session) -> None:
    """Measure sampler and loader beside their rivals; after ``--`` as for the stores."""
    measure(session, PACKAGES, ["sampler", "loader", "memory"], LOADER_RIVALS)


def measure(
    session: nox.Session, packages: list[str], questions: list[str], rivals: list[str]
) -> None:
    """Run benchmarks against the wheels; a small size without rivals also tests the harness."""
    folder = ROOT / "benchmarks"
    install_wheels(session, *packages)
    smoke = "--smoke" in session.posargs
    if smoke:
        session.install(*nox.project.dependency_groups(PROJECTS["zrecord"], "test"))
        session.run("python", "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(folder))
    else:
        run_in(session, "toolchain", "native/fetch_zstd.py")
        for rival in rivals:
            # One that cannot be installed is reported as not run.
            session.install(rival, success_codes=[0, 1])
    options = [argument for argument in session.posargs if argument not in questions]
    for question in [q for q in questions if q in session.posargs] or questions:
        session.run("python", str(folder / f"{question}.py"), *options)
    if not smoke:
        session.run("python", str(folder / "report.py"), "--figures", str(folder / "figures"))


@nox.session(requires=["build"])
def typecheck(session: nox.Session) -> None:
    """Check the types of both packages, and of the programs that use them, by mypy and pyright."""
    install_wheels(session, *PACKAGES)
    session.install("mypy", "pyright[nodejs]")
    sources = [str(ROOT / "packages" / package / "src" / package) for package in PACKAGES]
    sources.append(str(ROOT / "packages/zrecord/tests/typing_program.py"))
    session.run("mypy", "--strict", *sources)
    session.run("pyright", *sources)


@nox.session(requires=["toolchain"])
def lint(session: nox.Session) -> None:
    """Check the style of Python and Zig."""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    zig_build(session, "fmt")


@nox.session(venv_backend="none", requires=["toolchain"], default=False)
def crash(session: nox.Session) -> None:
    """Crash the store at every operation, for long; ``-- -Dscale=N`` sets how long."""
    zig_build(session, "crash", *scale(session))
    run_in_toolchain(session, "native/test/protocol_model.py", "--seconds", "600")


@nox.session(venv_backend="none", requires=["toolchain"], default=False)
def fuzz(session: nox.Session) -> None:
    """Fuzz the store and its formats, for long; ``-- -Dscale=N -Dseed=N`` sets how."""
    zig_build(session, "fuzz", *scale(session))


def scale(session: nox.Session) -> list[str]:
    return [] if any("-Dscale" in argument for argument in session.posargs) else ["-Dscale=100"]


@nox.session(venv_backend="none", requires=["toolchain"], default=False)
def wheels(session: nox.Session) -> None:
    """Build and check the wheels of all eight platforms, into dist/wheels/."""
    target = DIST / "wheels"
    for old in target.glob("*"):
        old.unlink()
    table = re.findall(r'\.tag = "(\w+)"', (ROOT / "native/build.zig").read_text("utf-8"))
    command = ["-m", "build", "--no-isolation", "--outdir", str(target)]
    for package in PACKAGES:
        folder = str(ROOT / "packages" / package)
        run_in_toolchain(session, *command, "--sdist", folder)
        for tag in table:
            run_in_toolchain(session, *command, "--wheel", folder, ZRECORD_WHEEL=tag)
        run_in_toolchain(session, "packages/check_wheel.py", package, str(target))


@nox.session(requires=["toolchain"], default=False)
def foreign(session: nox.Session) -> None:
    """Load the wheels of dist/wheels/ on musl, arm64 and Windows, as far as this system can."""
    paths = [str(path) for path in sorted((DIST / "wheels").glob("*manylinux*x86_64.whl"))]
    if sys.platform != "linux" or len(paths) != len(PACKAGES):
        session.error("needs x86-64 Linux, and what `nox -s wheels` builds")
    session.install(*paths)
    run_in_toolchain(session, "native/fetch_zstd.py")
    toolchain_python = ROOT / session.cache_dir.parent / "toolchain/bin/python"
    scratch = Path(session.create_tmp()) / "loads"
    arguments = [str(DIST / "wheels"), str(scratch), str(toolchain_python)]
    session.run("python", "packages/load_wheels.py", *arguments)


# A version manager's shim is there for interpreters that are not.
FOUND = [p for p in PYTHONS if "shims" not in (shutil.which(f"python{p}") or "shims")]
FOUND = FOUND or [f"{sys.version_info[0]}.{sys.version_info[1]}"]
# Every kind of test once, on the newest Python here.
TESTS = [
    "test_native", f"test_zrecord-{FOUND[-1]}", f"test_loaderx-{FOUND[-1]}", "quickstart",
    "realdata", "docs",
]  # fmt: skip
# Style and types; all tests on the oldest Python, with the oldest requirements and without the fast
# paths; on every Python between the oldest and the newest, what that may break.
MATRIX = [
    "lint", "typecheck", "minimums", "slow_paths",
    *(f"interpreters-{python}" for python in FOUND[:-1] if python != PYTHONS[0]),
    "stress", "rebuild",
]  # fmt: skip


@nox.session(venv_backend="none", requires=["build", *TESTS], default=False)
def tests(session: nox.Session) -> None:
    """Build both packages and run every kind of test once, in minutes."""
    session.log("all of these ran: build, " + ", ".join(TESTS))


@nox.session(venv_backend="none", requires=["build", *MATRIX], default=False)
def matrix(session: nox.Session) -> None:
    """Run what CI checks beside `tests`: style, types, other Pythons, long searches."""
    for package in PACKAGES:
        session.notify(f"bench_{package}", ["--smoke"])
    session.log("all of these ran: " + ", ".join(MATRIX) + "; small benchmarks follow")
