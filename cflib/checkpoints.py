"""A run's state on disk, so that a kill loses at most a minute.

A model or description is a file of its own, named by what it is and a round; a description that is on disk already is
not written again, and of the history only what came since the last time is, so that a checkpoint costs the same however
long the run has been. A small manifest, replaced atomically, says which files make up the state. Files that no manifest
names any more are deleted afterwards.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cflib.arrays import Weights
from cflib.files import write_atomically
from cflib.grid import Memory, State
from cflib.records import DAMAGE

FORMAT = 2
PLAIN = ("round", "trainable", "watched", "clustered", "losses")


def save(folder: Path, state: State, about: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
    """Write the state, plain data ``about`` the run, and the arrays of its history since the last save (``rows``).

    A crash at any moment leaves the old or the new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    blobs = _Blobs(folder)
    piece, pieces = f"rows-{state.round}.npz", blobs.pieces
    if piece not in pieces:
        _write(folder / piece, rows)
        pieces = [*pieces, piece]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "about": about,
        "rows": pieces,
        **{name: getattr(state, name) for name in PLAIN},
        "flagged": sorted(state.flagged),
        "stopped": sorted(state.stopped),
        "excluded": sorted(state.excluded.items()),
        "models": [blobs.keep(model, f"model-{state.round}-{i}") for i, model in enumerate(state.models)],
        "probe": blobs.keep(state.probe, "probe"),
        "memory": [
            [client, kept.round, blobs.keep(kept.description, f"memory-{client}-{kept.round}"), _single(kept)]
            for client, kept in state.memory.items()
        ],
    }
    arrays = {"labels": state.labels, "shares": state.shares}
    if state.matrix is not None:
        arrays["matrix"] = state.matrix
    manifest["arrays"] = f"arrays-{state.round}.npz"
    _write(folder / manifest["arrays"], arrays)
    write_atomically(folder / "state.json", json.dumps(manifest).encode())
    used = {manifest["arrays"], manifest["probe"], *manifest["models"], *(entry[2] for entry in manifest["memory"])}
    _sweep(folder, used | {"state.json", *pieces})


def load(folder: Path) -> tuple[State, dict[str, Any], list[dict[str, Any]]] | None:
    """Return the state, the data about the run and its history piece by piece; None if there is no whole checkpoint.

    One that cannot be read, or was written in another format, is removed with a warning: the run starts again.
    """
    if not (folder / "state.json").exists():
        return None
    try:
        return _load(folder)
    except DAMAGE as error:
        warnings.warn(f"checkpoint {folder.name} cannot be used ({error!r}): the run starts again", stacklevel=2)
        discard(folder)
        return None


def _load(folder: Path) -> tuple[State, dict[str, Any], list[dict[str, Any]]]:
    manifest = json.loads((folder / "state.json").read_text())
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']}, expected {FORMAT}")
    cache: dict[str, Weights] = {}
    arrays = _read(folder / manifest["arrays"])
    memory = {}
    for client, round_, name, single in manifest["memory"]:
        weights = _weights(folder, cache, name)
        memory[int(client)] = Memory(round_, weights[0] if single else weights)
    state = State(
        round=manifest["round"],
        models=tuple(_weights(folder, cache, name) for name in manifest["models"]),
        labels=arrays.pop("labels"),
        shares=arrays.pop("shares"),
        trainable=tuple(manifest["trainable"]),
        probe=_weights(folder, cache, manifest["probe"]),
        memory=memory,
        matrix=arrays.pop("matrix", None),
        watched=tuple(manifest["watched"]),
        clustered=manifest["clustered"],
        flagged=frozenset(manifest["flagged"]),
        excluded={int(client): reason for client, reason in manifest["excluded"]},
        losses=tuple(tuple(series) for series in manifest["losses"]),
        stopped=frozenset(manifest["stopped"]),
    )
    return state, manifest["about"], [_read(folder / piece) for piece in manifest["rows"]]


def save_snapshot(folder: Path, state: State) -> None:
    """Keep the models and labels of one round, from which other runs may start."""
    flat = {f"model-{i}-{j}": array for i, model in enumerate(state.models) for j, array in enumerate(model)}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"snapshot-{state.round}.npz", {"labels": state.labels, **flat})


def load_snapshot(folder: Path, round: int) -> tuple[tuple[Weights, ...], Any] | None:
    """Return the models and labels after a round, or None if they were not kept or cannot be read."""
    path = folder / f"snapshot-{round}.npz"
    if not path.exists():
        return None
    models: dict[int, dict[int, Any]] = {}
    try:
        arrays = _read(path)
        labels = arrays.pop("labels")
        for name, array in arrays.items():
            _, i, j = name.split("-")
            models.setdefault(int(i), {})[int(j)] = array
    except DAMAGE as error:
        warnings.warn(f"{folder.name}/{path.name} cannot be used ({error!r}): it is removed", stacklevel=2)
        path.unlink()
        return None
    return tuple([model[j] for j in sorted(model)] for _, model in sorted(models.items())), labels


def discard(folder: Path) -> None:
    """Remove the checkpoint of a finished run; its snapshots stay."""
    if not folder.exists():
        return
    (folder / "state.json").unlink(missing_ok=True)
    _sweep(folder, set())
    if not any(folder.iterdir()):
        folder.rmdir()


def _sweep(folder: Path, used: set[str]) -> None:
    """Remove what no manifest names, and what a killed process left half-written; snapshots stay."""
    for path in folder.iterdir():
        if path.name not in used and not path.name.startswith("snapshot-"):
            path.unlink()


def _single(kept: Memory) -> bool:
    return isinstance(kept.description, np.ndarray)


class _Blobs:
    """Writes each list of arrays once, however often the state refers to it, and not again if it is on disk already.

    On disk means named by the current manifest: a file that a killed process left behind is never trusted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, dict[int, str]()
        self.trusted: set[str] = set()
        self.pieces: list[str] = []
        if (folder / "state.json").exists():
            old = json.loads((folder / "state.json").read_text())
            self.trusted = {old["probe"], *old["models"], *(entry[2] for entry in old["memory"])}
            self.pieces = list(old["rows"])

    def keep(self, weights: Any, name: str) -> str:
        """Return the file that holds these arrays."""
        if id(weights) not in self.names:
            self.names[id(weights)] = f"{name}.npz"
            if f"{name}.npz" not in self.trusted:
                arrays = [weights] if isinstance(weights, np.ndarray) else weights
                _write(self.folder / f"{name}.npz", {str(i): array for i, array in enumerate(arrays)})
        return self.names[id(weights)]


def _weights(folder: Path, cache: dict[str, Weights], name: str) -> Weights:
    if name not in cache:
        arrays = _read(folder / name)
        cache[name] = [arrays[str(i)] for i in range(len(arrays))]
    return cache[name]


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getvalue())


def _read(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
