"""How far apart clients are: from models or updates to an ``(n, n)`` matrix.

Every matrix is a *distance* (zero diagonal, larger is farther) or a *similarity* (largest on the diagonal), and the
name of the function says which. Sums run in float64 over blocks of columns, so that a hundred clients of a million
float32 parameters need little memory beyond their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import (
    FloatArray,
    IntArray,
    Weights,
    blocks,
    check_distances,
    check_models,
    check_vectors,
    flatten,
)

Vectors = FloatArray | Sequence[FloatArray]
"""Updates ``(n, p)``, or a list of n flat vectors."""

EPSILON = 1e-8  # added to the reference norm, as the authors of paper 000 do
LARGEST_LOG = 700.0  # exp of this is still a float64
CANCELLED = 1e-6  # a squared gap below this share of the norms it came from has lost digits


def trusted_distance(a: Weights, b: Weights) -> float:
    """Return the trusted distance from model ``a`` to model ``b`` (paper 000, eq. 2).

    ``prod_l (1 + |a_l - b_l| / |a_l|) - 1`` over the arrays of the model, with Frobenius norms: not symmetric, ``a``
    is the reference. As in the authors' code ``1e-8`` is added to ``|a_l|``; so an array that is zero in ``a`` (a
    fresh bias) counts as a change of ``1e8 |b_l|``, and as none if it is zero in ``b`` too. The product is summed as
    logarithms and stops at ``exp(700)``, so that many such arrays still give a finite distance.

    >>> round(trusted_distance([np.array([3.0, 4.0])], [np.array([3.0, 3.0])]), 6)
    0.2
    """
    a, b = check_models([a, b], who="model")
    total = 0.0
    for before, after in zip(a, b, strict=True):
        reference = np.linalg.norm(before.astype(np.float64))
        gap = np.linalg.norm(after.astype(np.float64) - before)
        total += np.log1p(gap / (reference + EPSILON))
    return float(np.expm1(min(total, LARGEST_LOG)))


def trusted_distances(models: Sequence[Weights], *, arrays: Literal["all", "kernels"] = "all") -> FloatArray:
    """Return the trusted distances ``(n, n)`` between models, mirrored from ``d(i, j)`` with ``i < j``.

    The reference norm of a pair is that of the client with the lower number (L-2). ``arrays="kernels"`` leaves out
    every one-dimensional array: biases and the parameters and statistics of batch normalisation (L-14).
    """
    checked = _select(check_models(models), arrays)
    logs = np.zeros((len(models), len(models)))
    for layer in _layers(checked):
        gaps, norms = _gaps(layer)
        logs += np.log1p(gaps / (norms[:, None] + EPSILON))
    upper = np.triu(np.expm1(np.minimum(logs, LARGEST_LOG)), 1)
    return upper + upper.T


def cross_trusted_distances(
    models: Sequence[Weights], references: Sequence[Weights], *, arrays: Literal["all", "kernels"] = "all"
) -> FloatArray:
    """Return the trusted distances ``(n, m)`` from n clients to m community models; the client's norm is the reference.

    >>> client, community = [np.array([3.0, 4.0])], [np.array([3.0, 3.0])]
    >>> cross_trusted_distances([client], [community, client])
    array([[0.2, 0. ]])
    """
    clients, communities = check_models(models), check_models(references, who="community")
    if [array.shape for array in clients[0]] != [array.shape for array in communities[0]]:
        raise ValueError("clients and communities have different shapes: all models must share one architecture")
    n = len(clients)
    logs = np.zeros((n, len(communities)))
    for layer in _layers(_select(clients + communities, arrays)):
        gaps, norms = _gaps(layer, split=n)
        logs += np.log1p(gaps / (norms[:n, None] + EPSILON))
    return np.expm1(np.minimum(logs, LARGEST_LOG))


def cosine_similarities(updates: Vectors) -> FloatArray:
    """Return the cosines ``(n, n)`` between updates, within [-1, 1]; a zero update has cosine 0 with any other.

    >>> cosine_similarities(np.array([[1.0, 0.0], [0.0, 2.0]]))
    array([[1., 0.],
           [0., 1.]])
    """
    vectors = check_vectors(updates)
    return _cosine_rows(vectors, np.arange(len(vectors)))


def cosine_distances(updates: Vectors) -> FloatArray:
    """Return ``1 - cosine``, ``(n, n)`` within [0, 2]."""
    distances = 1.0 - cosine_similarities(updates)
    np.fill_diagonal(distances, 0.0)
    return distances


def model_cosine_distances(models: Sequence[Weights]) -> FloatArray:
    """Return ``1 - cosine`` between whole models ``(n, n)``: paper 000's alternative to the trusted distance."""
    return cosine_distances([flatten(model) for model in check_models(models)])


def cross_model_cosine_distances(models: Sequence[Weights], references: Sequence[Weights]) -> FloatArray:
    """Return ``1 - cosine`` from n clients to m community models, ``(n, m)``."""
    return model_cosine_distances([*models, *references])[: len(models), len(models) :]


def shifted_cosine(updates: Vectors) -> FloatArray:
    """Return the similarities ``1 + cosine`` of paper 003 (eq. 4), within [0, 2]; the diagonal is 2."""
    return 1.0 + cosine_similarities(updates)


def update_shifted_cosine(similarities: FloatArray, updates: Vectors, reported: ArrayLike) -> FloatArray:
    """Return ``shifted_cosine(updates)`` when only the clients in ``reported`` changed since ``similarities``.

    Only their rows and columns are computed anew: m reports among n clients cost m/n of the whole matrix. Old entries
    of reported clients are never read, so a client that reports for the first time may hold NaN.
    """
    rows = np.asarray(reported, dtype=np.int64)
    if similarities.shape != (len(updates), len(updates)):
        raise ValueError(f"similarities have shape {similarities.shape}, there are updates of {len(updates)} clients")
    if rows.size and not (rows.min() >= 0 and rows.max() < len(updates)):
        raise ValueError(f"reported clients {rows.tolist()} are not all among 0..{len(updates) - 1}")
    fresh = similarities.astype(np.float64, copy=True)
    if rows.size:
        fresh[rows] = 1.0 + _cosine_rows(updates, rows)
        fresh[:, rows] = fresh[rows].T
    return fresh


def minkowski_distances(updates: Vectors, *, p: float = 2) -> FloatArray:
    """Return the Minkowski distances ``(n, n)`` of order ``p >= 1`` (1 Manhattan, 2 Euclidean, inf Chebyshev)."""
    if not p >= 1:
        raise ValueError(f"p is {p}, expected a number of at least 1 (or inf): below 1 it is no distance")
    vectors = check_vectors(updates)
    if p == 2:
        return _gaps(vectors)[0]
    n = len(vectors)
    total = np.zeros((n, n))
    for block in blocks(vectors):
        for i in range(n - 1):
            gaps = np.abs(block[i + 1 :] - block[i])
            if np.isinf(p):
                total[i, i + 1 :] = np.maximum(total[i, i + 1 :], gaps.max(axis=1))
            else:
                total[i, i + 1 :] += (gaps**p).sum(axis=1)
    distances = total if np.isinf(p) else total ** (1 / p)
    return distances + distances.T


def coordinates(distances: ArrayLike) -> FloatArray:
    """Return points ``(n, n)`` that have these Euclidean distances, by classical scaling; the widest direction first.

    However many parameters n clients have, n numbers each say all about their distances.

    >>> np.abs(coordinates([[0, 3], [3, 0]])).round(6)
    array([[1.5, 0. ],
           [1.5, 0. ]])
    """
    squares = check_distances(distances) ** 2
    means = squares.mean(axis=0)
    values, vectors = np.linalg.eigh((means + means[:, None] - squares - means.mean()) / 2)
    points: FloatArray = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0))
    return points


def to_similarity(distances: ArrayLike, *, power: float = 3) -> FloatArray:
    """Return ``((max - d) / (max - min)) ** power`` over the off-diagonal minimum and maximum (paper 000, eq. 3).

    Within [0, 1], diagonal 1. If all distances are equal, all similarities are 1. Multiplying by a constant changes no
    community, so the raw ``(max - d) ** power`` of the paper's Figure 2 gives the same partitions (L-15).

    >>> to_similarity([[0, 1, 3], [1, 0, 2], [3, 2, 0]], power=1)
    array([[1. , 1. , 0. ],
           [1. , 1. , 0.5],
           [0. , 0.5, 1. ]])
    """
    if not power > 0:
        raise ValueError(f"power is {power}, expected a number above 0")
    checked = check_distances(distances)
    between = checked[~np.eye(len(checked), dtype=bool)]
    if not between.size or between.max() == between.min():
        return np.ones_like(checked)
    low, high = between.min(), between.max()
    similarities: FloatArray = ((high - checked) / (high - low)) ** power
    np.fill_diagonal(similarities, 1.0)
    return similarities


def clustering_temperature(distances: ArrayLike, *, p: float = 2) -> float:
    """Return paper 004's clustering temperature of cosine distances, within [0, 1] (eq. 4).

    ``|D|_p / (n (n - 1) 2^p)^(1/p)``: 0 when all clients agree, 1 when all are opposed. One client has temperature 0.

    >>> clustering_temperature([[0, 2], [2, 0]])
    1.0
    """
    if not p >= 1 or np.isinf(p):
        raise ValueError(f"p is {p}, expected a finite number of at least 1")
    checked = check_distances(distances)
    if checked.max() > 2 + 1e-9:
        i, j = np.unravel_index(int(checked.argmax()), checked.shape)
        raise ValueError(f"distance between clients {i} and {j} is {checked[i, j]} > 2: use cosine distances")
    n = len(checked)
    if n == 1:
        return 0.0
    return float((np.mean((checked / 2) ** p) * n / (n - 1)) ** (1 / p))


def _select(models: list[list[FloatArray]], arrays: Literal["all", "kernels"]) -> list[list[FloatArray]]:
    if arrays not in ("all", "kernels"):
        raise ValueError(f"arrays is {arrays!r}, expected 'all' or 'kernels'")
    kept = [[a for a in model if arrays == "all" or a.ndim > 1] for model in models]
    if not kept[0]:
        raise ValueError("the models have no array of two or more dimensions: use arrays='all'")
    return kept


def _layers(models: list[list[FloatArray]]) -> list[list[FloatArray]]:
    """Regroup models by layer: for each array of the architecture, the flat vectors of all models."""
    return [[np.ravel(model[position]) for model in models] for position in range(len(models[0]))]


def _gaps(vectors: Vectors, *, split: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Return Euclidean gaps and norms: all against all, or the first ``split`` against the rest.

    A Gram matrix is one matrix product where a loop over pairs is n^2 passes over memory. It cancels for nearly equal
    vectors: centring keeps most digits, and the few pairs that still cancel are computed directly.
    """
    n = len(vectors)
    gram, squares = np.zeros((n, n)), np.zeros(n)
    for block in blocks(vectors):
        squares += np.einsum("ij,ij->i", block, block)
        centred = block - block.mean(axis=0)
        gram += centred @ centred.T
    lengths = np.diagonal(gram)
    scale = lengths[:, None] + lengths
    squared = scale - 2 * gram
    np.fill_diagonal(squared, 0.0)
    doubtful = np.triu(squared <= CANCELLED * scale, 1)
    if split is not None:
        doubtful[:split, :split] = doubtful[split:, split:] = False
    for i, j in np.argwhere(doubtful):
        gap = vectors[i].astype(np.float64) - vectors[j]
        squared[i, j] = squared[j, i] = gap @ gap
    gaps = np.sqrt(np.maximum(squared, 0.0))
    return (gaps if split is None else gaps[:split, split:]), np.sqrt(squares)


def _cosine_rows(vectors: Vectors, rows: IntArray) -> FloatArray:
    """Return the cosines ``(m, n)`` of the chosen rows with all vectors, exactly 1 of each with itself."""
    n = len(vectors)
    products, squares = np.zeros((len(rows), n)), np.zeros(n)
    everyone = len(rows) == n
    for block in blocks(vectors):
        squares += np.einsum("ij,ij->i", block, block)
        products += block @ block.T if everyone else block[rows] @ block.T
    norms = np.sqrt(squares)
    scale = norms[rows, None] * norms
    cosines: FloatArray = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    np.clip(cosines, -1.0, 1.0, out=cosines)
    cosines[np.arange(len(rows)), rows] = 1.0
    return cosines
