"""Finished runs by arm, looked at client by client, and runs looked at state by state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cflib.arrays import FloatArray, IntArray, Weights
from cflib.drive import first_state, runtime_of
from cflib.experiment import Run, View
from cflib.grid import State
from cflib.planning import plan, received
from cflib.recall import fingerprint
from cflib.records import TABLES, Record
from cflib.rules import final
from cflib.server import generic_model, serve
from cflib.studies.parts import seeds_there
from cflib.training import Trainer

TASKS = ("none", "train", "describe", "flagged")
"""What a client does in a round, at the places that a chronicle gives."""
ARRAYS = ("labels", "triangles", "kept")  # of a record, by round


def by_arm(records: Mapping[tuple[str, int], Record]) -> dict[str, list[Record]]:
    """Sort records named by arm and seed: of every arm with a seed 0, as many seeds as all these arms have.

    So a study of which only parts were run shows the arms that are there, over the same seeds.
    """
    arms = [arm for arm, seed in records if seed == 0]
    seeds = seeds_there(records, [(arm,) for arm in arms], most=len(records))
    return {arm: [records[arm, seed] for seed in range(seeds)] for arm in arms}


def prolonged(first: Record, rest: Record) -> Record:
    """Return a run and the one that goes on after its last round as one record.

    Raises ``ValueError`` if the rounds of the two do not meet.
    """
    end, begin = int(first.rounds["round"].max()), int(rest.rounds["round"].min())
    if begin != end + 1:
        raise ValueError(f"the first run ends with round {end}, the other begins with {begin}: take one that goes on")
    both: dict[str, Any] = {name: np.concatenate([getattr(first, name), getattr(rest, name)]) for name in ARRAYS}
    both |= {name: pd.concat([getattr(one, name) for one in (first, rest)], ignore_index=True) for name in TABLES}
    return replace(rest, **both)


def client_accuracies(record: Record, view: View = "received") -> FloatArray:
    """Return the accuracy of every client on its own test data in every round measured ``(rounds, n)``."""
    found: FloatArray = by_round(record.clients, f"accuracy_{view}").astype(np.float64)
    return found


def by_round(table: pd.DataFrame, column: str) -> NDArray[Any]:
    """Return a column of a table that has a row a round and client as ``(rounds, n)``."""
    wide = table.pivot(index="round", columns="client", values=column)  # noqa: PD010 (pivot_table takes means)
    return wide.to_numpy()


def cluster_accuracies(record: Record) -> FloatArray:
    """Return the final accuracy of each cluster ``(k,)``, mean over its clients on their own test data."""
    accuracy, labels = final(client_accuracies(record).T), record.labels[-1]
    return np.array([accuracy[labels == cluster].mean() for cluster in np.unique(labels[labels >= 0])])


def cost_of_parting(together: Record, parted: Record) -> dict[str, Any]:
    """Return what clients lose by training in clusters: over all of them, and over those not alone in theirs."""
    labels = parted.labels[-1]
    sizes, lost = np.bincount(labels), final(client_accuracies(together).T) - final(client_accuracies(parted).T)
    return {"sizes": sizes.tolist(), "cost": lost.mean(), "cost to clients not alone": lost[sizes[labels] > 1].mean()}


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


def chronicle(spec: Run, history: Sequence[State]) -> pd.DataFrame:
    """Tell a run from all its states as numbers: a row a round (counted from 1) and client.

    After the round, the ``cluster`` of the client (-1: none), whether that has ``stopped``, and how many ``clusters``
    there are; in the round, whether the client was ``there``, and its ``task``, a place in ``TASKS``. Models are
    numbers, equal for equal bits: the one ``sent`` for the task, the ``model`` of the client's cluster after the round
    (0: there is none), and the one it has ``received`` then.
    """
    rows = []
    for before, after in pairwise(history):
        there = spec.attendance.present(len(after.labels), before.round)
        jobs = {job.client: job for job in plan(spec.method, before, there, seed=spec.seed, schedule=spec.schedule)}
        models = [_number(model) for model in after.models]
        for client, label in enumerate(after.labels.tolist()):
            job = jobs.get(client)
            task = "flagged" if client in after.flagged else "none" if job is None else job.task
            row = {"round": after.round, "client": client, "cluster": label, "clusters": len(models)}
            row |= {"there": client in there, "task": TASKS.index(task), "stopped": label in after.stopped}
            row |= {"sent": 0 if job is None else _number(job.models[0]), "model": models[label] if label >= 0 else 0}
            rows.append(row | {"received": _number(received(after.models, after.shares[client])[0])})
    return pd.DataFrame(rows)


def generic_accuracies(
    state: State, engine: Trainer, tests: Mapping[tuple[int, ...], tuple[IntArray, IntArray]]
) -> pd.DataFrame:
    """Return, for each choice of clusters, the accuracy on its images of their generic model and of the best single."""
    rows = []
    for chosen, test in tests.items():
        alone = [engine.evaluate(state.models[cluster], *test).accuracy for cluster in chosen]
        together = engine.evaluate(generic_model(state.models, state.labels, chosen), *test).accuracy
        rows.append({"generic model": together, "best single": max(alone)})
    return pd.DataFrame(rows)


def _number(model: Weights) -> int:
    return int.from_bytes(fingerprint(model)[:8], "little", signed=True)
