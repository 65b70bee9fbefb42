"""Scores: how well clusters match the true groups, how well models classify, and how sure a mean is.

``truth`` holds the true group of each client, ``labels`` its cluster 0..k-1. A cluster label of -1 (a client not
allotted to any cluster) is refused by every single score; ``score_partition`` leaves such clients out and says so. A
true group of -1 means that the partition has no true groups: then nothing can be compared, and every score refuses.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import FloatArray, IntArray, check_distances, check_labels, renumber
from cflib.samples import Interval as Interval
from cflib.samples import bimodality as bimodality
from cflib.samples import check_values
from cflib.samples import confidence_interval as confidence_interval
from cflib.samples import paired_interval as paired_interval


def adjusted_rand(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return the Rand index corrected for chance: 1 for equal partitions, about 0 for random ones, never below -0.5.

    >>> adjusted_rand([0, 0, 1, 1], [1, 1, 0, 0])
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_check_pair(truth, labels)))


def plain_rand(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of pairs of clients that both partitions treat alike, within [0, 1]; chance is not taken off.

    >>> plain_rand([0, 0, 1, 1], [0, 0, 0, 0])
    0.333...
    """
    from sklearn.metrics import rand_score

    return float(rand_score(*_check_pair(truth, labels)))


def adjusted_mutual_information(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return the mutual information corrected for chance: at most 1, about 0 for random labels."""
    from sklearn.metrics import adjusted_mutual_info_score

    return min(1.0, float(adjusted_mutual_info_score(*_check_pair(truth, labels))))


def homogeneity(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return, within [0, 1], how far each cluster holds one true group only: 1 for singletons.

    This is the column that paper 004 calls completeness: its authors' code passes the arguments the other way round.
    """
    from sklearn.metrics import homogeneity_score

    return float(np.clip(homogeneity_score(*_check_pair(truth, labels)), 0, 1))


def completeness(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return, within [0, 1], how far each true group stays in one cluster: 1 for a single cluster of everyone."""
    from sklearn.metrics import completeness_score

    return float(np.clip(completeness_score(*_check_pair(truth, labels)), 0, 1))


def purity(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of clients in a cluster of one true group only, as paper 003 defines it; singletons are pure.

    >>> purity([0, 0, 1, 1], [0, 0, 0, 1])
    0.25
    """
    table = _contingency(truth, labels)
    return float(table[(table > 0).sum(axis=1) == 1].sum() / table.sum())


def majority_purity(truth: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of clients in the largest true group of their cluster, as textbooks define purity."""
    table = _contingency(truth, labels)
    return float(table.max(axis=1).sum() / table.sum())


def score_partition(truth: ArrayLike, labels: ArrayLike, *, distances: ArrayLike | None = None) -> dict[str, float]:
    """Return all clustering scores at once; with ``distances`` ``(n, n)``, the silhouette too.

    Clients with label -1 are left out of every score; ``allotted`` is the share of clients that remain. Raises
    ``ValueError`` if none remains, or if there are no true groups.
    """
    groups, clusters = _check_pair(truth, labels, noise=True)
    kept = np.flatnonzero(clusters >= 0)
    if kept.size == 0:
        raise ValueError(f"none of the {clusters.size} clients is allotted to a cluster: score a later round")
    groups, chosen = groups[kept], clusters[kept]
    scores = {
        "adjusted_rand": adjusted_rand(groups, chosen),
        "adjusted_mutual_information": adjusted_mutual_information(groups, chosen),
        "homogeneity": homogeneity(groups, chosen),
        "completeness": completeness(groups, chosen),
        "purity": purity(groups, chosen),
        "majority_purity": majority_purity(groups, chosen),
        "clusters": float(chosen.max() + 1),
        "allotted": kept.size / clusters.size,
    }
    if distances is not None:
        _cluster_sums(distances, clusters)  # the full matrix is checked against all clients before any is left out
        scores["silhouette"] = silhouette(np.asarray(distances)[np.ix_(kept, kept)], chosen)
    return scores


def silhouette(distances: ArrayLike, labels: ArrayLike) -> float:
    """Return Rousseeuw's silhouette, the mean over clients, within [-1, 1], from distances ``(n, n)``.

    ``a`` is the mean distance to the other members of the own cluster, ``b`` the smallest mean distance to another
    cluster, and a client scores ``(b - a) / max(a, b)``; a client alone scores 0, and so does one with ``a = b = 0``.
    One cluster, or as many clusters as clients, score 0.

    >>> round(silhouette([[0, 1, 9], [1, 0, 9], [9, 9, 0]], [0, 0, 1]), 4)
    0.5926
    """
    clusters = check_labels(labels)
    sums, sizes = _cluster_sums(distances, clusters)
    if not 1 < sizes.size < clusters.size:
        return 0.0
    rows = np.arange(clusters.size)
    own = sizes[clusters]
    a = sums[rows, clusters] / np.maximum(own - 1, 1)
    means = sums / sizes
    means[rows, clusters] = np.inf
    b = means.min(axis=1)
    widest = np.maximum(a, b)
    return float(np.divide(b - a, widest, out=np.zeros(clusters.size), where=(own > 1) & (widest > 0)).mean())


def silhouette_as_published(distances: ArrayLike, centroid_distances: ArrayLike, labels: ArrayLike) -> float:
    """Return the silhouette as the authors of paper 000 compute it, from distances ``(n, n)``.

    It differs from Rousseeuw's in three ways (L-8): ``a`` averages over the whole own cluster, the client itself (0)
    included; ``b`` is the mean distance to the cluster whose centroid is nearest to the own centroid, by row of
    ``centroid_distances`` ``(k, k)``; and a client alone scores about 1, so that fragmentation raises the mean.
    ``s = (b - a) / (max(a, b) + 1e-6)``; one cluster scores 0.
    """
    clusters = check_labels(labels)
    sums, sizes = _cluster_sums(distances, clusters)
    k = sizes.size
    between = np.array(centroid_distances, dtype=np.float64)
    if between.shape != (k, k):
        raise ValueError(f"centroid distances have shape {between.shape}, there are {k} clusters: pass ({k}, {k})")
    if (bad := ~(np.isfinite(between) & (between >= 0))).any():
        i, j = np.argwhere(bad)[0]
        raise ValueError(f"distance from centroid {i} to {j} is {between[i, j]}: distances are finite and not negative")
    if k == 1:
        return 0.0
    np.fill_diagonal(between, np.inf)
    nearest = between.argmin(axis=1)[clusters]
    rows, means = np.arange(clusters.size), sums / sizes
    a, b = means[rows, clusters], means[rows, nearest]
    return float(np.mean((b - a) / (np.maximum(a, b) + 1e-6)))


def macro_f1(truth: ArrayLike, predictions: ArrayLike, *, labels: ArrayLike | None = None) -> float:
    """Return the mean F1 over classes, within [0, 1]; a class never hit scores 0.

    The classes are ``labels``, or all that occur in the truth *or* the predictions: predicting a class that the
    client does not have costs it a class with F1 0 (as paper 004 measures it).

    >>> round(macro_f1([0, 0, 1, 1], [0, 0, 1, 2]), 4)
    0.5556
    """
    true, predicted = np.asarray(truth), np.asarray(predictions)
    if true.ndim != 1 or true.shape != predicted.shape or true.size == 0:
        raise ValueError(f"truth has shape {true.shape}, predictions {predicted.shape}: pass one class a sample")
    classes = np.unique(np.concatenate([true, predicted]) if labels is None else np.asarray(labels))
    if classes.size == 0:
        raise ValueError("labels name no class: leave them out to use all that occur")
    hits = np.array([np.sum((true == name) & (predicted == name)) for name in classes])
    either = np.array([np.sum(true == name) + np.sum(predicted == name) for name in classes])
    return float(np.mean(2 * hits / np.maximum(either, 1)))


def macro_f1_of_confusion(confusion: ArrayLike) -> float:
    """Return ``macro_f1`` from counts ``(classes, classes)`` by [truth, prediction], over the classes that occur."""
    return float(_f1(_check_confusions(confusion, several=False))[0])


def accuracy_of_confusion(confusion: ArrayLike) -> float:
    """Return the share of samples on the diagonal of counts ``(classes, classes)``."""
    counts = _check_confusions(confusion, several=False)[0]
    return float(np.trace(counts) / counts.sum())


def personal_f1(confusions: ArrayLike) -> float:
    """Return PF1: the mean over clients of the macro F1 on their own test data (paper 004).

    ``confusions`` is ``(n, classes, classes)``, or has further leading axes, such as rounds: the mean is over all.
    """
    return float(_f1(_check_confusions(confusions)).mean())


def general_f1(confusions: ArrayLike) -> float:
    """Return GF1: the mean over clients of the macro F1 of their models on one common test set (paper 004).

    Shapes as in ``personal_f1``; raises ``ValueError`` if the matrices do not stem from the same test set.
    """
    counts = _check_confusions(confusions)
    tested = counts.sum(axis=-1)
    if (differs := (tested != tested[0]).any(axis=1)).any():
        row = int(np.argmax(differs))
        raise ValueError(f"row {row} was tested on other data than row 0: GF1 needs one test set; else use personal_f1")
    return float(_f1(counts).mean())


def learning_gap(personal: ArrayLike, general: ArrayLike) -> float:
    """Return DIST = |PF1 - GF1| (paper 004, eq. 5); arrays over clients or rounds are averaged first."""
    return float(abs(check_values(personal, "personal F1").mean() - check_values(general, "general F1").mean()))


def detection(flagged: Collection[int] | ArrayLike, attackers: Collection[int] | ArrayLike) -> tuple[float, float]:
    """Return the precision and recall of flagged clients, both given as client ids or as boolean masks.

    If there is no attacker and nobody is flagged both are 1; any other 0/0 counts as 0, as scikit-learn has it.

    >>> detection([1, 2, 3, 4], [3, 4, 5])
    (0.5, 0.6666666666666666)
    """
    suspects, culprits = _client_ids(flagged), _client_ids(attackers)
    if not suspects and not culprits:
        return 1.0, 1.0
    found = len(suspects & culprits)
    return found / max(len(suspects), 1), found / max(len(culprits), 1)


def _check_pair(truth: ArrayLike, labels: ArrayLike, *, noise: bool = False) -> tuple[IntArray, IntArray]:
    clusters, groups = check_labels(labels, noise=noise), np.asarray(truth)
    if groups.shape != clusters.shape or not np.issubdtype(groups.dtype, np.integer):
        raise ValueError(f"truth is {groups.dtype}{groups.shape}, labels {clusters.shape}: pass one group a client")
    if groups.min() < 0:
        raise ValueError(f"client {int(groups.argmin())} has true group {groups.min()}, i.e. none: use the silhouette")
    return renumber(groups), clusters  # groups may be missing where only some clients are scored


def _contingency(truth: ArrayLike, labels: ArrayLike) -> IntArray:
    groups, clusters = _check_pair(truth, labels)
    table = np.zeros((clusters.max() + 1, groups.max() + 1), dtype=np.int64)
    np.add.at(table, (clusters, groups), 1)
    return table


def _cluster_sums(distances: ArrayLike, clusters: IntArray) -> tuple[FloatArray, IntArray]:
    """Return each client's summed distance ``(n, k)`` to each cluster, and the cluster sizes."""
    checked = check_distances(distances)
    if len(checked) != clusters.size:
        raise ValueError(f"there are distances of {len(checked)} clients and labels of {clusters.size}: use the same")
    member = clusters[:, None] == np.arange(clusters.max() + 1)
    return checked @ member, member.sum(axis=0)


def _check_confusions(confusions: ArrayLike, *, several: bool = True) -> FloatArray:
    """Return the counts of one matrix, or of several, as ``(rows, classes, classes)``."""
    counts = np.asarray(confusions, dtype=np.float64)
    if counts.ndim < 2 or (counts.ndim > 2) != several or counts.shape[-1] != counts.shape[-2] or not counts.size:
        expected = "(clients, classes, classes)" if several else "(classes, classes)"
        raise ValueError(f"confusion counts have shape {counts.shape}, expected {expected} by [truth, prediction]")
    counts = counts.reshape(-1, *counts.shape[-2:])
    if (bad := ~(np.isfinite(counts) & (counts >= 0))).any():
        row, i, j = np.argwhere(bad)[0]
        raise ValueError(f"row {row} counts {counts[row, i, j]} samples of class {i} as {j}: pass counts from 0 up")
    if not (tested := counts.any(axis=(1, 2))).all():
        raise ValueError(f"row {int(np.argmin(tested))} has no test samples: leave out clients without test data")
    return counts


def _f1(counts: FloatArray) -> FloatArray:
    either = counts.sum(axis=1) + counts.sum(axis=2)
    hits = np.diagonal(counts, axis1=1, axis2=2)
    scores = np.divide(2 * hits, either, out=np.zeros_like(either), where=either > 0)
    means: FloatArray = scores.sum(axis=1) / (either > 0).sum(axis=1)
    return means


def _client_ids(clients: Collection[int] | ArrayLike) -> set[int]:
    ids = np.asarray(list(clients) if isinstance(clients, Collection) else clients)
    if ids.dtype == bool and ids.ndim == 1:
        return set(np.flatnonzero(ids).tolist())
    if ids.ndim != 1 or (ids.size and (not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0)):
        raise ValueError(f"clients are {ids.tolist()}: pass ids 0, 1, ..., or one boolean a client")
    return set(ids.tolist())
