"""How a result was made: versions, commit, processor, and the lock that the environment was built from."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "scipy", "scikit-learn", "networkx", "python-louvain", "tensorflow", "keras", "flwr")
PROJECT = Path(__file__).resolve().parent.parent
WRITTEN = [f":(exclude){place}" for place in ("notebooks/executed", "data/records", "data/results")]


@cache
def provenance() -> dict[str, Any]:
    """Return the facts on which bit-for-bit equality depends, and those that help to find the code again."""
    from cflib import __version__

    processor, instructions = _processor()
    return {
        "cflib": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "lock": _digest(PROJECT / "requirements.lock"),
        "processor": processor,
        "instructions": instructions,
        "cores": len(os.sched_getaffinity(0)),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "system": sys.platform,
    }


def commit(project: Path = PROJECT) -> str:
    """Return the commit of a checkout, with ``-dirty`` behind it if files that make results differ from it.

    What runs write themselves (executed notebooks, records, verdicts) does not count.
    """
    try:
        name = _git(project, "rev-parse", "--short=12", "HEAD")
        changed = _git(project, "status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{name}-dirty" if changed else name


def _git(project: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(project), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20] if path.is_file() else "unknown"


def _processor() -> tuple[str, str]:
    """Name the processor and its widest vector instructions: other ones may sum in another order."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown", "unknown"
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    facts = {name.strip(): value.strip() for name, value in pairs}
    flags = set(facts.get("flags", "").split())
    widest = [flag for flag in ("amx_tile", "avx512_bf16", "avx512f", "avx2", "avx", "sse4_2") if flag in flags]
    return facts.get("model name", platform.machine()), widest[0] if widest else platform.machine()
