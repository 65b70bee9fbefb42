"""The radius of DBSCAN: for which eps it finds the true groups, and the one that serves several scenarios at once.

With two samples a cluster, as in paper 002, DBSCAN joins what a chain of steps of at most eps connects, so that its
partition changes only where eps passes a distance between two clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import FloatArray, IntArray, check_vectors
from cflib.clustering import Vectors, dbscan
from cflib.metrics import adjusted_rand

Scenario = tuple[Vectors, ArrayLike]
"""The vectors of the clients ``(n, p)`` and their true groups ``(n,)``."""


def true_interval(vectors: Vectors, truth: ArrayLike) -> tuple[float, float]:
    """Return the eps from which DBSCAN finds the true groups and the eps at which it stops; none if low >= high.

    It starts with the longest step that is needed to connect a group and ends with the nearest clients of two groups,
    at infinity if there is one group.

    >>> true_interval([[0.0], [1.0], [3.0], [9.0], [10.0]], [0, 0, 0, 1, 1])
    (2.0, 6.0)
    """
    rows, groups = _checked(vectors, truth)
    from scipy.cluster.hierarchy import linkage

    inside = [rows[groups == g] for g in np.unique(groups)]
    low = max(float(linkage(part, "single")[:, 2].max()) if len(part) > 1 else 0.0 for part in inside)
    apart = groups[:, None] != groups
    return low, float(_distances(rows)[apart].min()) if apart.any() else np.inf


def radius_scores(vectors: Vectors, truth: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return ascending edges ``(m + 1,)`` and the ARI of DBSCAN ``(m,)`` for eps between each two; the last is open."""
    rows, groups = _checked(vectors, truth)
    found = _distances(rows)
    edges = np.unique(np.concatenate([[0.0], found.ravel()]))
    edges = np.append(edges, 2 * edges[-1] or 1.0)
    middles = (edges[1:] + edges[:-1]) / 2
    return edges, np.array([adjusted_rand(groups, dbscan(rows, eps=float(eps))) for eps in middles])


def best_interval(scenarios: Sequence[Scenario]) -> tuple[float, float, float]:
    """Return the longest stretch of eps with the highest mean ARI over all scenarios, and that ARI.

    >>> best_interval([([[0.0], [1.0]], [0, 0]), ([[0.0], [1.0], [5.0], [6.0]], [0, 0, 1, 1])])
    (1.0, 4.0, 1.0)
    """
    if not scenarios:
        raise ValueError("no scenarios were given: pass pairs of vectors and true groups")
    steps = [radius_scores(vectors, truth) for vectors, truth in scenarios]
    edges = np.unique(np.concatenate([own for own, _ in steps]))
    middles = (edges[1:] + edges[:-1]) / 2
    scores = np.mean([_lookup(middles, own, values) for own, values in steps], axis=0)
    best = np.concatenate([[False], scores >= scores.max() - 1e-9, [False]])
    starts, ends = np.flatnonzero(best[1:] & ~best[:-1]), np.flatnonzero(~best[1:] & best[:-1])
    longest = int(np.argmax(edges[ends] - edges[starts]))
    return float(edges[starts[longest]]), float(edges[ends[longest]]), float(scores.max())


def _lookup(eps: FloatArray, edges: FloatArray, scores: FloatArray) -> FloatArray:
    places = np.searchsorted(edges, eps, side="right") - 1
    found: FloatArray = scores[np.clip(places, 0, len(scores) - 1)]
    return found


def _distances(rows: FloatArray) -> FloatArray:
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(rows, rows))


def _checked(vectors: Vectors, truth: ArrayLike) -> tuple[FloatArray, IntArray]:
    rows, groups = np.asarray(check_vectors(vectors), dtype=np.float64), np.asarray(truth)
    if groups.shape != (len(rows),):
        raise ValueError(f"truth has shape {groups.shape} for {len(rows)} clients: pass one group a client")
    return rows, groups
