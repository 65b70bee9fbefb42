"""A probe round looked at closely: what local training makes of one model at every client, layer by layer.

The server keeps no more of a probe (paper 002) than its labels. A study wants the bias vectors themselves, and to ask
what other layers would have told: a probe's record holds every client's last bias and, for each layer, the distances
between clients, from which any clustering of that layer can be made again without training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from cflib.arrays import FloatArray, Weights, flatten
from cflib.distances import minkowski_distances
from cflib.federation import Federation
from cflib.keys import canonical, key
from cflib.models import Network, initial_weights, layers
from cflib.progress import Progress
from cflib.protocol import Job
from cflib.provenance import provenance
from cflib.records import Record, Store
from cflib.simulation import Simulation
from cflib.training import Training

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Probe:
    """Every client trains the initial model once: the first round of ``methods.bias_clustering``."""

    federation: Federation
    network: Network
    training: Training
    seed: int = 0

    @property
    def key(self) -> str:
        """The content address of the probe."""
        return key({"probe": canonical(self)})


def views(network: Network) -> dict[str, tuple[int, ...]]:
    """Return what a client could send, by name, as places of arrays: each layer, parts of the last one, everything.

    Layers come in the order of depth; statistics of batch normalisation, which are not trained, are left out.
    """
    used = [place for place, trained in enumerate(network.trainable) if trained]
    single = {name: tuple(p for p in places if p in used) for name, places in layers(network).items()}
    return {**single, "last kernel": (used[-2],), "last bias": (used[-1],), "all weights": tuple(used)}


def gather_probes(
    probes: Mapping[Name, Probe],
    *,
    store: Store | None = None,
    compute: Callable[[Name], bool] = lambda name: True,
    workers: int | None = None,
    progress: bool = True,
) -> dict[Name, Record]:
    """Return by name the records of several probes under one line of progress, as ``runs.gather`` does for runs.

    Finished probes are read, others are computed if ``compute`` says so of their name, and left out if not.
    """
    store, found, wanted = store or Store.of(), {}, {name for name in probes if compute(name)}
    with Progress("", len(probes), enabled=progress) as line:
        for number, (name, probe) in enumerate(probes.items(), start=1):
            line.title = f"probe {number} of {len(probes)}: {probe.network.name}, {probe.training.epochs} epochs"
            record = store.read(probe.key)
            if record is None and name in wanted:
                record = _conduct(probe, workers)
                store.write(record)
            if record is not None:
                found[name] = record
            line.update(1)
            line.skip(1)
    return found


def biases(record: Record) -> FloatArray:
    """Return the last bias of every client ``(n, classes)``."""
    columns = [name for name in record.clients.columns if name.startswith("bias_")]
    found: FloatArray = record.clients[columns].to_numpy(dtype=np.float64)
    return found


def layer_distances(record: Record, network: Network) -> dict[str, FloatArray]:
    """Return the Euclidean distances ``(n, n)`` between clients in each of the views of the network."""
    return {name: record.matrix(place) for place, name in enumerate(views(network), start=1)}


def _conduct(probe: Probe, workers: int | None) -> Record:
    began, network = time.monotonic(), probe.network
    start = initial_weights(network, probe.seed)
    runtime = Simulation(probe.federation, network, probe.training, seed=probe.seed, workers=workers)
    try:
        replies = runtime.map([Job(i, 0, "train", (start,)) for i in range(probe.federation.n_clients)])
    finally:
        runtime.close()
    models = [reply.arrays for reply in replies]
    if lost := [reply.client for reply in replies if not all(np.isfinite(array).all() for array in reply.arrays)]:
        raise ValueError(f"clients {lost} diverged in the probe: lower the learning rate or scale the inputs")
    parts = views(network).values()
    upper = np.triu_indices(len(models), 1)
    triangles = [_distances(models, places)[upper] for places in parts]
    sizes = [sum(models[0][place].size for place in places) for places in parts]
    last = np.stack([model[-1] for model in models])
    places = np.arange(1, len(parts) + 1, dtype=np.int32)
    return Record(
        probe.key,
        {"probe": canonical(probe)},
        rounds=pd.DataFrame({"round": places, "parameters": np.array(sizes, dtype=np.int32)}),
        clients=pd.DataFrame({"client": np.arange(len(models)), **{f"bias_{c}": b for c, b in enumerate(last.T)}}),
        clusters=pd.DataFrame(),
        labels=probe.federation.truth.astype(np.int16)[None],
        triangles=np.array(triangles, dtype=np.float32),
        kept=places,
        provenance={**provenance(), "seconds": round(time.monotonic() - began, 1)},
    )


def _distances(models: Sequence[Weights], places: tuple[int, ...]) -> FloatArray:
    return minkowski_distances([flatten([model[place] for place in places]) for model in models])
