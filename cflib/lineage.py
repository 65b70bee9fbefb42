"""How each result was made, as rows for people: run records and executed notebooks, their seeds, data and versions."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cflib.catalogue import CATALOGUE
from cflib.pages import Notebook


@dataclass(frozen=True)
class Origin:
    """Where one record or executed notebook comes from; ``versions`` is one line of text."""

    name: str
    method: str
    data: str
    seeds: str
    rounds: str
    seconds: float | None
    commit: str
    versions: str


def runs(folder: Path) -> tuple[list[Origin], list[str]]:
    """Return the origin of every record in a folder, and a line for each file that cannot be read.

    Only the description of a record is read, not its results.
    """
    found, complaints = [], []
    for path in sorted(folder.glob("*.npz")):
        try:
            with np.load(path, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
            found.append(_run(about["key"], about["specification"], about["provenance"]))
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            complaints.append(f"record {path.name} cannot be read: {error}")
    return sorted(found, key=lambda one: (one.method, one.data, one.seeds, one.name)), complaints


def executed(notebook: Notebook) -> Origin:
    """Return the origin of an executed notebook.

    Its data are the data sets that its code or parameters name, with the checksum without which they are not loaded.
    """
    made = notebook.made.get("provenance", {})
    named = " ".join([*(cell.body for cell in notebook.cells if cell.kind == "code"), json.dumps(notebook.parameters)])
    literals = set(re.findall(r"(?:&quot;|\"|&#39;|')(\w+)(?:&quot;|\"|&#39;|')", named))
    data = [f"{spec.name} {spec.checksum[:12]}" for spec in CATALOGUE.values() if spec.name in literals]
    seeds = {name: value for name, value in notebook.parameters.items() if name.startswith("seed")}
    return Origin(
        notebook.name,
        "",
        ", ".join(data),
        "; ".join(_listed(name, value) for name, value in seeds.items()),
        "",
        notebook.made.get("seconds"),
        str(made.get("commit", "unknown")),
        versions(made),
    )


def versions(made: Mapping[str, Any]) -> str:
    """Return the versions, the lock and the processor behind a result as one line.

    >>> versions({"cflib": "0.1.0", "python": "3.11.7", "versions": {"numpy": "2.4"}, "processor": "a CPU"})
    'cflib 0.1.0, python 3.11.7, numpy 2.4, on a CPU'
    """
    named = {"cflib": made.get("cflib"), "python": made.get("python"), **dict(sorted(made.get("versions", {}).items()))}
    parts = [f"{name} {version}" for name, version in named.items() if version]
    parts += [f"lock {made['lock']}"] if made.get("lock") else []
    place = " with ".join(str(made[name]) for name in ("processor", "instructions") if made.get(name))
    return ", ".join([*parts, *([f"on {place}"] if place else [])]) or "unknown"


def numbered(origins: Iterable[Origin]) -> list[str]:
    """Return the different lines of versions, in order of first use."""
    return list(dict.fromkeys(one.versions for one in origins))


def _run(key: str, specification: Mapping[str, Any], made: Mapping[str, Any]) -> Origin:
    told = {name: value for name, value in specification.items() if isinstance(value, Mapping)}
    study = next((name for name, value in told.items() if "federation" in value), "")  # a probe, or a table about a run
    about = told.get(study, specification)
    method = made.get("method") or (_choices(about["method"]) if "method" in about else "")
    return Origin(
        key,
        " of ".join(filter(None, [study, method])),
        made.get("data") or f"split {str(about.get('federation', {}).get('checksum', 'unknown'))[:12]}",
        str(about.get("seed", 0)),
        str(about.get("rounds", "")),
        made.get("seconds"),
        str(made.get("commit", "unknown")),
        versions(made),
    )


def _choices(method: Mapping[str, Any]) -> str:
    """Name a method by the choices in which it differs from FedAvg, whose choices are the defaults."""
    functions = [value for value in method.values() if isinstance(value, Mapping) and "function" in value]
    return ", ".join(str(one["function"]).rpartition(".")[2] for one in functions) or "FedAvg's choices"


def _listed(name: str, value: Any) -> str:
    text = ", ".join(str(one) for one in value) if isinstance(value, list | tuple) else str(value)
    return text if name in ("seed", "seeds") else f"{name} {text}"
