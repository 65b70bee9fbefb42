"""Where files live: in the checkout if there is one, else in the user's own cache; environment variables override."""

from __future__ import annotations

import os
from pathlib import Path


def folder(name: str, variable: str) -> Path:
    """Return the folder that the environment variable names, else ``data/<name>`` of the checkout or user cache."""
    if named := os.environ.get(variable):
        return Path(named).expanduser().absolute()
    project = Path(__file__).resolve().parent.parent
    if (project / "pyproject.toml").is_file():
        return project / "data" / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cflib" / name
