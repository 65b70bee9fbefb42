"""Which notebooks and presets exist, and whether a notebook keeps the rules that its readers and the runner rely on.

The first code cell of a notebook declares its parameters; a preset is a YAML file with other values for some of them,
``params/<notebook>/<preset>.yml``. The values in the cell are the preset ``quick``: its file is empty, and there
only so that ``papermill -f`` takes every preset alike.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cflib.claims import PRESETS
from cflib.parameters import Parameter, declarations, from_file

LONGEST_CELL = 25
LONGEST_BODY = 3

Node = dict[str, Any]

_INSTALLS = re.compile(r"^\s*[!%].*\b(pip|conda|mamba|uv)\b", re.MULTILINE)
_ROOTED = re.compile(r"(?<![\w.:/})-])(?:/(?:home|Users|root|tmp|mnt|media|opt|srv|usr|var|work)/|[A-Za-z]:\\)")
_QUOTED = re.compile(r"[\"'](?:/[\w.-]+/|~/|file://)")


def folder() -> Path:
    """Return the folder of the notebooks: the one that ``CFLIB_NOTEBOOKS`` names, else that of the checkout."""
    named = os.environ.get("CFLIB_NOTEBOOKS")
    place = Path(named).expanduser().absolute() if named else Path(__file__).resolve().parent.parent / "notebooks"
    if not place.is_dir():
        raise ValueError(f"{place} is no folder: work in a checkout, or name one in CFLIB_NOTEBOOKS")
    return place


def find(place: Path, names: Sequence[str] = ()) -> list[Path]:
    """Return the notebooks called ``01``, ``louvain_cfl`` or ``01_louvain_cfl``; with no names, all numbered ones.

    Raises ``ValueError`` listing what exists if a name fits no notebook, or several.
    """
    every = sorted(place.glob("*.ipynb"))
    numbered = [path for path in every if re.match(r"\d\d_", path.stem)]
    found = [] if names else numbered
    for name in names:
        wanted = Path(name).name.removesuffix(".ipynb")
        fitting = [path for path in every if path.stem == wanted]
        fitting = fitting or [path for path in numbered if wanted in (path.stem[:2], path.stem[3:])]
        if len(fitting) != 1:
            there = ", ".join(path.stem for path in every) or "none"
            raise ValueError(f"{'several notebooks' if fitting else 'no notebook'} {name!r} in {place}; there: {there}")
        found += fitting
    return list(dict.fromkeys(found))


def parameters(path: Path) -> dict[str, Parameter]:
    """Return the parameters that a notebook declares, by name; ``ValueError`` if its parameters cell breaks a rule."""
    declared, complaints = _declared(_read(path))
    if complaints:
        raise ValueError(f"{path.name}: {'; '.join(complaints)}")
    return declared


def presets(path: Path) -> list[str]:
    """Return the presets that a notebook has, smallest first."""
    return [name for name in PRESETS if name == "quick" or _preset_file(path, name).is_file()]


def settings(path: Path, preset: str) -> dict[str, Any]:
    """Return the values that a preset gives to a notebook's parameters, ``preset`` itself included.

    Raises ``ValueError`` if there is no such preset, or it names an undeclared parameter or a value of another type.
    """
    if preset not in presets(path):
        raise ValueError(f"{path.stem} has no preset {preset!r}; it has: {', '.join(presets(path))}")
    values, complaints = _preset(path, preset, parameters(path))
    if complaints:
        raise ValueError("; ".join(complaints))
    return {**values, "preset": preset}


def faults(path: Path) -> list[str]:
    """Return what keeps a notebook from being run with parameters as its own declarations promise."""
    try:
        declared, complaints = _declared(_read(path))
    except ValueError as error:
        return [str(error)]
    for file in sorted((path.parent / "params" / path.stem).glob("*")):
        if file.suffix == ".yml" and file.stem in PRESETS:
            complaints += _preset(path, file.stem, declared)[1]
        else:
            complaints.append(f"{file.name}: a preset file is one of {', '.join(f'{name}.yml' for name in PRESETS)}")
    return complaints


def check(path: Path) -> list[str]:
    """Return every rule that a notebook source breaks, in words: its faults, and the rules of the house."""
    complaints = faults(path)
    try:
        notebook = _read(path)
    except ValueError:
        return complaints
    if not re.fullmatch(r"\d\d_[a-z0-9_]+", path.stem):
        complaints.append(f"the name {path.name} does not follow NN_slug.ipynb")
    if "smoke" not in presets(path):
        complaints.append(f"no preset smoke: write params/{path.stem}/smoke.yml, a minute of work at most")
    complaints += _format(path)
    if not _declared(notebook)[1]:
        complaints += _inspection(path, _declared(notebook)[0])
    for number, cell in enumerate(notebook["cells"], 1):
        complaints += [f"cell {number}: {fault}" for fault in _cell(cell)]
    return complaints


def _read(path: Path) -> Node:
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [{**cell, "source": "".join(cell["source"])} for cell in notebook["cells"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is no notebook: {error!r}") from None
    return {**notebook, "cells": cells}


def _tags(cell: Node) -> list[str]:
    return list(cell.get("metadata", {}).get("tags", []))


def _declared(notebook: Node) -> tuple[dict[str, Parameter], list[str]]:
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    tagged = [cell for cell in notebook["cells"] if "parameters" in _tags(cell)]
    if not code or tagged != code[:1]:
        return {}, ["the first code cell, and it alone, must be tagged 'parameters'"]
    declared, complaints = declarations(code[0]["source"])
    if "preset" not in declared or (declared["preset"].type, declared["preset"].default) != ("str", "quick"):
        complaints.append('the parameters cell must declare preset: str = "quick", which the runner sets')
    return declared, complaints


def _preset_file(path: Path, preset: str) -> Path:
    return path.parent / "params" / path.stem / f"{preset}.yml"


def _preset(path: Path, preset: str, declared: Mapping[str, Parameter]) -> tuple[dict[str, Any], list[str]]:
    file = _preset_file(path, preset)
    place = f"params/{path.stem}/{file.name}"
    try:
        content = (yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None) or {}
    except yaml.YAMLError as error:
        return {}, [f"{place} is not YAML: {error}"]
    if not isinstance(content, dict):
        return {}, [f"{place} must hold name: value pairs"]
    values: dict[str, Any] = {}
    complaints = []
    for name, value in content.items():
        if name not in declared:
            complaints.append(f"{place}: no parameter {name!r}; {path.stem} has: {', '.join(declared)}")
            continue
        try:
            values[name] = from_file(value, declared[name].type)
        except ValueError as error:
            complaints.append(f"{place}: {name}: {error}")
    if values.get("preset", preset) != preset:
        complaints.append(f"{place}: preset must be {preset!r}, or be left to the runner")
    return values, complaints


def _format(path: Path) -> list[str]:
    import nbformat

    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("nbformat") != 4 or content.get("nbformat_minor", 0) < 5:
        return ["must be in notebook format 4.5 or later, whose cells have ids"]
    complaints = []
    try:
        nbformat.validate(content)
    except nbformat.ValidationError as error:
        complaints.append(f"breaks the notebook format: {str(error).splitlines()[0]}")
    metadata = content.get("metadata", {})
    kernel, language = metadata.get("kernelspec", {}), metadata.get("language_info", {})
    if kernel.get("name") != "python3" or "python" not in (kernel.get("language"), language.get("name")):
        complaints.append("the metadata must name the kernel python3 and the language python")
    return complaints


def _inspection(path: Path, declared: Mapping[str, Parameter]) -> list[str]:
    """Compare the declarations with what papermill shows to somebody who asks for help on the notebook."""
    import nbformat
    import papermill

    try:
        shown = papermill.inspect_notebook(nbformat.read(path, as_version=4))  # type: ignore[no-untyped-call]
    except Exception as error:
        return [f"papermill cannot inspect it: {error}"]
    seen = {name: (one["inferred_type_name"], one["help"]) for name, one in shown.items()}
    return [
        f"papermill shows {one.name} as {seen.get(one.name)}, not {(one.type, one.help)}: write its help otherwise"
        for one in declared.values()
        if seen.get(one.name) != (one.type, one.help)
    ]


def _cell(cell: Node) -> Iterator[str]:
    source = cell["source"]
    if _ROOTED.search(source) or (cell["cell_type"] == "code" and _QUOTED.search(source)):
        yield "an absolute path: name files relative to the notebook, or ask cflib for them"
    if cell["cell_type"] != "code":
        return
    if cell.get("outputs") or cell.get("execution_count") is not None:
        yield "outputs or an execution count: sources are kept clean (nbstripout)"
    if "injected-parameters" in _tags(cell):
        yield "parameters injected by papermill: this is an executed copy, not a source"
    if (length := len(source.splitlines())) > LONGEST_CELL:
        yield f"{length} lines; at most {LONGEST_CELL}"
    if _INSTALLS.search(source):
        yield "installs packages: they belong in the lock"
    yield from _code(source)


def _code(source: str) -> Iterator[str]:
    from IPython.core.inputtransformer2 import TransformerManager

    plain = TransformerManager().transform_cell(source)  # type: ignore[no-untyped-call]
    try:
        tree = compile(plain, "cell", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        yield f"does not parse: {error.msg}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (body := (node.end_lineno or 0) - node.body[0].lineno + 1) > LONGEST_BODY:
                yield f"def {node.name} has {body} lines; one of more than {LONGEST_BODY} belongs in cflib"
        elif isinstance(node, ast.Call) and _silences_everything(node):
            yield "a blanket warning filter: name the category or the message"


def _silences_everything(call: ast.Call) -> bool:
    if ast.unparse(call.func).split(".")[-1] not in ("filterwarnings", "simplefilter"):
        return False
    return [ast.unparse(value) for value in (*call.args, *(word.value for word in call.keywords))] == ["'ignore'"]
