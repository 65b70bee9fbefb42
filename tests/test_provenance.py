"""The commit that a result names: dirty only if something that makes results was changed."""

from __future__ import annotations

import subprocess

from cflib.provenance import commit


def git(place, *words):
    named = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", str(place), *named, *words], check=True, capture_output=True)


def test_what_runs_write_does_not_make_a_commit_dirty(tmp_path):
    for name in ("cflib/grid.py", "notebooks/executed/01.ipynb", "data/results/01.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = commit(tmp_path)
    assert len(clean) == 12
    for name in ("notebooks/executed/01.ipynb", "data/results/01.json"):
        (tmp_path / name).write_text("after")
    assert commit(tmp_path) == clean
    (tmp_path / "cflib/grid.py").write_text("after")
    assert commit(tmp_path) == f"{clean}-dirty"


def test_a_folder_without_a_repository_has_no_commit(tmp_path):
    assert commit(tmp_path) == "unknown"
