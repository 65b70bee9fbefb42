"""Sattler's and Briggs' methods tried fairly (paper 004): thresholds chosen on a held-out run, not taken over.

Their thresholds are absolute: norms of one network's updates, distances of one training length. What suits is told by
a run that is not judged afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cflib import choices, metrics
from cflib.arrays import FloatArray
from cflib.choices import Arm
from cflib.experiment import Run
from cflib.protocol import Job
from cflib.recall import Recall
from cflib.records import Record, Store
from cflib.runs import gather, models_after
from cflib.simulation import Simulation
from cflib.studies.shots import split_later, summarise, together, whole
from cflib.studies.tables import kept_table

GRID = tuple(product((-0.25, 0.25), (0.5, 0.75, 0.9)))
"""Pairs tried for Sattler's e1 and e2, as shares of the way that ``between`` goes.

With e1 below the norm of the mean update a split waits until that norm has fallen; above it, e1 never holds one back.
The higher e2, the sooner splitting ends; at 1, the largest norm of all clients when splits begin, none would.
"""


def merge_scores(
    watched: Record, truth: ArrayLike, *, round: int, thresholds: Sequence[float], arm: Arm = "corrected"
) -> pd.DataFrame:
    """Return by threshold what Briggs's method makes of the matrix of a round: its number of clusters and ARI."""
    found = [choices.merged(watched.matrix(round), threshold=threshold, arm=arm) for threshold in thresholds]
    scores = [metrics.score_partition(truth, together(labels)) for labels in found]
    rows = [{"clusters": score["clusters"], "ari": score["adjusted_rand"]} for score in scores]
    return pd.DataFrame(rows, index=pd.Index(thresholds, name="threshold"))


def best_threshold(scores: pd.DataFrame) -> float:
    """Return the threshold with the highest ARI of ``merge_scores``; of several, the one in the middle."""
    best = scores.index[scores["ari"] >= scores["ari"].max() - 1e-12]
    return float(best[len(best) // 2])


def try_pairs(
    held: Run,
    watched: Record,
    *,
    arm: Arm,
    late: int,
    store: Store | None = None,
    compute: bool = True,
    recall: Recall | None = None,
) -> pd.DataFrame:
    """Return what Sattler's method scores on a held-out run with every pair of ``GRID``, and which pair is kept.

    Columns ``e1``, ``e2``, ``ari`` (mean over the rounds) and ``kept``: the highest ARI, of several the first. Empty
    if some of it was not run yet and may not be computed. With the ``recall`` of the held-out run, rounds without a
    split are not trained again.
    """
    norms = update_norms(held, late, store=store, compute=compute)
    if norms is None:
        return pd.DataFrame()
    pairs = between(norms[0], float(norms[1].max()), GRID)
    runs = {pair: split_later(held, *pair, cooldown=late - 1, arm=arm) for pair in pairs}
    found = gather(runs, store=store, compute=lambda _: compute, recall=recall)
    if len(found) < len(pairs):
        return pd.DataFrame()
    truth = held.federation.truth
    rows = [(*pair, summarise(whole(watched, record, truth))["ari"]) for pair, record in found.items()]
    table = pd.DataFrame(rows, columns=["e1", "e2", "ari"])
    return table.assign(kept=table.index == int(table["ari"].argmax()))


def update_norms(
    base: Run, round: int, *, store: Store | None = None, compute: bool = True
) -> tuple[float, FloatArray] | None:
    """Return the norm of the mean update and of each client's ``(n,)``, trained from the models after a round.

    Updates are described as the run's method does, so that normalisation statistics count where they do there. Kept
    like a record, since it trains; None if it is not there and may not be computed.
    """

    def make() -> pd.DataFrame:
        models, labels = models_after(base, round, progress=False)
        runtime = Simulation(base.federation, base.network, base.training, seed=base.seed)
        try:
            replies = runtime.map([Job(i, round, "train", (models[label],)) for i, label in enumerate(labels)])
        finally:
            runtime.close()
        describe, trainable = base.method.describe or choices.update, base.network.trainable
        updates = [describe(reply, models[labels[reply.client]], trainable) for reply in replies]
        mean = float(np.linalg.norm(np.mean(updates, axis=0, dtype=np.float64)))
        return pd.DataFrame({"norm": [float(np.linalg.norm(update)) for update in updates], "of the mean": mean})

    told = {"norms": base.specification, "round": round}
    table = kept_table(told, make, n_clients=base.federation.n_clients, store=store, compute=compute)
    if table.empty:
        return None
    return float(table["of the mean"].iloc[0]), table["norm"].to_numpy(dtype=np.float64)


def between(low: float, high: float, pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return thresholds for Sattler as shares of the way from the norm of the mean update to the largest norm.

    The way is geometric: half of it from 1 to 4 is 2, and a negative share goes as far below the norm of the mean.

    >>> between(1.0, 4.0, [(-0.5, 1.0)])
    [(0.5, 4.0)]
    """
    if not 0 < low <= high:
        raise ValueError(f"the norms are {low} and {high}: expected a mean above 0 and a largest one not below it")
    return [(low * (high / low) ** first, low * (high / low) ** second) for first, second in pairs]
