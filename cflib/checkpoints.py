"""A run's state on disk, so that a kill loses at most a minute: only what changed is written again.

A model or description is a file of its own, named by what it is and the round it dates from; a small manifest, replaced
atomically, says which files make up the state. Files that no manifest names any more are deleted afterwards.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cflib.arrays import Weights
from cflib.grid import Memory, State
from cflib.records import write_atomically

PLAIN = ("round", "trainable", "watched", "clustered", "losses")


def save(folder: Path, state: State, extra: Mapping[str, Any]) -> None:
    """Write the state and a few more arrays (``extra``); a crash at any moment leaves the old or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    blobs: dict[int, str] = {}
    manifest: dict[str, Any] = {
        **{name: getattr(state, name) for name in PLAIN},
        "flagged": sorted(state.flagged),
        "stopped": sorted(state.stopped),
        "excluded": sorted(state.excluded.items()),
        "models": [_blob(folder, blobs, model, f"model-{state.round}-{i}") for i, model in enumerate(state.models)],
        "probe": _blob(folder, blobs, state.probe, "probe"),
        "memory": [
            [client, kept.round, *_described(folder, blobs, client, kept)] for client, kept in state.memory.items()
        ],
    }
    arrays = {"labels": state.labels, "shares": state.shares, **extra}
    if state.matrix is not None:
        arrays["matrix"] = state.matrix
    manifest["arrays"] = f"arrays-{state.round}.npz"
    _write(folder / manifest["arrays"], arrays)
    write_atomically(folder / "state.json", json.dumps(manifest).encode())
    used = {manifest["arrays"], manifest["probe"], *manifest["models"], *(entry[2] for entry in manifest["memory"])}
    for path in folder.glob("*.npz"):
        if path.name not in used and not path.name.startswith("snapshot-"):
            path.unlink()


def load(folder: Path) -> tuple[State, dict[str, Any]] | None:
    """Return the state and the extra arrays, or None if there is no whole checkpoint."""
    if not (folder / "state.json").exists():
        return None
    manifest = json.loads((folder / "state.json").read_text())
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
    return state, arrays


def save_snapshot(folder: Path, state: State) -> None:
    """Keep the models and labels of one round, from which other runs may start."""
    flat = {f"model-{i}-{j}": array for i, model in enumerate(state.models) for j, array in enumerate(model)}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"snapshot-{state.round}.npz", {"labels": state.labels, **flat})


def load_snapshot(folder: Path, round: int) -> tuple[tuple[Weights, ...], Any] | None:
    """Return the models and labels after a round, or None if they were not kept."""
    path = folder / f"snapshot-{round}.npz"
    if not path.exists():
        return None
    arrays = _read(path)
    labels = arrays.pop("labels")
    models: dict[int, dict[int, Any]] = {}
    for name, array in arrays.items():
        _, i, j = name.split("-")
        models.setdefault(int(i), {})[int(j)] = array
    return tuple([model[j] for j in sorted(model)] for _, model in sorted(models.items())), labels


def discard(folder: Path) -> None:
    """Remove the checkpoint of a finished run; its snapshots stay."""
    if not folder.exists():
        return
    (folder / "state.json").unlink(missing_ok=True)
    for path in folder.glob("*.npz"):
        if not path.name.startswith("snapshot-"):
            path.unlink()
    if not any(folder.iterdir()):
        shutil.rmtree(folder)


def _described(folder: Path, blobs: dict[int, str], client: int, kept: Memory) -> tuple[str, bool]:
    single = isinstance(kept.description, np.ndarray)
    weights = [kept.description] if single else kept.description
    return _blob(folder, blobs, weights, f"memory-{client}-{kept.round}", again=kept.description), single


def _blob(folder: Path, blobs: dict[int, str], weights: Weights, name: str, *, again: Any = None) -> str:
    """Write one list of arrays once, however many times the state refers to it."""
    identity = id(weights if again is None else again)
    if identity not in blobs:
        blobs[identity] = f"{name}.npz"
        if not (folder / blobs[identity]).exists():
            _write(folder / blobs[identity], {str(i): array for i, array in enumerate(weights)})
    return blobs[identity]


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
