"""Runs asked for together, by arm, and looked at client by client and state by state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cflib.arrays import FloatArray
from cflib.experiment import Run, View
from cflib.grid import State
from cflib.records import Record, Store
from cflib.rules import final
from cflib.runs import first_state, run_all, runtime_of
from cflib.server import serve


def run_arms(
    arms: Mapping[str, Sequence[Run]], *, store: Store, compute: bool = True, progress: bool = True
) -> dict[str, list[Record]]:
    """Return the records of several arms by name; without ``compute`` only if all are kept, else nothing.

    So a notebook that runs one part of a long study shows the other parts as far as they were run before.
    """
    specs = [spec for runs in arms.values() for spec in runs]
    if compute:
        records = iter(run_all(specs, store=store, progress=progress))
    else:
        kept = [record for spec in specs if (record := store.read(spec.key)) is not None]
        if len(kept) < len(specs):
            return {}
        records = iter(kept)
    return {name: [next(records) for _ in runs] for name, runs in arms.items()}


def client_accuracies(record: Record, view: View = "received") -> FloatArray:
    """Return the accuracy of every client on its own test data in every round measured ``(rounds, n)``."""
    table = record.clients.pivot(index="round", columns="client", values=f"accuracy_{view}")
    found: FloatArray = table.to_numpy(dtype=np.float64)
    return found


def cluster_accuracies(record: Record) -> FloatArray:
    """Return the final accuracy of each cluster ``(k,)``, mean over its clients on their own test data."""
    accuracy, labels = final(client_accuracies(record).T), record.labels[-1]
    return np.array([accuracy[labels == cluster].mean() for cluster in np.unique(labels[labels >= 0])])


def states(spec: Run, *, workers: int | None = None) -> list[State]:
    """Return every state of a run, the first one included; nothing is kept on disk, so use it for small runs."""
    return list(follow(spec, workers=workers))


def follow(spec: Run, *, workers: int | None = None) -> Iterator[State]:
    """Yield the state before the first round of a run, and the one after each; nothing is kept on disk.

    Raises ``ValueError`` for a run that goes on from another.
    """
    if spec.start is not None:
        raise ValueError(f"{spec.method.name} goes on from another run: follow one that starts from nothing")
    runtime = runtime_of(spec, workers=workers)
    try:
        yield (first := first_state(spec))
        yield from serve(spec.method, runtime, first, rounds=spec.rounds, seed=spec.seed, schedule=spec.schedule)
    finally:
        runtime.close()
