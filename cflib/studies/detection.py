"""Defences against poisoning as detectors: whom each sets apart, given what every client sends in one round.

FLIC's clusters carry no names; here a cluster is held against the truth, as paper 003 does, and set apart if most of
its clients attack. Krum and the trimmed mean are told how many attack and set apart that many: the outliers that they
rank highest. So either kind gets its best case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from cflib import aggregation, clustering, metrics
from cflib.arrays import FloatArray, IntArray, Weights, check_labels, flatten, subtract
from cflib.client import ATTACK, Attack, call
from cflib.distances import shifted_cosine
from cflib.experiment import Measures, Run
from cflib.keys import canonical
from cflib.protocol import Job
from cflib.records import Store
from cflib.runs import models_after
from cflib.simulation import Simulation
from cflib.studies.tables import kept_table

BoolArray = NDArray[np.bool_]
DEFENCES = ("FLIC", "FLIC without loops", "Krum", "trimmed mean")


def census(spec: Run, model: Weights, *, round: int, workers: int | None = None) -> FloatArray:
    """Return the updates ``(n, p)`` that all clients send if the model reaches everyone in this round (from 1)."""
    jobs = [Job(client, round - 1, "train", (model,)) for client in range(spec.federation.n_clients)]
    runtime = Simulation(
        spec.federation, spec.network, spec.training, seed=spec.seed, attack=spec.attack, workers=workers
    )
    try:
        return np.stack([flatten(subtract(reply.arrays, model)) for reply in runtime.map(jobs)])
    finally:
        runtime.close()


def poison(updates: FloatArray, attack: Attack, *, seed: int = 0) -> FloatArray:
    """Return the updates ``(n, p)`` with those of the attackers replaced, clients holding equally many samples.

    Poisoned labels act before training and cannot be put in afterwards: take a ``census`` of the attacked run instead.
    """
    if attack.labels is not None:
        raise ValueError("an attack on labels acts before training: take a census of a run with this attack")
    attackers, sent = np.array(attack.clients, dtype=np.int64), updates.copy()
    if not attackers.size:
        return sent
    if attack.update is not None:
        for client in attackers:
            rng = np.random.default_rng((seed, 0, client, ATTACK))
            sent[client] = call(attack.update, updates[client], rng=rng)
        return sent
    honest = np.delete(updates, attackers, axis=0)
    assert attack.collude is not None
    sent[attackers] = call(attack.collude, updates=honest, weights=np.array([1.0] * len(honest) + [len(attackers)]))
    return sent


def set_apart(labels: ArrayLike, attackers: ArrayLike) -> BoolArray:
    """Return who is in a cluster in which attackers (a mask) are the majority; label -1 is nobody's cluster.

    >>> set_apart([0, 0, 0, 1, 1, -1], [True, True, False, False, True, True])
    array([ True,  True,  True, False, False, False])
    """
    clusters, culprits = check_labels(labels, noise=True), np.asarray(attackers, dtype=bool)
    shares = [culprits[clusters == cluster].mean() for cluster in range(clusters.max() + 1)]
    apart: BoolArray = (clusters >= 0) & (np.array([*shares, 0.0])[clusters] > 0.5)
    return apart


def loyal_clients(labels: ArrayLike, attackers: ArrayLike) -> IntArray:
    """Return the ids of the clients in clusters without attackers (a mask), as paper 003 counts them.

    Where no cluster is free of attackers: of all loyal clients that have a cluster, as those were to be saved.

    >>> loyal_clients([0, 0, 1, 1, -1], [False, False, True, False, False])
    array([0, 1])
    """
    clusters, culprits = check_labels(labels, noise=True), np.asarray(attackers, dtype=bool)
    spoilt = np.isin(clusters, clusters[culprits]) | (clusters < 0)
    return np.flatnonzero(~spoilt) if not spoilt.all() else np.flatnonzero(~culprits & (clusters >= 0))


def separation(labels: ArrayLike, attackers: ArrayLike) -> dict[str, float]:
    """Return how a partition parts attackers (a mask) from loyal clients: table 2 of paper 003, and as detection.

    Clients with label -1 are left out. ``clients in one`` is the mean size of a cluster without attackers.

    >>> separation([0, 0, 1, 1], [False, False, True, True])["loyal clusters"]
    1.0
    """
    clusters, culprits = check_labels(labels, noise=True), np.asarray(attackers, dtype=bool)
    seen = clusters >= 0
    pure = [c for c in range(clusters.max() + 1) if not culprits[clusters == c].any()]
    precision, recall = metrics.detection(set_apart(clusters, culprits)[seen], culprits[seen])
    return {
        "clusters": float(clusters.max() + 1),
        "purity": metrics.purity(culprits[seen].astype(np.int64), clusters[seen]),
        "precision": precision,
        "recall": recall,
        "loyal clusters": float(len(pure)),
        "clients in one": float(np.mean([(clusters == c).sum() for c in pure])) if pure else 0.0,
    }


def detect(updates: FloatArray, attackers: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return by defence whom it sets apart among clients that send ``updates`` ``(n, p)``: ``precision``, ``recall``.

    ``clusters`` is how many FLIC forms, NaN for the others. Krum is missing where it is not defined, with half of the
    clients or more attacking.
    """
    n, count = len(updates), len(attackers)
    culprits = np.isin(np.arange(n), list(attackers))
    similarities, models = shifted_cosine(updates), [[row] for row in updates]
    found: dict[str, tuple[BoolArray, float]] = {}
    for name, loops in (("FLIC", True), ("FLIC without loops", False)):
        labels = clustering.louvain(similarities, self_loops=loops)
        found[name] = set_apart(labels, culprits), float(labels.max() + 1)
    if n >= 2 * count + 3:
        found["Krum"] = _highest(aggregation.krum_scores(models, attackers=count), count), np.nan
    trimmed = aggregation.trimmed_shares(models, share=min(count / n, 0.499))
    found["trimmed mean"] = _highest(trimmed, count), np.nan
    scores = {name: metrics.detection(apart, culprits) for name, (apart, _) in found.items()}
    return {
        name: {"precision": precision, "recall": recall, "clusters": found[name][1]}
        for name, (precision, recall) in scores.items()
    }


def compare_defences(
    spec: Run,
    round: int,
    attackers: Mapping[int, Sequence[int]],
    kinds: Mapping[str, Mapping[str, Any]],
    *,
    store: Store | None = None,
    workers: int | None = None,
    compute: bool = True,
) -> pd.DataFrame:
    """Return a row for each percentage of ``attackers``, attack and defence: what ``detect`` finds after a round.

    All clients train once from the common model that the run has after the round (from 1), and the attackers replace
    what they send. ``attackers`` are client ids by percentage, ``kinds`` the settings of an ``Attack`` by name. Kept
    like a record, since it trains; without ``compute`` the table is empty unless it is kept already.
    """
    names, everyone = sorted(kinds), tuple(range(spec.federation.n_clients))

    def make() -> pd.DataFrame:
        (model,), _ = models_after(spec, round, store=store, workers=workers)

        def train(attack: Attack | None) -> FloatArray:
            return census(replace(spec, attack=attack), model, round=round + 1, workers=workers)

        honest, rows = train(None), []
        for place, name in enumerate(names):
            all_poisoned = train(Attack(everyone, **kinds[name])) if "labels" in kinds[name] else None
            for percentage, bad in attackers.items():
                if all_poisoned is None:
                    sent = poison(honest, Attack(tuple(bad), **kinds[name]), seed=spec.seed)
                else:
                    sent = np.where(np.isin(everyone, list(bad))[:, None], all_poisoned, honest)
                for defence, scores in detect(sent, bad).items():
                    which = {"attackers": percentage, "attack": place, "defence": DEFENCES.index(defence)}
                    rows.append({**which, **scores})
        return pd.DataFrame(rows)

    prefix = replace(spec, rounds=round, measures=Measures()).specification
    told = canonical({"defences": prefix, "attackers": {k: list(v) for k, v in attackers.items()}, "attacks": kinds})
    table = kept_table(told, make, n_clients=len(everyone), store=store, compute=compute)
    if table.empty:
        return table
    return table.assign(attack=np.array(names)[table["attack"]], defence=np.array(DEFENCES)[table["defence"]])


def _highest(scores: FloatArray, count: int) -> BoolArray:
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen
