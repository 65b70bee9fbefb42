"""Whom the server asks for what: the jobs of a round, and the model that a client gets."""

from __future__ import annotations

import numpy as np

from cflib import aggregation
from cflib.arrays import FloatArray, IntArray, Weights
from cflib.grid import Method, State
from cflib.protocol import Choice, Job, Schedule

SAMPLING = 101  # marks the stream of random numbers that draws clients, apart from those that train them


def plan(method: Method, state: State, present: IntArray, *, seed: int, schedule: Schedule) -> list[Job]:
    """Return the jobs of the round: who trains, from which model; newcomers are asked to describe themselves."""
    if method.probe and state.clustered is None:
        return [Job(int(i), state.round, "describe", (state.probe,)) for i in present]
    newcomers = np.zeros(len(state.labels), dtype=bool)
    if method.admit is not None and state.clustered is not None:
        newcomers = (state.labels < 0) & ~np.isin(np.arange(len(state.labels)), sorted(state.flagged))
    idle = np.isin(state.labels, sorted(state.stopped)) | np.isin(np.arange(len(state.labels)), sorted(state.flagged))
    if method.once and state.clustered is not None and len(state.models) > 1:
        # A client without a cluster that has nothing to choose between yet would train for nobody.
        idle |= (state.labels < 0) & ~np.isnan(state.shares).any(axis=1)
    chosen = _sample(present[~idle[present] & ~newcomers[present]], state, seed=seed, schedule=schedule)
    jobs = [Job(int(i), state.round, "describe", (state.probe,)) for i in present[newcomers[present]]]
    mixed: dict[bytes, tuple[Weights, ...]] = {}
    for client in chosen:
        models = received(state.models, state.shares[client], mixed)
        settings = schedule.settings.get(int(state.labels[client]), {}) if len(state.models) > 1 else {}
        choose: Choice = method.choose if len(models) > 1 else "only"
        jobs.append(Job(int(client), state.round, "train", models, choose, settings))
    return sorted(jobs, key=lambda job: job.client)


def received(
    models: tuple[Weights, ...], row: FloatArray, mixed: dict[bytes, tuple[Weights, ...]] | None = None
) -> tuple[Weights, ...]:
    """Return the model that a client's row of shares gives it, or all of them if it chooses for itself.

    Calls that hand on one ``mixed`` get the same objects for equal rows, mixed once.
    """
    mixed, name = {} if mixed is None else mixed, row.tobytes()
    if name not in mixed:
        mixed[name] = models if np.isnan(row).any() else (aggregation.mix(models, row),)
    return mixed[name]


def _sample(candidates: IntArray, state: State, *, seed: int, schedule: Schedule) -> IntArray:
    rng = np.random.default_rng((seed, state.round, 0, SAMPLING))
    if schedule.per == "federation":
        groups = [(candidates, len(state.labels))]
    else:
        labels = state.labels[candidates]
        groups = [(candidates[labels == c], int((state.labels == c).sum())) for c in np.unique(labels)]
    drawn = [
        group if schedule.share == 1 else rng.choice(group, min(len(group), schedule.count(size)), False)
        for group, size in groups
        if len(group)
    ]
    return np.sort(np.concatenate(drawn)) if drawn else candidates[:0]
