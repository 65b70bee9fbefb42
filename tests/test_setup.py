"""The compendium sets itself up: lock, environment file, make targets and README agree with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()


def pins() -> dict[str, list[Version]]:
    found: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", LOCK, flags=re.M):
        found.setdefault(name.lower().replace("_", "-"), []).append(Version(version))
    return found


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_the_lock_pins_every_dependency_within_its_bounds(line):
    wanted = Requirement(line)
    versions = pins()[wanted.name.lower()]
    assert all(wanted.specifier.contains(version, prereleases=True) for version in versions)


def test_every_pin_is_hashed_and_no_index_is_named():
    blocks = re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"^\s*#.*\n", "", LOCK, flags=re.M).strip())
    assert all("--hash=sha256:" in block for block in blocks)
    assert "index-url" not in LOCK
    assert "http" not in re.sub(r"^(httpcore|httpx|httptools|aiohttp)\S*", "", LOCK, flags=re.M).replace("http==", "")


def test_the_lock_is_installed_as_it_is():
    # pip would resolve an extra apart from its pin and take a newer release, which has no hash in the lock.
    assert "--no-deps --require-hashes -r requirements.lock" in (ROOT / "Makefile").read_text()


def test_the_environment_file_gives_conda_users_the_same_lock_and_python():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(item for item in environment["dependencies"] if str(item).startswith("python="))
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python.split("=")[1])
    assert {"pip": ["-r requirements.lock"]} in environment["dependencies"]
    assert "pip install --no-deps --no-build-isolation -e ." in (ROOT / "postBuild").read_text()


def test_importing_cflib_imports_no_heavy_library():
    heavy = ("tensorflow", "keras", "flwr", "papermill", "sklearn", "pandas", "numpy")
    code = f"import sys, cflib; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_module_can_be_reached_from_the_package():
    import cflib

    for name in cflib.__all__:
        assert getattr(cflib, name).__name__ == f"cflib.{name}"
    assert set(cflib.__all__) <= set(dir(cflib))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cflib.nothing  # noqa: B018


def test_each_module_imports_only_from_those_above_it_in_the_list_of_layers():
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([^|]*`[^|]*) \|", contributing, flags=re.MULTILINE)
    listed = ["places", "files", "progress", "provenance"]
    for row in rows:
        names = re.findall(r"`(\w+)/?`", row)
        listed += [f"{names[0]}.{name}" for name in names[1:]] if row.startswith(f"`{names[0]}/`:") else names
    place = {name: number for number, name in enumerate(listed)}
    sources = [path for path in sorted((ROOT / "cflib").rglob("*.py")) if path.name != "__init__.py"]
    files = {path: ".".join(path.relative_to(ROOT / "cflib").with_suffix("").parts) for path in sources}
    for path, name in files.items():
        tree = ast.walk(ast.parse(path.read_text()))
        taken = [step for step in tree if isinstance(step, ast.ImportFrom) and str(step.module).startswith("cflib")]
        for step in taken:
            home = str(step.module).removeprefix("cflib").removeprefix(".")
            for used in {home} | {f"{home}.{one.name}".strip(".") for one in step.names}:
                assert used not in place or place[used] < place[name], f"{name} imports {used}, which stands below it"
    assert set(files.values()) <= set(place)


def test_make_alone_lists_every_target_with_a_sentence():
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("reproduce", "test", "test-slow", "lint", "lab", "data", "report", "bench", "help"):
        assert re.search(rf"^  make {target} +\S.*\S", listed, flags=re.M), target


def test_another_python_version_is_refused_with_a_sentence():
    done = subprocess.run(["make", "venv", "PYTHON=false"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs Python 3.11 or 3.12" in done.stderr


def test_ci_calls_the_readmes_test_command():
    assert "make test\n" in (ROOT / ".ci" / "run").read_text()
    assert "make test " in (ROOT / "README.md").read_text()


def test_the_readmes_example_runs_as_written(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    script = tmp_path / "example.py"
    script.write_text(example)
    environment = {
        "CFLIB_RECORDS": str(tmp_path),
        "CFLIB_CHECKPOINTS": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "adjusted_rand" in done.stdout


def test_flower_and_ray_report_nothing_unless_asked_to():
    code = "import os; print([os.environ[n] for n in ('FLWR_TELEMETRY_ENABLED', 'RAY_USAGE_STATS_ENABLED')])"
    for given, seen in (({}, "['0', '0']"), ({"FLWR_TELEMETRY_ENABLED": "1"}, "['1', '0']")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=given)
        assert done.stdout.strip() == seen


def test_the_command_line_lists_the_grid():
    done = subprocess.run([sys.executable, "-m", "cflib", "list"], capture_output=True, text=True, check=True, cwd=ROOT)
    for word in ("describe", "ocfl_hdbscan", "at_round(round=200)", "trusted_distances", "chosen by the client"):
        assert word in done.stdout


def test_the_citation_file_names_the_five_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert len(citation["references"]) == 5
    assert all(reference["authors"] and reference["title"] for reference in citation["references"])
    assert citation["version"] == PROJECT["version"]
