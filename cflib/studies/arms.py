"""Finished runs by arm, looked at client by client, and runs looked at state by state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from cflib.arrays import FloatArray
from cflib.experiment import Run, View
from cflib.grid import State
from cflib.records import Record
from cflib.rules import final
from cflib.runs import first_state, runtime_of
from cflib.server import serve
from cflib.studies.parts import seeds_there


def by_arm(records: Mapping[tuple[str, int], Record]) -> dict[str, list[Record]]:
    """Sort records named by arm and seed: of every arm with a seed 0, as many seeds as all these arms have.

    So a study of which only parts were run shows the arms that are there, over the same seeds.
    """
    arms = [arm for arm, seed in records if seed == 0]
    seeds = seeds_there(records, [(arm,) for arm in arms], most=len(records))
    return {arm: [records[arm, seed] for seed in range(seeds)] for arm in arms}


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
