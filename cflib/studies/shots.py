"""One-shot clustering told from one run that never clusters (paper 004): when, into what, and how it goes on.

Up to the shot every variant of OCFL trains as no clustering does, and after it equal partitions train alike. So one
watched run gives the round of every trigger and, from its matrices, the partition of every clusterer in any round; only
what differs in partition or round is trained, from the watched run's models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cflib import choices, methods, metrics
from cflib.arrays import FloatArray, IntArray
from cflib.choices import Arm
from cflib.experiment import Run
from cflib.grid import Method, State, own_cluster
from cflib.places import folder
from cflib.protocol import Job
from cflib.records import Record, Store
from cflib.runs import models_after
from cflib.simulation import Simulation
from cflib.studies.hindsight import regroup
from cflib.studies.tables import kept_table

Variant = Literal["kmeans", "affinity", "mean_shift", "hdbscan"]
OCFL: dict[str, Variant] = {
    "KM": "kmeans",
    "AFF": "affinity",
    "MS": "mean_shift",
    "HDB": "hdbscan",
}
"""OCFL's variants by the names of table I."""

SCORES = {"ari": "adjusted_rand", "ami": "adjusted_mutual_information", "homogeneity": "homogeneity"}
"""The columns of table I, and of a record's rounds."""


def watching(arm: Arm = "corrected") -> Method:
    """OCFL that measures the temperature and never clusters: the paper's baseline."""
    return replace(methods.ocfl(arm=arm), name="no clustering", cluster=None, when=None, give=own_cluster, once=False)


def shot_round(temperatures: ArrayLike, trigger: str = "first_rise") -> int | None:
    """Return the round, counted from 1, in which a trigger of ``methods.TRIGGERS`` fires; None if it never does.

    >>> shot_round([0.4353, 0.3323, 0.3938]), shot_round([0.3, 0.2]), shot_round([0.3, 0.2], "first_fall")
    (3, None, 2)
    """
    if trigger not in methods.TRIGGERS:
        raise ValueError(f"trigger is {trigger!r}, expected one of {sorted(methods.TRIGGERS)}")
    watched = tuple(float(value) for value in np.asarray(temperatures))
    nobody = State(0, (), np.zeros(0, dtype=np.int64), np.zeros((0, 0)), (), [])
    for round in range(1, len(watched) + 1):
        if methods.TRIGGERS[trigger](replace(nobody, round=round - 1, watched=watched[:round])):
            return round
    return None


def go_on(base: Run, labels: ArrayLike, round: int) -> Run:
    """Return the run that is clustered into ``labels`` in a round and then goes on to the end of ``base``.

    The round itself already combines by cluster, as OCFL's shot does. One cluster changes nothing: ``base`` itself.
    """
    found = np.asarray(labels)
    if (found == found[0]).all():
        return base
    method = replace(methods.oracle(found.tolist()), combine=base.method.combine)
    return replace(base, method=method, start=(base, round - 1) if round > 1 else None)


def entrants(
    base: Run,
    watched: Record,
    *,
    arm: Arm,
    late: int,
    sattler: Mapping[str, tuple[float, float]],
    briggs: Mapping[str, float],
) -> dict[str, Run]:
    """Return for every algorithm of table I the run that continues ``base``, whose record is ``watched``.

    ``sattler`` names pairs of thresholds and ``briggs`` single ones; Briggs clusters in round ``late``, and Sattler may
    split from the round after it. Those whose clusters are often alike come first: neighbours share work.
    """
    shot = shot_round(watched.rounds["watched"])
    found = partitions(watched, shot, arm=arm)
    runs = {"BNC": base, **{name: base if shot is None else go_on(base, found[name], shot) for name in found}}
    for name, threshold in briggs.items():
        runs[name] = go_on(base, choices.merged(watched.matrix(late), threshold=threshold, arm=arm), late)
    for name, (eps1, eps2) in sattler.items():
        method = methods.sattler(eps1=eps1, eps2=eps2, cooldown=late - 1, arm=arm)
        runs[name] = replace(base, method=method, start=(base, late))
    return runs


def partitions(watched: Record, round: int | None, *, arm: Arm = "corrected") -> dict[str, IntArray]:
    """Return what each of OCFL's variants makes of the matrix of a round; of none, a single cluster."""
    if round is None:
        return dict.fromkeys(OCFL, np.zeros(watched.labels.shape[1], dtype=np.int64))
    return {name: regroup(watched, _clusterer(how, arm), rounds=[round])[0] for name, how in OCFL.items()}


def hindsight_scores(
    watched: Record, truth: ArrayLike, *, arm: Arm = "corrected", variants: Sequence[str] = tuple(OCFL)
) -> pd.DataFrame:
    """Return the ARI that each variant would have had if it had clustered in a round: a row a round, from 1."""
    found = {name: regroup(watched, _clusterer(OCFL[name], arm)) for name in variants}
    scores = {name: [metrics.adjusted_rand(truth, row) for row in rows] for name, rows in found.items()}
    return pd.DataFrame(scores, index=pd.Index(watched.kept, name="round"))


def whole(before: Record, after: Record) -> pd.DataFrame:
    """Return the rounds of a run together with those of the run it continues."""
    first = after.rounds["round"].min()
    earlier = before.rounds[before.rounds["round"] < first]
    return pd.concat([earlier, after.rounds], ignore_index=True) if len(earlier) else after.rounds


def summarise(rounds: pd.DataFrame, *, first: int = 50, settled: bool = False) -> dict[str, float]:
    """Return a cell of table I and of figure 2: means over rounds, the scores over the ``first`` only (O-10).

    ``settled`` says that clusters once made stay: rounds up to ``first`` that were not run count as the last one.
    ``pf1`` and ``gf1`` are the means over clients and rounds of the F1 on own and on the server's test data, ``gap``
    their distance (eq. 5), ``shot`` the first round with more than one cluster (NaN: none).
    """
    early, divided = rounds[rounds["round"] <= first], rounds.loc[rounds["clusters"] > 1, "round"]
    missing = first - len(rounds) if settled and len(divided) else 0
    weights = np.append(np.ones(len(early) - 1), 1 + max(0, missing))
    pf1, gf1 = float(rounds["f1_received"].mean()), float(rounds["f1_general"].mean())
    return {
        **{name: float(np.average(early[column], weights=weights)) for name, column in SCORES.items()},
        "completeness": float(np.average(early["completeness"], weights=weights)),
        "ari_all": float(rounds["adjusted_rand"].mean()),
        "pf1": pf1,
        "gf1": gf1,
        "gap": metrics.learning_gap(pf1, gf1),
        "shot": float(divided.min()) if len(divided) else np.nan,
        "clusters": float(rounds["clusters"].iloc[-1]),
        "ari_final": float(rounds["adjusted_rand"].iloc[-1]),
    }


def published_table() -> pd.DataFrame:
    """Return table I of paper 004 by data set, number of clients, split and algorithm, e.g. "separate balanced"."""
    table = pd.read_csv(folder("reference", "CFLIB_REFERENCE") / "ocfl_table1.csv")
    overlap = table["overlap"].map({True: "overlapping", False: "separate"})
    split = overlap + " " + table["balance"].map({True: "balanced", False: "imbalanced"})
    return table.assign(split=split).set_index(["dataset", "clients", "split", "algorithm"])[list(SCORES)]


def temperature_shape(temperatures: ArrayLike) -> dict[str, bool]:
    """Tell whether a temperature drops at first, rises sharply, and is stable from round 20 (claim O18, 50 rounds)."""
    values = np.asarray(temperatures, dtype=np.float64)
    if len(values) < 21:
        raise ValueError(f"the series has {len(values)} rounds: stability from round 20 needs more, paper 004 has 50")
    low, last = int(values.argmin()), values[-1]
    half = values[low] + (last - values[low]) / 2
    return {
        "drops at first": bool(values[1] < values[0]),
        "rises sharply": bool(low + 1 < 20 and values[low : low + 11].max() >= half and last > values[low]),
        "stable from round 20": bool((np.abs(values[19:] - last) <= 0.05 * last).all()),
    }


def merge_scores(
    watched: Record, truth: ArrayLike, *, round: int, thresholds: Sequence[float], arm: Arm = "corrected"
) -> pd.DataFrame:
    """Return by threshold what Briggs's method makes of the matrix of a round: its number of clusters and ARI."""
    found = [choices.merged(watched.matrix(round), threshold=threshold, arm=arm) for threshold in thresholds]
    scores = [metrics.score_partition(truth, labels) for labels in found]
    rows = [{"clusters": score["clusters"], "ari": score["adjusted_rand"]} for score in scores]
    return pd.DataFrame(rows, index=pd.Index(thresholds, name="threshold"))


def best_threshold(scores: pd.DataFrame) -> float:
    """Return the threshold with the highest ARI of ``merge_scores``; of several, the one in the middle."""
    best = scores.index[scores["ari"] >= scores["ari"].max() - 1e-12]
    return float(best[len(best) // 2])


def update_norms(base: Run, round: int, *, store: Store | None = None) -> tuple[float, FloatArray]:
    """Return the norm of the mean update and of each client's ``(n,)``, trained from the models after a round.

    Kept like a record, since it trains.
    """

    def make() -> pd.DataFrame:
        models, labels = models_after(base, round, progress=False)
        runtime = Simulation(base.federation, base.network, base.training, seed=base.seed)
        try:
            replies = runtime.map([Job(i, round, "train", (models[label],)) for i, label in enumerate(labels)])
        finally:
            runtime.close()
        trainable = base.network.trainable
        updates = [choices.update(reply, models[labels[reply.client]], trainable) for reply in replies]
        mean = float(np.linalg.norm(np.mean(updates, axis=0, dtype=np.float64)))
        return pd.DataFrame({"norm": [float(np.linalg.norm(update)) for update in updates], "of the mean": mean})

    told = {"norms": base.specification, "round": round}
    table = kept_table(told, make, n_clients=base.federation.n_clients, store=store)
    return float(table["of the mean"].iloc[0]), table["norm"].to_numpy(dtype=np.float64)


def between(low: float, high: float, pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return thresholds for Sattler between the norm of the mean update and the largest norm, as shares of the way.

    The way is geometric: half of it from 1 to 4 is 2.

    >>> between(1.0, 4.0, [(0.5, 1.0)])
    [(2.0, 4.0)]
    """
    if not 0 < low <= high:
        raise ValueError(f"the norms are {low} and {high}: expected a mean above 0 and a largest one not below it")
    return [(low * (high / low) ** first, low * (high / low) ** second) for first, second in pairs]


def _clusterer(how: Variant, arm: Arm) -> Callable[[FloatArray], IntArray]:
    cluster = methods.ocfl(how, arm=arm).cluster
    assert cluster is not None
    return cluster
