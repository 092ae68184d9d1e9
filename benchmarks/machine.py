"""What a result was measured on: the machine, the versions and the revision of the source."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

DISTRIBUTIONS = (
    "zrecord", "loaderx", "numpy", "cffi", "h5py", "zarr", "blosc2", "lmdb", "array_record",
    "bagz", "pyarrow", "torch", "grain",
)  # fmt: skip


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory, system and interpreter."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = None
    return {
        "processor": _processor(),
        "cpus": cpus,
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    name = next((v for k, v in fields.items() if k.strip() == "model name"), platform.machine())
    flags = next((v for k, v in fields.items() if k.strip() == "flags"), "").split()
    wide = next((f for f in ("avx512f", "avx2") if f in flags), "")
    return " ".join([name.strip(), wide]).strip()


def installed_versions() -> dict[str, str]:
    """Return the versions of our packages and of the contenders that are installed."""
    found = {d.metadata["Name"].replace("-", "_"): d.version for d in metadata.distributions()}
    return {name: found[name] for name in DISTRIBUTIONS if name in found}


def revision() -> dict[str, Any]:
    """Return the git revision of the source, and whether it was changed since."""
    folder = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        changed = git(
            "status", "--porcelain", "--untracked-files=no", "--", "../native", "../packages"
        )
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "changed": None}
