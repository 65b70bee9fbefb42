"""What a command asks for, as jobs: every notebook, preset, parameter and value is checked before anything starts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from cflib import notebooks
from cflib.execution import fingerprint, stamp
from cflib.parameters import Parameter, from_text, split_values


@dataclass(frozen=True)
class Job:
    """One notebook to run with one set of parameters into one executed copy."""

    source: Path
    preset: str
    parameters: Mapping[str, Any]
    output: Path
    changed: bool = False
    """Whether a parameter other than ``parts`` is not the preset's own."""

    @property
    def name(self) -> str:
        """The executed copy's name without its ending."""
        return self.output.name.removesuffix(".ipynb")

    @property
    def failed(self) -> Path:
        """Where a partial copy is kept for those who want to see how far it came."""
        place = self.source.parent if self.output.parent == self.source.parent / "executed" else self.output.parent
        return place / "failed" / self.output.name

    @property
    def verdicts(self) -> Path | None:
        """Where verdicts go if not to the ledger's own: what changed parameters find does not replace a preset's."""
        if not self.changed and self.output.parent == self.source.parent / "executed":
            return None
        return self.output.parent / "results" / self.name

    @property
    def fresh(self) -> bool:
        """Whether the executed copy is that of these cells, these parameters and this cflib.

        One made for some parts never is: records may have come since, from elsewhere, that it would show.
        """
        if self.parameters.get("parts", ["all"]) != ["all"]:
            return False
        kept = stamp(self.output).get("fingerprint")
        return kept is not None and kept == fingerprint(self.source, self.parameters)

    @property
    def current(self) -> bool:
        """Whether it is that of these cells and this cflib, whichever parts were computed for it."""
        kept = stamp(self.output)
        parts = {name: value for name, value in kept.get("parameters", {}).items() if name == "parts"}
        return bool(kept) and kept.get("fingerprint") == fingerprint(self.source, {**self.parameters, **parts})

    @property
    def seconds(self) -> float | None:
        """How long it took last time, or the preset's own copy did; None if nobody knows."""
        copy = self.source.parent / "executed" / f"{self.source.stem}.{self.preset}.ipynb"
        return stamp(self.output).get("seconds") or stamp(copy).get("seconds")


def plan(
    place: Path,
    names: Sequence[str] = (),
    *,
    preset: str = "quick",
    settings: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    output: Path | None = None,
) -> tuple[list[Job], list[str]]:
    """Return the jobs that a command asks for, and a line for each notebook that has no such preset.

    ``settings`` are ``name=value``, ``sweeps`` ``name=value,value``: every combination is a job. A parameter ``parts``
    says what may be computed, not what is studied: alone it leaves the executed copy the preset's own. Raises
    ``ValueError`` naming what exists if a notebook, preset or parameter does not, or a value is not of its type.
    """
    sources = notebooks.find(place, names)
    having = [path for path in sources if preset in notebooks.presets(path)]
    if not having or (names and having != sources):
        lists = "; ".join(f"{path.stem} has {', '.join(notebooks.presets(path))}" for path in sources)
        raise ValueError(f"no preset {preset!r}: {lists or f'there is no notebook in {place}'}")
    if complaints := [f"{path.name}: {fault}" for path in having for fault in notebooks.faults(path)]:
        raise ValueError("\n".join(complaints))
    jobs = []
    for path in having:
        base = notebooks.settings(path, preset)
        for chosen in product(*_choices(path, settings, sweeps)):
            changed = [f"{key}={_for_a_name(value)}" for key, value in chosen if key != "parts"]
            folder = output or place / ("sweeps" if changed else "executed")
            name = _short(".".join([path.stem, preset, *changed]), 200, kept=180)
            jobs.append(Job(path, preset, {**base, **dict(chosen)}, folder / f"{name}.ipynb", bool(changed)))
    if twice := {job.name for job in jobs if [other.output for other in jobs].count(job.output) > 1}:
        raise ValueError(f"given twice, or too alike to tell apart by name: {', '.join(sorted(twice))}")
    return jobs, [f"{path.stem}: no such preset ({preset})" for path in sources if path not in having]


def _choices(path: Path, settings: Sequence[str], sweeps: Sequence[str]) -> list[list[tuple[str, Any]]]:
    """Return, for every parameter that the command sets, the values it is to have in turn."""
    declared = notebooks.parameters(path)
    chosen: dict[str, list[Any]] = {}
    for given, several in [*((one, False) for one in settings), *((one, True) for one in sweeps)]:
        name, equals, text = (part.strip() for part in given.partition("="))
        if not equals:
            raise ValueError(f"{given!r}: write name=value")
        if name == "preset":
            raise ValueError("the preset is set with --preset")
        if name not in declared:
            there = "".join(f"\n  {one}" for one in declared.values() if one.name != "preset")
            raise ValueError(f"{path.stem} has no parameter {name!r}; it has:{there}")
        if name in chosen:
            raise ValueError(f"parameter {name} is set twice")
        chosen[name] = [_value(declared[name], part) for part in (split_values(text) if several else [text])]
    return [[(name, value) for value in values] for name, values in chosen.items()]


def _value(parameter: Parameter, text: str) -> Any:
    try:
        return from_text(text, parameter.type)
    except ValueError as error:
        raise ValueError(f"{error}: the notebook declares {parameter}") from None


def _for_a_name(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    text = re.sub(r"[^\w.,+=-]", "-", re.sub(r'^\[|\]$|"', "", text))
    return _short(text, 40, kept=30)


def _short(text: str, most: int, *, kept: int) -> str:
    """Return a name of so many bytes at most; what is longer is cut and ends with its digest."""
    content = text.encode()
    if len(content) <= most:
        return text
    return f"{content[:kept].decode(errors='ignore')}-{hashlib.sha256(content).hexdigest()[:8]}"
