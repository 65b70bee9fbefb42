"""Clustering: a matrix ``(n, n)`` or vectors ``(n, p)`` to one label a client.

Labels are int64, 0..k-1, numbered in the order in which clients first meet them, so that equal partitions are equal
arrays. Clients that a density method leaves out (noise) follow ``noise``: "own" makes each a cluster of its own,
"together" makes them one cluster, "keep" leaves the label -1. One client is always a cluster (or noise).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import (
    FloatArray,
    IntArray,
    check_distances,
    check_share,
    check_similarities,
    check_vectors,
    renumber,
)
from cflib.louvain import Backend, affinity_graph, communities_of

Noise = Literal["own", "together", "keep"]
Linkage = Literal["average", "complete", "single"]
Bipartitioner = Callable[[FloatArray], IntArray]
Vectors = Sequence[ArrayLike] | FloatArray

RESOLUTIONS = tuple(round(0.5 + 0.05 * step, 2) for step in range(21))
"""The 21 resolutions 0.50, 0.55, ..., 1.50 of paper 001 (discrepancy A-2: both ends count)."""


def louvain(
    affinity: ArrayLike,
    *,
    resolution: float = 1.0,
    backend: Backend = "networkx",
    self_loops: bool = False,
    seed: int = 0,
) -> IntArray:
    """Communities of the graph whose edges are the affinities ``(n, n)`` above 0; a client without edges is alone.

    The partition is the one that networkx 3.6 or python-louvain 0.16 finds from this seed; it is computed here because
    networkx may swap equally good clients for ever (its issue 8739), and faster. Both move a client where
    k_in - resolution * k_i * k_C / 2m gains most, so a higher resolution gives more and smaller communities. They
    differ below 1: networkx also stops by that objective, python-louvain by one that multiplies the *internal* weight
    by the resolution, which ends the search early and leaves more communities than at 1. Papers 000 and 001 state the
    reverse direction (discrepancy L-3), which holds for python-louvain below 1 only. Their authors run python-louvain
    unrandomised, which is seed 0; paper 003 names no library.

    ``self_loops`` puts the diagonal into the graph, as FLIC does: a loop of weight w adds 2w to a client's degree, so
    equal clients stay alone instead of joining. Multiplying all affinities changes nothing. Raises ``ValueError`` for
    what looks like distances: a zero diagonal, and no other zero than between clients that would be equal.

    >>> louvain([[1.0, 0.9, 0.1, 0.1], [0.9, 1.0, 0.1, 0.1], [0.1, 0.1, 1.0, 0.9], [0.1, 0.1, 0.9, 1.0]])
    array([0, 0, 1, 1])
    """
    return renumber(communities_of(affinity_graph(affinity, self_loops=self_loops), resolution, backend, seed))


def agreement_matrix(
    affinity: ArrayLike,
    *,
    resolutions: Sequence[float] = RESOLUTIONS,
    backend: Backend = "networkx",
    seed: int = 0,
) -> IntArray:
    """At how many resolutions Louvain puts two clients together: ``(n, n)`` counts, the diagonal counts all of them.

    >>> agreement_matrix([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]], resolutions=[0.5, 1.0])
    array([[2, 2, 0], [2, 2, 0], [0, 0, 2]])
    """
    graph = affinity_graph(affinity, self_loops=False)
    if len(resolutions) == 0:
        raise ValueError("no resolutions were given: pass at least one, e.g. cflib.clustering.RESOLUTIONS")
    counts = np.zeros((len(graph), len(graph)), dtype=np.int64)
    for resolution in resolutions:
        labels = communities_of(graph, resolution, backend, seed)
        counts += labels[:, None] == labels
    return counts


def agreement(
    affinity: ArrayLike,
    *,
    threshold: float = 0.6,
    resolutions: Sequence[float] = RESOLUTIONS,
    backend: Backend = "networkx",
    seed: int = 0,
) -> IntArray:
    """Groups linked by pairs that share a community at ``threshold`` of the resolutions or more (paper 001, Alg. 2).

    Of 21 resolutions 60 % are 12.6, so a pair needs 13 (discrepancy A-4); the groups are connected components.
    """
    from scipy.sparse.csgraph import connected_components

    check_share(threshold, "threshold")
    counts = agreement_matrix(affinity, resolutions=resolutions, backend=backend, seed=seed)
    # A product such as 0.28 * 25 lies a rounding error above the whole number it means.
    kept = counts >= threshold * len(resolutions) - 1e-9
    return renumber(connected_components(kept, directed=False)[1])


def dbscan(vectors: Vectors, *, eps: float, min_samples: int = 2, noise: Noise = "own") -> IntArray:
    """DBSCAN by Euclidean distance: a client with ``min_samples`` clients (itself included) within ``eps`` is core.

    >>> dbscan([[0.0], [0.1], [5.0]], eps=0.5)
    array([0, 0, 1])
    """
    rows = np.asarray(check_vectors(vectors), dtype=np.float64)
    _check_count(min_samples, "min_samples", low=1)
    if not 0 < eps < np.inf:
        raise ValueError(f"eps is {eps}, expected a distance above 0, e.g. 0.0279 as in paper 002")
    from sklearn.cluster import DBSCAN

    return _settle(DBSCAN(eps=eps, min_samples=min_samples).fit(rows).labels_, noise)


def optics(vectors: Vectors, *, min_samples: int = 2, noise: Noise = "own") -> IntArray:
    """OPTICS by Euclidean distance, clusters cut by the xi method; fewer clients than ``min_samples`` are all noise."""
    rows = np.asarray(check_vectors(vectors), dtype=np.float64)
    _check_count(min_samples, "min_samples", low=2)
    if len(rows) < min_samples:
        return _settle(np.full(len(rows), -1), noise)
    from sklearn.cluster import OPTICS

    # Equal clients are reachable at distance 0, and the steepness of the plot there is a division by it.
    with np.errstate(divide="ignore"):
        return _settle(OPTICS(min_samples=min_samples).fit(rows).labels_, noise)


def kmeans(vectors: Vectors, *, n_clusters: int, seed: int = 0) -> IntArray:
    """K-Means, best of ten starts; at most one cluster a distinct client, so fewer than ``n_clusters`` may result."""
    rows = np.asarray(check_vectors(vectors), dtype=np.float64)
    _check_count(n_clusters, "n_clusters", low=1)
    from sklearn.cluster import KMeans

    with _no_convergence_warning():
        model = KMeans(n_clusters=min(n_clusters, len(rows)), n_init=10, random_state=seed).fit(rows)
    return renumber(model.labels_)


def mean_shift(vectors: Vectors) -> IntArray:
    """Mean shift with scikit-learn's bandwidth: the mean distance to the neighbour at 30 % of the clients.

    That neighbour is the client itself below seven clients, and an equal one if all are equal: the bandwidth is then
    0 and only equal clients share a cluster.
    """
    rows = np.asarray(check_vectors(vectors), dtype=np.float64)
    from sklearn.cluster import MeanShift, estimate_bandwidth

    rows = rows - rows[0]  # shifting changes no distance, but keeps those of equal clients at 0
    bandwidth = estimate_bandwidth(rows)
    if bandwidth <= 1e-7 * np.abs(rows).max():
        return renumber(np.unique(rows, axis=0, return_inverse=True)[1].ravel())
    return renumber(MeanShift(bandwidth=bandwidth).fit(rows).labels_)


def hdbscan(distances: ArrayLike, *, min_cluster_size: int, noise: Noise = "own") -> IntArray:
    """HDBSCAN on distances ``(n, n)``; OCFL takes a fifth of the clients and ``noise="together"``.

    It never finds a single cluster: clients in one even group, or fewer than ``min_cluster_size``, are all noise.
    """
    checked = check_distances(distances)
    _check_count(min_cluster_size, "min_cluster_size", low=2)
    if len(checked) < min_cluster_size:
        return _settle(np.full(len(checked), -1), noise)
    from sklearn.cluster import HDBSCAN

    model = HDBSCAN(min_cluster_size=min_cluster_size, metric="precomputed", copy=True)
    return _settle(model.fit(checked).labels_, noise)


def affinity_propagation(similarities: ArrayLike, *, seed: int = 0, as_published: bool = False) -> IntArray:
    """Affinity propagation on similarities ``(n, n)``, preference at their median.

    Clients whose similarities are all equal (two clients always are) form one cluster, and so do clients among whom
    no exemplar emerges. ``as_published`` takes *distances* and uses them as similarities, as the authors of paper 004
    do (discrepancy O-7): it reproduces their arm and means nothing else.
    """
    matrix = check_distances(similarities) if as_published else check_similarities(similarities)
    others = matrix[~np.eye(len(matrix), dtype=bool)]
    if others.size == 0 or np.ptp(others) <= 1e-12 * np.abs(others).max():
        return np.zeros(len(matrix), dtype=np.int64)
    from sklearn.cluster import AffinityPropagation

    with _no_convergence_warning():
        labels = AffinityPropagation(affinity="precomputed", random_state=seed).fit(matrix).labels_
    return renumber(np.maximum(labels, 0))  # without an exemplar every label is -1


def agglomerative(
    distances: ArrayLike,
    *,
    threshold: float,
    linkage: Linkage = "average",
    as_published: bool = False,
    names: int | None = None,
) -> IntArray:
    """Merge the nearest clusters while they are nearer than ``threshold``; linkage "average", "complete" or "single".

    ``as_published`` takes *similarities* and uses them as distances, as paper 004 runs Briggs's method (discrepancy
    O-7): it joins the least similar clients first. With ``names`` only so many clusters get one, in scikit-learn's own
    order, and the clients of the others get -1 (O-25).

    >>> agglomerative([[0.0, 0.1, 0.9], [0.1, 0.0, 0.8], [0.9, 0.8, 0.0]], threshold=0.5)
    array([0, 0, 1])
    """
    matrix = check_similarities(distances) if as_published else check_distances(distances)
    if not 0 <= threshold < np.inf:
        raise ValueError(f"threshold is {threshold}, expected a finite distance of at least 0 (paper 004: 0.05)")
    if linkage not in ("average", "complete", "single"):
        raise ValueError(f"linkage is {linkage!r}, expected 'average', 'complete' or 'single'")
    return _merge(matrix, names, linkage=linkage, distance_threshold=threshold, n_clusters=None)


def bipartition(distances: ArrayLike) -> IntArray:
    """Two clusters by complete linkage (Sattler's split): labels 0 and 1, client 0 on side 0; one client is all 0."""
    return _merge(check_distances(distances), linkage="complete", n_clusters=2)


def split_cluster(distances: ArrayLike, members: ArrayLike, bipartition: Bipartitioner) -> tuple[IntArray, IntArray]:
    """Split one cluster in two; both halves hold federation-wide client ids.

    ``distances`` are those of the whole federation ``(n, n)``, ``members`` the ids of the cluster, and ``bipartition``
    gives a side, 0 or 1, to each row of the members' own distances.

    >>> split_cluster(1.0 - np.eye(9), [5, 8], bipartition)
    (array([5]), array([8]))
    """
    checked, ids = check_distances(distances), np.asarray(members)
    if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"members are {members!r}, expected the integer ids of at least one client")
    for client in ids.tolist():
        if not 0 <= client < len(checked) or np.count_nonzero(ids == client) > 1:
            raise ValueError(f"client {client} is repeated or not in 0..{len(checked) - 1}: name each member once")
    side = np.asarray(bipartition(checked[np.ix_(ids, ids)]))
    if side.shape != ids.shape or not np.isin(side, (0, 1)).all():
        raise ValueError(f"the bipartition gave {side.tolist()} for members {ids.tolist()}: expected 0 or 1 for each")
    return ids[side == 0], ids[side == 1]


def _merge(matrix: FloatArray, names: int | None = None, **options: object) -> IntArray:
    if len(matrix) == 1:
        return np.zeros(1, dtype=np.int64)
    from sklearn.cluster import AgglomerativeClustering

    labels = AgglomerativeClustering(metric="precomputed", **options).fit(matrix).labels_
    return renumber(labels if names is None else np.where(labels < names, labels, -1))


def _settle(labels: IntArray, noise: Noise) -> IntArray:
    labels, lost = np.array(labels, dtype=np.int64), np.flatnonzero(labels < 0)
    if noise == "own":
        labels[lost] = labels.max() + 1 + np.arange(len(lost))
    elif noise == "together":
        labels[lost] = labels.max() + 1
    elif noise != "keep":
        raise ValueError(f"noise is {noise!r}, expected 'own', 'together' or 'keep'")
    return renumber(labels)


def _check_count(value: int, name: str, *, low: int) -> None:
    if not isinstance(value, (int, np.integer)) or value < low:
        raise ValueError(f"{name} is {value}, expected a whole number of at least {low}")


@contextmanager
def _no_convergence_warning() -> Iterator[None]:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
