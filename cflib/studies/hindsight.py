"""What can be told of a run without training: who reports when, and what another clustering would have found.

Who is drawn depends on the seed and the round alone, and a record keeps its matrices; so the age of every stored update
and the partition of any round, clusterer or selection of clients follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from cflib import metrics
from cflib.arrays import FloatArray, IntArray, renumber
from cflib.methods import fedavg
from cflib.planning import plan
from cflib.protocol import Schedule
from cflib.records import Record
from cflib.server import start

BoolArray = NDArray[np.bool_]


def reports(n_clients: int, *, rounds: int, seed: int, schedule: Schedule) -> BoolArray:
    """Return who reports in each round ``(rounds, n)`` while all clients are one cluster: drawn as the server draws.

    >>> reports(10, rounds=2, seed=0, schedule=Schedule(share=0.3)).sum(axis=1)
    array([3, 3])
    """
    method, everyone = fedavg(), np.arange(n_clients)
    opening = start(method, n_clients, lambda _: [np.zeros(1)])
    drawn = np.zeros((rounds, n_clients), dtype=bool)
    for number in range(rounds):
        jobs = plan(method, replace(opening, round=number), everyone, seed=seed, schedule=schedule)
        drawn[number, [job.client for job in jobs]] = True
    return drawn


def latest_reports(drawn: ArrayLike) -> IntArray:
    """Return after each round the round (from 1) of every client's last report ``(rounds, n)``; 0 before the first.

    >>> latest_reports([[True, False], [False, False], [False, True]])
    array([[1, 0], [1, 0], [1, 3]])
    """
    told = np.asarray(drawn, dtype=bool)
    latest: IntArray = np.maximum.accumulate(np.where(told, np.arange(1, len(told) + 1)[:, None], 0), axis=0)
    return latest


def regroup(
    record: Record,
    cluster: Callable[[FloatArray], IntArray],
    *,
    rounds: Sequence[int] | None = None,
    keep: ArrayLike | None = None,
) -> IntArray:
    """Cluster the matrices of a record again: labels ``(rounds, n)``, -1 for a client not seen yet.

    ``rounds`` (from 1) are all whose matrices were kept unless named. ``keep`` ``(rounds, n)`` says which clients may
    take part; the others get -1 as well, and so does everyone in a round in which nobody is left.
    """
    chosen = record.kept.tolist() if rounds is None else list(rounds)
    n = record.labels.shape[1]
    allowed = np.ones((len(chosen), n), dtype=bool) if keep is None else np.asarray(keep, dtype=bool)
    if allowed.shape != (len(chosen), n):
        raise ValueError(f"keep has shape {allowed.shape}, there are {len(chosen)} rounds of {n} clients")
    labels = np.full((len(chosen), n), -1, dtype=np.int64)
    for row, (number, wanted) in enumerate(zip(chosen, allowed, strict=True)):
        matrix = record.matrix(number)
        there = np.flatnonzero(wanted & ~np.isnan(np.diagonal(matrix)))
        if there.size:
            labels[row, there] = cluster(matrix[np.ix_(there, there)])
    return labels


def compare_groups(truth: ArrayLike, labels: ArrayLike) -> pd.DataFrame:
    """Return a row for each row of labels ``(rounds, n)``: how far its clusters are the true groups.

    ``purity`` is paper 003's (clients in a cluster of one group only), ``majority_purity`` the textbook's; a row is
    ``correct`` if the clusters of the clients that have one are exactly the true groups. ``allotted`` is their share.
    """
    groups, rows = np.asarray(truth), []
    for found in np.atleast_2d(np.asarray(labels)):
        there = np.flatnonzero(found >= 0)
        row = {"clusters": 0.0, "purity": np.nan, "majority_purity": np.nan, "correct": False}
        if there.size:
            names = renumber(found[there])
            row = {
                "clusters": float(names.max() + 1),
                "purity": metrics.purity(groups[there], names),
                "majority_purity": metrics.majority_purity(groups[there], names),
                "correct": bool(np.array_equal(renumber(groups[there]), names)),
            }
        rows.append({**row, "allotted": there.size / groups.size})
    return pd.DataFrame(rows)
