"""What malicious clients send: the minus-grad attack of paper 003 and the usual others.

An ``update`` is one flat vector ``(p,)``, ``updates`` are ``(n, p)`` or a list of flat vectors; results keep their
type. The first five attacks need only the attacker's own update or labels; the last four assume that it knows what
the others send. An attacker is one who replaces its update, so every function returns a single vector (or labels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import FloatArray, IntArray, blocks, check_vectors

Vectors = FloatArray | Sequence[FloatArray]

MEANS = {
    "minus_grad": "update",
    "zero_update": "update",
    "gaussian_noise": "update",
    "random_weights": "update",
    "label_flip": "labels",
    "alie": "collude",
    "ipm": "collude",
    "force_mean": "collude",
}
"""The attacks of this module, and by which field of ``client.Attack`` each goes."""


def minus_grad(update: ArrayLike) -> FloatArray:
    """Return the opposite of the true update (paper 003).

    >>> minus_grad(np.array([1.0, -2.0]))
    array([-1.,  2.])
    """
    return -_check_update(update)


def zero_update(update: ArrayLike) -> FloatArray:
    """Return an update of zeros: the attacker pretends to have learned nothing."""
    return np.zeros_like(_check_update(update))


def gaussian_noise(update: ArrayLike, *, scale: float, rng: np.random.Generator) -> FloatArray:
    """Return the update plus Gaussian noise of standard deviation ``scale`` on each weight; inf sends infinities."""
    checked = _check_update(update)
    if not scale >= 0:
        raise ValueError(f"scale is {scale}, expected a standard deviation of 0 or more")
    return (checked + rng.normal(0.0, scale, checked.size)).astype(checked.dtype)


def random_weights(update: ArrayLike, *, rng: np.random.Generator) -> FloatArray:
    """Return a vector of random direction that is as long as the update, so that its norm gives nothing away."""
    checked = _check_update(update)
    direction = rng.normal(size=checked.size)
    length = np.linalg.norm(checked.astype(np.float64)) / np.linalg.norm(direction)
    return (direction * length).astype(checked.dtype)


def label_flip(labels: ArrayLike, *, classes: int = 10, mapping: Mapping[int, int] | None = None) -> IntArray:
    """Return the labels a poisoned client trains on: class c becomes ``classes - 1 - c``, or ``mapping[c]``.

    Classes that ``mapping`` does not name keep their label. Raises ``ValueError`` on a class outside 0..classes-1.

    >>> label_flip([0, 1, 9]), label_flip([0, 1, 9], mapping={1: 7})
    (array([9, 8, 0]), array([0, 7, 9]))
    """
    checked = np.asarray(labels)
    if not np.issubdtype(checked.dtype, np.integer):
        raise ValueError(f"labels have type {checked.dtype}: use integers 0..{classes - 1}")
    table = np.arange(classes)[::-1].copy() if mapping is None else np.arange(classes)
    named = [*checked.ravel().tolist(), *(mapping or {}).keys(), *(mapping or {}).values()]
    if outside := [label for label in named if not 0 <= label < classes]:
        raise ValueError(f"label {outside[0]} is not among the classes 0..{classes - 1}: set classes")
    for source, target in (mapping or {}).items():
        table[source] = target
    flipped: IntArray = table[checked]
    return flipped


def alie(updates: Vectors, *, attackers: int = 1, z: float | None = None) -> FloatArray:
    """Return "a little is enough" (Baruch et al., 2019): the honest mean shifted by ``z`` standard deviations.

    ``updates`` are those of the m honest clients, and ``mean - z * std`` is taken weight by weight. Without ``z`` it is
    the largest shift that still hides among n = m + attackers clients: with s = n // 2 + 1 - attackers honest clients
    farther out, ``z = quantile((m - s) / m)`` of the normal distribution (others write n for m), or 0 where that is
    negative, so that the attacker sends the mean: few clients leave no room to hide.
    """
    checked = check_vectors(updates)
    honest = len(checked)
    if z is None:
        supporters = (honest + attackers) // 2 + 1 - attackers
        if attackers < 1 or supporters < 1:
            raise ValueError(
                f"{attackers} attackers among {honest + attackers} clients: z has a rule only for a minority of at "
                "least one attacker; pass z"
            )
        hidden = (honest - supporters) / honest
        z = max(0.0, NormalDist().inv_cdf(hidden)) if hidden > 0 else 0.0
    parts = [block.mean(axis=0) - z * block.std(axis=0) for block in blocks(checked)]
    return np.concatenate(parts).astype(_kind(checked))


def ipm(updates: Vectors, *, scale: float = 1.0) -> FloatArray:
    """Return ``-scale`` times the mean honest update: inner-product manipulation (Xie et al., 2020).

    >>> ipm(np.array([[1.0, 2.0], [3.0, 4.0]]), scale=0.5)
    array([-1. , -1.5])
    """
    if not 0 < scale < np.inf:
        raise ValueError(f"scale is {scale}, expected a number above 0: the attack points against the mean")
    checked = check_vectors(updates)
    return np.concatenate([-scale * block.mean(axis=0) for block in blocks(checked)]).astype(_kind(checked))


def force_aggregate(target: ArrayLike, updates: Vectors, weights: ArrayLike, *, attacker: int = -1) -> FloatArray:
    """Return the update with which one attacker makes the weighted mean equal ``target`` (paper 003, eq. 3).

    ``updates`` are those of the m others in client order, ``weights`` the m + 1 aggregation weights of all clients,
    normalised here, with the attacker's at position ``attacker`` (the last by default). With shares l it is
    ``target / l_k - sum_i (l_i / l_k) update_i``.

    >>> force_aggregate(np.array([10.0]), np.array([[1.0], [3.0]]), [1, 1, 2])
    array([18.])
    """
    checked, wanted = check_vectors(updates), _check_update(target)
    shares = _check_shares(weights, len(checked), attacker)
    if wanted.size != len(checked[0]):
        raise ValueError(f"target has {wanted.size} weights, the updates have {len(checked[0])}: use one architecture")
    others = np.delete(shares, attacker)
    rest = np.concatenate([others @ block for block in blocks(checked)])
    forced: FloatArray = (shares.sum() * wanted.astype(np.float64) - rest) / shares[attacker]
    return forced.astype(np.result_type(wanted.dtype, _kind(checked)))


def force_mean(updates: Vectors, weights: ArrayLike, *, scale: float = -1.0) -> FloatArray:
    """Return the update that makes the weighted mean ``scale`` times what the others alone would give (eq. 3).

    ``weights`` are the m others' and the attackers' sum, last. -1 turns the others' step round, 0 stops the model.

    >>> force_mean(np.array([[1.0], [3.0]]), [1, 1, 2])
    array([-6.])
    """
    checked = check_vectors(updates)
    shares = _check_shares(weights, len(checked), -1)
    if not shares[:-1].any():
        raise ValueError(f"weights are {shares.tolist()}: the others' are all 0, so there is no mean to turn round")
    others = shares[:-1] / shares[:-1].sum()
    target = scale * np.concatenate([others @ block for block in blocks(checked)])
    return force_aggregate(target.astype(_kind(checked)), checked, shares)


def _check_shares(weights: ArrayLike, others: int, attacker: int) -> FloatArray:
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != (others + 1,):
        raise ValueError(
            f"weights have shape {shares.shape}, {others} other clients send updates: "
            f"pass {others + 1} weights, the attacker's among them"
        )
    if not -shares.size <= attacker < shares.size:
        raise ValueError(f"attacker is {attacker}, there are weights of {shares.size} clients")
    if not (np.isfinite(shares).all() and (shares >= 0).all() and shares[attacker] > 0):
        raise ValueError(f"weights are {shares.tolist()}: not one may be negative, and the attacker's must be above 0")
    return shares


def _check_update(update: ArrayLike) -> FloatArray:
    checked: FloatArray = check_vectors([update], who="attacker")[0]
    return checked if np.issubdtype(checked.dtype, np.floating) else checked.astype(np.float64)


def _kind(vectors: Vectors) -> np.dtype[np.floating]:
    kind = np.result_type(*{row.dtype for row in vectors})
    return kind if np.issubdtype(kind, np.floating) else np.dtype(np.float64)
