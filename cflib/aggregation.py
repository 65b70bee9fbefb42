"""Combine models into one: means, robust alternatives, and the convex mixtures that attribution asks for.

A model is a Keras-style list of arrays; ``models`` holds one such list a client. Every function works array by array
and block by block, so the extra memory is about one model, however many clients there are. Sums are taken in float64 in
client order, which makes them repeatable bit for bit; the result has the type of the input (float32 in, float32 out;
integers become float64, since an average of counters is no counter).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import BLOCK, FloatArray, Weights, check_models

SORTED_BLOCK = 1 << 12  # columns sorted at once: 100 clients of float32 then fill 1.6 MB


def mean(models: Sequence[Weights]) -> list[FloatArray]:
    """Average the models, each client counting the same: FedAvg with equal sizes.

    Raises ``ValueError`` on no models, unequal shapes, or a weight that is not finite.

    >>> mean([[np.array([1.0, 2.0])], [np.array([3.0, 6.0])]])
    [array([2., 4.])]
    """
    checked = check_models(models)
    return _weighted_mean(checked, np.ones(len(checked)))


def weighted_mean(models: Sequence[Weights], weights: ArrayLike) -> list[FloatArray]:
    """Average the models, client i counting ``weights[i] / sum(weights)``; FedAvg passes sample counts.

    ``weights`` is ``(n,)``, not negative, with a positive sum; it is normalised here.

    >>> weighted_mean([[np.array([1.0])], [np.array([3.0])]], [3, 1])
    [array([1.5])]
    """
    checked = check_models(models)
    return _weighted_mean(checked, _check_weights(weights, len(checked)))


def median(models: Sequence[Weights]) -> list[FloatArray]:
    """Take the median of every single weight over the clients; of an even number, the mean of the two middle values.

    The defence FLIC is compared with: it holds while fewer than half of the clients attack.

    >>> median([[np.array([1.0])], [np.array([2.0])], [np.array([90.0])]])
    [array([2.])]
    """
    checked = check_models(models)
    return _middle_mean(checked, (len(checked) - 1) // 2)


def trimmed_mean(models: Sequence[Weights], *, share: float) -> list[FloatArray]:
    """Average every single weight over the clients after cutting the lowest and the highest ``share`` of its values.

    ``share``, in [0, 0.5), is cut from *each* end: ``floor(share * n)`` values, so 0 gives the mean.

    >>> trimmed_mean([[np.array([x])] for x in (-50.0, 1.0, 2.0, 3.0, 90.0)], share=0.2)
    [array([2.])]
    """
    checked = check_models(models)
    return _middle_mean(checked, _cut(share, len(checked)))


def trimmed_shares(models: Sequence[Weights], *, share: float) -> FloatArray:
    """Return for each model ``(n,)`` the part of its weights that the trimmed mean cuts away.

    Of equal values those of the first clients count as lower.

    >>> trimmed_shares([[np.array([x, x])] for x in (-50.0, 1.0, 2.0, 3.0, 90.0)], share=0.2)
    array([1., 0., 0., 0., 1.])
    """
    checked = check_models(models)
    n = len(checked)
    cut, gone, total = _cut(share, n), np.zeros(n), sum(array.size for array in checked[0])
    for arrays in zip(*checked, strict=True):
        rows = [np.ravel(array) for array in arrays]
        for low in range(0, rows[0].size, SORTED_BLOCK):
            order = np.argsort(np.stack([row[low : low + SORTED_BLOCK] for row in rows]), axis=0, kind="stable")
            gone += np.bincount(np.concatenate([order[:cut].ravel(), order[n - cut :].ravel()]), minlength=n)
    return gone / max(total, 1)


def krum(models: Sequence[Weights], *, attackers: int) -> list[FloatArray]:
    """Choose the one model that lies closest to its ``n - attackers - 2`` nearest others (Blanchard et al., 2017).

    The score of a model is the sum of the squared Euclidean distances to those neighbours; of equal scores the first
    client wins. Returns the chosen client's own arrays, not a copy. Needs ``n >= 2 * attackers + 3``.

    >>> krum([[np.array([x])] for x in (0.9, 1.0, 1.2, 1.3, 50.0)], attackers=1)
    [array([1.])]
    """
    checked = check_models(models)
    return checked[int(np.argmin(krum_scores(checked, attackers=attackers)))]


def krum_scores(models: Sequence[Weights], *, attackers: int) -> FloatArray:
    """Return for each model ``(n,)`` the sum of squared distances by which Krum chooses; the outliers score highest.

    >>> krum_scores([[np.array([x])] for x in (0.0, 1.0, 2.0, 3.0, 9.0)], attackers=1)
    array([ 5.,  2.,  2.,  5., 85.])
    """
    from cflib.distances import minkowski_distances

    checked = check_models(models)
    n = len(checked)
    if attackers < 0 or n < 2 * attackers + 3:
        raise ValueError(
            f"Krum with {attackers} attackers needs at least {2 * max(attackers, 0) + 3} models and attackers >= 0, "
            f"got {n} models: ask more clients, or expect fewer attackers"
        )
    # Squared distances add up over arrays, so no model is ever joined into one long vector.
    squared = np.zeros((n, n))
    for arrays in zip(*checked, strict=True):
        if arrays[0].size:
            squared += minkowski_distances([np.ravel(array) for array in arrays], p=2) ** 2
    np.fill_diagonal(squared, np.inf)
    scores: FloatArray = np.sort(squared, axis=1)[:, : n - attackers - 2].sum(axis=1)
    return scores


def mix(models: Sequence[Weights], weights: ArrayLike) -> list[FloatArray]:
    """Blend k models by one row of convex shares ``(k,)``, as attribution gives it to a client.

    The shares are not negative and add up to 1. A row with a single share returns that model's own arrays, unchanged
    and uncopied; models with share 0 are not read. Raises ``ValueError`` on a row that is not convex, or a bad model.

    >>> mix([[np.array([1.0])], [np.array([5.0])]], [0.75, 0.25])
    [array([2.])]
    """
    shares = _check_weights(weights, len(models))
    if abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"shares add up to {shares.sum()}, not 1: normalise the row, or use weighted_mean")
    used = np.flatnonzero(shares)
    try:
        checked = check_models([models[int(index)] for index in used], who="model")
    except ValueError:
        checked = check_models(models, who="model")  # raises again, naming the model by its place in the full list
    return checked[0] if len(used) == 1 else _weighted_mean(checked, shares[used])


def _cut(share: float, n: int) -> int:
    """How many of n values the trimmed mean cuts from each end."""
    if not 0 <= share < 0.5:
        raise ValueError(f"share is {share}, expected a number from 0 to below 0.5: it is cut from each end")
    # The small addition keeps 0.29 * 100 = 28.999... at 29; the bound keeps at least one value.
    return min(int(share * n + 1e-9), (n - 1) // 2)


def _check_weights(weights: ArrayLike, n: int) -> FloatArray:
    checked = np.asarray(weights, dtype=np.float64)
    if checked.shape != (n,):
        raise ValueError(f"weights have shape {checked.shape}, there are {n} models: pass one weight a model")
    bad = ~np.isfinite(checked) | (checked < 0)
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        raise ValueError(f"model {index} has weight {checked[index]}: weights must be finite and not negative")
    if not checked.any():
        raise ValueError(f"all {n} weights are 0: at least one model must count")
    return checked


def _weighted_mean(models: list[list[FloatArray]], weights: FloatArray) -> list[FloatArray]:
    # Relative to the largest weight, equal weights become exact ones and the sum cannot overflow.
    shares = weights / weights.max()
    total = shares.sum()

    def combine(columns: list[FloatArray]) -> FloatArray:
        result = np.zeros(columns[0].size)
        scaled = np.empty_like(result)
        for column, share in zip(columns, shares, strict=True):
            np.multiply(column, share, out=scaled, dtype=np.float64)
            result += scaled
        result /= total
        return result

    return _by_block(models, combine, BLOCK)


def _middle_mean(models: list[list[FloatArray]], cut: int) -> list[FloatArray]:
    n = len(models)

    def combine(columns: list[FloatArray]) -> FloatArray:
        # Clients side by side in memory: sorting short contiguous rows is the fast case.
        values = np.ascontiguousarray(np.stack(columns).T)
        values.sort(axis=1)
        middle: FloatArray = values[:, cut : n - cut].mean(axis=1, dtype=np.float64)
        return middle

    return _by_block(models, combine, SORTED_BLOCK)


def _by_block(
    models: list[list[FloatArray]], combine: Callable[[list[FloatArray]], FloatArray], width: int
) -> list[FloatArray]:
    """Apply ``combine`` to blocks of at most ``width`` weights of every client, array by array."""
    results: list[FloatArray] = []
    for arrays in zip(*models, strict=True):
        kind = np.result_type(*{array.dtype for array in arrays})
        result = np.empty(arrays[0].size, kind if np.issubdtype(kind, np.floating) else np.float64)
        rows = [np.ravel(array) for array in arrays]
        for low in range(0, result.size, width):
            result[low : low + width] = combine([row[low : low + width] for row in rows])
        results.append(result.reshape(arrays[0].shape))
    return results
