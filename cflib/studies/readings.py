"""One trajectory, several readings of the trusted distance (paper 000, eq. 2): whose norm, over which arrays.

The distance divides by the norms of one client's layers, so d(i, j) and d(j, i) differ (L-2), and the paper does not
say whether the statistics of batch normalisation are layers (L-14). Would another reading have found other communities
among the very same models? And would another exponent than the cube, among the very same distances (L33)?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cflib import choices
from cflib.arrays import FloatArray, IntArray, Weights
from cflib.distances import cross_trusted_distances, to_similarity, trusted_distances
from cflib.experiment import Run
from cflib.metrics import adjusted_rand
from cflib.records import Store
from cflib.rules import final
from cflib.studies.arms import follow
from cflib.studies.tables import kept_table


def read_distances(models: Sequence[Weights], trainable: Sequence[bool]) -> dict[str, FloatArray]:
    """Return the symmetric distances ``(n, n)`` of each reading, that of the authors' code first."""
    full = cross_trusted_distances(models, models)
    found = {"lower number": _mirrored(full), "higher number": _mirrored(full.T)}
    if not all(trainable):
        learned = [[a for a, used in zip(model, trainable, strict=True) if used] for model in models]
        found["no statistics"] = trusted_distances(learned)
    return {**found, "kernels alone": trusted_distances(models, arrays="kernels")}


def compare_readings(
    models: Sequence[Weights],
    trainable: Sequence[bool],
    cluster: Callable[[FloatArray], IntArray],
    truth: ArrayLike,
) -> dict[str, float]:
    """Return what readings find in the same models: the ARI of communities with the truth and with the first ones.

    And the gap between d(i, j) and d(j, i): the largest, and the largest share of the mean of the two.
    """
    found = read_distances(models, trainable)
    one, other = (found[name][np.triu_indices(len(models), 1)] for name in ("lower number", "higher number"))
    gaps = np.abs(one - other)
    row = {"largest gap": float(gaps.max()), "relative gap": float((gaps / ((one + other) / 2)).max())}
    labels = {name: cluster(distances) for name, distances in found.items()}
    row |= {f"ARI: {name}": adjusted_rand(truth, communities) for name, communities in labels.items()}
    others = list(labels)[1:]
    return row | {f"agrees: {name}": adjusted_rand(labels["lower number"], labels[name]) for name in others}


def readings(spec: Run, *, store: Store | None = None, compute: bool = True) -> pd.DataFrame:
    """Return a row a round of what ``compare_readings`` finds in a run; kept like a record, since it trains.

    Without ``compute`` the table is empty unless it is kept already.
    """
    assert spec.method.cluster is not None
    trainable, cluster, truth = spec.network.trainable, spec.method.cluster, spec.federation.truth

    def make() -> pd.DataFrame:
        rows = []
        for state in follow(spec):
            if state.round:
                models = [state.memory[client].description for client in state.known]
                row = compare_readings(models, trainable, cluster, truth[state.known])
                rows.append({"round": state.round, **row})
        return pd.DataFrame(rows)

    told = {"readings": spec.specification}
    return kept_table(told, make, n_clients=spec.federation.n_clients, store=store, compute=compute)


def compare_exponents(
    matrices: Sequence[FloatArray], truth: ArrayLike, exponents: Sequence[float], *, usual: float = 3
) -> pd.DataFrame:
    """Return a row an exponent of what it makes of a run's distances ``(n, n)``, given in the order of rounds.

    Contrast (mean similarity within true groups minus that between them), mean similarity and ARI of the communities
    are final; the last column counts the rounds whose communities differ from those of the ``usual`` exponent.
    """
    groups = np.asarray(truth)
    pairs = np.triu_indices(len(groups), 1)
    within = (groups[:, None] == groups)[pairs]
    familiar = [choices.communities(distances, power=usual) for distances in matrices]
    rows = []
    for power in exponents:
        values = np.array([to_similarity(distances, power=power)[pairs] for distances in matrices])
        labels = [choices.communities(distances, power=power) for distances in matrices]
        scores = {
            "contrast": values[:, within].mean(axis=1) - values[:, ~within].mean(axis=1),
            "mean similarity": values.mean(axis=1),
            "ARI": [adjusted_rand(groups, found) for found in labels],
        }
        others = sum(not np.array_equal(*both) for both in zip(labels, familiar, strict=True))
        rows.append({"exponent": power, **{name: float(final(score)) for name, score in scores.items()}})
        rows[-1]["rounds with other communities"] = others
    return pd.DataFrame(rows)


def _mirrored(distances: FloatArray) -> FloatArray:
    upper = np.triu(distances, 1)
    return upper + upper.T
