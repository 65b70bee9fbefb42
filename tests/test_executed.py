"""The notebooks themselves, executed by the batch runner at the smoke preset: they end, and say what they should."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from cflib import notebooks
from cflib.__main__ import main

EVERY = sorted(path.stem for path in notebooks.folder().glob("[0-9][0-9]_*.ipynb"))


def execute(slug: str, folder: Path, monkeypatch) -> str:
    """Run a notebook and return all that it prints and shows."""
    for variable in ("CFLIB_RECORDS", "CFLIB_CHECKPOINTS", "CFLIB_RESULTS"):
        monkeypatch.setenv(variable, str(folder / variable.lower()))
    assert main(["run", slug, "--preset", "smoke", "--output", str(folder)]) == 0
    (copy,) = folder.glob("*.ipynb")
    cells = nbformat.read(copy, 4).cells
    texts = [out.get("text", out.get("data", {}).get("text/plain", "")) for c in cells for out in c.get("outputs", [])]
    assert not [out for c in cells for out in c.get("outputs", []) if out["output_type"] == "error"]
    return "\n".join(texts)


def test_the_tour_finds_the_three_groups(tmp_path, monkeypatch):
    said = execute("00_start_here", tmp_path, monkeypatch)
    assert re.search(r"clustered after round \d+; clusters: 3; adjusted Rand index: 1.00", said)


@pytest.mark.slow
@pytest.mark.parametrize("slug", [slug for slug in EVERY if slug != "00_start_here"])
def test_every_other_notebook_runs_from_top_to_bottom(slug, tmp_path, monkeypatch):
    assert execute(slug, tmp_path, monkeypatch)
