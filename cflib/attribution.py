"""Attribution: which community models a client receives.

Every function but the last returns an ``(n, k)`` matrix of convex weights: row i says how the k community models are
mixed for client i. Rows are not negative and sum to 1; a tie goes to the first community.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import FloatArray, IntArray, check_labels, check_share, check_vectors


def average(labels: ArrayLike) -> FloatArray:
    """Give every client the plain mean of the k community models, the global model of paper 000 (AVG).

    ``labels`` are 0..k-1, or -1 for a client not allotted. Communities count alike whatever their size.

    >>> average([0, 0, 1])
    array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    """
    checked, communities = _check_allotted(labels)
    return np.full((len(checked), communities), 1.0 / communities)


def own(labels: ArrayLike) -> FloatArray:
    """Give a client the model of its own community; a client not allotted (label -1) gets the global model.

    >>> own([1, 0, -1])
    array([[0. , 1. ], [1. , 0. ], [0.5, 0.5]])
    """
    checked, communities = _check_allotted(labels)
    weights = average(checked)
    weights[checked >= 0] = np.eye(communities)[checked[checked >= 0]]
    return weights


def nearest(distances: ArrayLike) -> FloatArray:
    """Give a client the nearest community model (paper 000, 1NN), from distances ``(n, k)``.

    It need not be the community in which the client was put.

    >>> nearest([[0.3, 0.1], [0.2, 0.2]])
    array([[0., 1.], [1., 0.]])
    """
    return _one_hot(np.argmin(_check_distances(distances), axis=1), like=distances)


def weighted_nearest(distances: ArrayLike, *, k: int = 3, beta: float = 1.0) -> FloatArray:
    """Mix the k nearest community models by softmax(-beta d) (paper 000, eq. 4, WNN), from distances ``(n, k)``.

    The factor 1/|N_q| of eq. 4 is left out: it would shrink the model to a third (discrepancy L-1). With fewer than k
    communities all are mixed; ``beta=0`` weighs them alike.

    >>> weighted_nearest([[0.0, np.log(3.0), 9.0]], k=2).round(2)
    array([[0.75, 0.25, 0.  ]])
    """
    checked = _check_distances(distances)
    if not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"k is {k}, expected a whole number of at least 1")
    if not 0 <= beta < np.inf:
        raise ValueError(f"beta is {beta}, expected a finite number of at least 0")
    chosen = np.argsort(checked, axis=1, kind="stable")[:, :k]
    near = np.take_along_axis(checked, chosen, axis=1)
    # Shifted by the largest exponent, so that the nearest model has weight 1 before scaling however far it is.
    with np.errstate(over="ignore"):
        shares = np.exp(-beta * (near - near[:, :1]))
    weights = np.zeros_like(checked)
    np.put_along_axis(weights, chosen, shares / shares.sum(axis=1, keepdims=True), axis=1)
    return weights


def lowest_loss(losses: ArrayLike) -> FloatArray:
    """Give a client the model with the lowest loss on its data (IFCA), from losses ``(n, k)``.

    >>> lowest_loss([[0.7, 0.2], [0.4, 0.9]])
    array([[0., 1.], [1., 0.]])
    """
    return _one_hot(np.argmin(_check_table(losses, "loss"), axis=1), like=losses)


def best_accuracy(accuracies: ArrayLike) -> FloatArray:
    """Give a client the model with the highest accuracy on its data (FLIC's newcomers), from shares ``(n, k)``."""
    checked = _check_table(accuracies, "accuracy")
    if (checked < 0).any() or (checked > 1).any():
        client, community = np.argwhere((checked < 0) | (checked > 1))[0]
        value = checked[client, community]
        raise ValueError(f"client {client} has accuracy {value} with community {community}: expected a share in 0..1")
    return _one_hot(np.argmax(checked, axis=1), like=accuracies)


def nearest_core(
    vectors: Sequence[ArrayLike] | FloatArray,
    core_vectors: Sequence[ArrayLike] | FloatArray,
    core_labels: ArrayLike,
    *,
    eps: float,
) -> IntArray:
    """Label each newcomer ``(n,)`` like the nearest core client within Euclidean distance ``eps`` (paper 002).

    ``vectors`` are the newcomers' ``(n, p)``, ``core_vectors`` and ``core_labels`` the core clients' ``(m, p)`` and
    ``(m,)``. The label -1 flags a newcomer near no core client, which is every newcomer if there is none.

    >>> nearest_core([[0.1], [5.0]], [[0.0], [1.0]], [3, 4], eps=0.5)
    array([ 3, -1])
    """
    newcomers = np.asarray(check_vectors(vectors, who="newcomer"), dtype=np.float64)
    check_share(eps, "eps", high=np.inf)
    allotted = np.asarray(core_labels)
    if allotted.shape != (len(core_vectors),):
        raise ValueError(f"core_labels have shape {allotted.shape} for {len(core_vectors)} core clients: give one each")
    labels = np.full(len(newcomers), -1, dtype=np.int64)
    if len(core_vectors) == 0:
        return labels
    if not np.issubdtype(allotted.dtype, np.integer) or allotted.min() < 0:
        raise ValueError(f"core_labels are {allotted.tolist()}: a core client has an integer label of at least 0")
    cores = np.asarray(check_vectors(core_vectors, who="core client"), dtype=np.float64)
    if cores.shape[1] != newcomers.shape[1]:
        raise ValueError(f"newcomers have {newcomers.shape[1]} values, core clients {cores.shape[1]}: they must agree")
    for newcomer, vector in enumerate(newcomers):
        gaps = np.linalg.norm(cores - vector, axis=1)
        closest = int(np.argmin(gaps))
        if gaps[closest] <= eps:
            labels[newcomer] = allotted[closest]
    return labels


def _check_allotted(labels: ArrayLike) -> tuple[IntArray, int]:
    checked = check_labels(labels, noise=True)
    if (communities := int(checked.max()) + 1) == 0:
        raise ValueError(f"all {len(checked)} clients have label -1: at least one must belong to a community")
    return checked, communities


def _check_table(values: ArrayLike, name: str) -> FloatArray:
    checked = np.asarray(values, dtype=np.float64)
    if checked.ndim != 2 or checked.size == 0:
        raise ValueError(f"the {name} table has shape {checked.shape}, expected (clients, communities)")
    if not np.isfinite(checked).all():
        client, community = np.argwhere(~np.isfinite(checked))[0]
        value = checked[client, community]
        raise ValueError(f"client {client} has {name} {value} with community {community}: leave out diverged models")
    return checked


def _check_distances(distances: ArrayLike) -> FloatArray:
    checked = _check_table(distances, "distance")
    if (checked < 0).any():
        client, community = np.argwhere(checked < 0)[0]
        value = checked[client, community]
        raise ValueError(f"client {client} has distance {value} < 0 to community {community}: are these similarities?")
    return checked


def _one_hot(chosen: IntArray, *, like: ArrayLike) -> FloatArray:
    return np.asarray(np.eye(np.shape(like)[1])[chosen])
