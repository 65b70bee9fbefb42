"""Weights, vectors and matrices: the types everything shares, and the guards at the boundary.

A model is a list of arrays in Keras order; an update or a description is a flat vector. The client axis comes first.
Every guard raises a ``ValueError`` that names the client, the value and the remedy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.integer[Any]]
BoolArray = NDArray[np.bool_]
Weights = Sequence[FloatArray]
"""One model: a list of arrays, as ``keras.Model.get_weights()`` returns it."""

BLOCK = 1 << 12  # columns handled at once: a hundred clients of them stay in the cache


def flatten(weights: Weights) -> FloatArray:
    """Join the arrays of one model into a vector ``(p,)``.

    >>> flatten([np.array([[1.0, 2.0]]), np.array([3.0])])
    array([1., 2., 3.])
    """
    return np.concatenate([np.ravel(array) for array in weights])


def unflatten(vector: FloatArray, like: Weights) -> list[FloatArray]:
    """Cut a vector ``(p,)`` into arrays shaped like those of ``like``."""
    sizes = [array.size for array in like]
    if vector.ndim != 1 or vector.size != sum(sizes):
        raise ValueError(f"vector has shape {vector.shape}, the model has {sum(sizes)} parameters: flatten it first")
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, like, strict=True)]


def subtract(weights: Weights, start: Weights) -> list[FloatArray]:
    """The update that leads from ``start`` to ``weights``, array by array."""
    return [after - before for after, before in zip(weights, start, strict=True)]


def blocks(vectors: Sequence[FloatArray] | FloatArray, width: int = BLOCK) -> Iterator[FloatArray]:
    """Yield float64 blocks of columns ``(n, <= width)``, so that no full copy is ever made."""
    for low in range(0, len(vectors[0]), width):
        yield np.stack([vector[low : low + width] for vector in vectors]).astype(np.float64, copy=False)


def check_models(models: Sequence[Weights], *, who: str = "client") -> list[list[FloatArray]]:
    """Return models as lists of arrays after checking that all are finite and shaped alike."""
    if len(models) == 0:
        raise ValueError("no models were given: pass a list with one list of arrays a client")
    checked = [[np.asarray(array) for array in model] for model in models]
    shapes = [array.shape for array in checked[0]]
    if not shapes:
        raise ValueError(f"{who} 0 has no arrays: pass the model's weights, e.g. model.get_weights()")
    for index, model in enumerate(checked):
        if [array.shape for array in model] != shapes:
            raise ValueError(
                f"{who} {index} has shapes {[array.shape for array in model]}, {who} 0 has {shapes}: "
                "all models must share one architecture"
            )
        for position, array in enumerate(model):
            _check_finite(array, f"{who} {index}, array {position}")
    return checked


def check_vectors(vectors: Sequence[ArrayLike] | FloatArray, *, who: str = "client") -> FloatArray | list[FloatArray]:
    """Check that the rows are finite vectors of one length; an array or a list of vectors is returned uncopied."""
    if isinstance(vectors, np.ndarray):
        if vectors.ndim != 2:
            raise ValueError(f"vectors have shape {vectors.shape}, expected (clients, parameters): flatten each model")
        rows: list[FloatArray] = list(vectors)
    else:
        rows = [np.asarray(row) for row in vectors]
    if not rows:
        raise ValueError("no vectors were given: pass one row a client")
    for index, row in enumerate(rows):
        if row.ndim != 1 or row.size == 0 or row.size != rows[0].size:
            raise ValueError(
                f"{who} {index} has shape {row.shape}, {who} 0 has {rows[0].shape}: use equal flat vectors"
            )
        _check_finite(row, f"{who} {index}")
    return vectors if isinstance(vectors, np.ndarray) else rows


def check_labels(labels: ArrayLike, *, noise: bool = False) -> IntArray:
    """Return labels as integers after checking that they are 0..k-1 without gaps (-1 only if ``noise``)."""
    checked = np.asarray(labels)
    if checked.ndim != 1 or checked.size == 0:
        raise ValueError(f"labels have shape {checked.shape}, expected one label a client")
    if not np.issubdtype(checked.dtype, np.integer):
        raise ValueError(f"labels have type {checked.dtype}: use integers 0..k-1")
    lowest = -1 if noise else 0
    if checked.min() < lowest:
        client = int(np.argmin(checked))
        raise ValueError(f"client {client} has label {checked[client]}, the lowest allowed is {lowest}")
    used = np.unique(checked[checked >= 0])
    if not np.array_equal(used, np.arange(len(used))):
        missing = sorted(set(range(int(used[-1]))) - set(used.tolist()))
        raise ValueError(f"labels skip {missing}: renumber them 0..k-1, e.g. with cflib.arrays.renumber")
    return checked.astype(np.int64, copy=False)


def check_matrix(matrix: ArrayLike, name: str) -> FloatArray:
    """Return a square symmetric finite matrix ``(n, n)`` in float64, or say what is wrong with it."""
    checked = np.asarray(matrix, dtype=np.float64)
    if checked.ndim != 2 or checked.shape[0] != checked.shape[1] or checked.size == 0:
        raise ValueError(f"{name} have shape {checked.shape}, expected (clients, clients)")
    if not np.isfinite(checked).all():
        i, j = np.argwhere(~np.isfinite(checked))[0]
        raise ValueError(f"{name} between clients {i} and {j} are {checked[i, j]}: leave out clients without a model")
    scale = max(1.0, float(np.abs(checked).max()))
    if (gap := np.abs(checked - checked.T)).max() > 1e-6 * scale:
        i, j = np.unravel_index(int(np.argmax(gap)), gap.shape)
        raise ValueError(f"{name} are not symmetric: {checked[i, j]} from {i} to {j}, {checked[j, i]} back")
    return checked


def check_distances(distances: ArrayLike) -> FloatArray:
    """Return a distance matrix: symmetric, not negative, diagonal zero."""
    checked = check_matrix(distances, "distances")
    if checked.min() < 0:
        i, j = np.argwhere(checked < 0)[0]
        raise ValueError(f"distance between clients {i} and {j} is {checked[i, j]} < 0: is this a similarity matrix?")
    if np.diagonal(checked).any():
        i = int(np.flatnonzero(np.diagonal(checked))[0])
        raise ValueError(f"client {i} is at distance {checked[i, i]} from itself, not 0: is this a similarity matrix?")
    return checked


def check_similarities(similarities: ArrayLike) -> FloatArray:
    """Return a similarity matrix: symmetric, each client at least as similar to itself as to any other."""
    checked = check_matrix(similarities, "similarities")
    own = np.diagonal(checked)[:, None]
    if (checked > own + 1e-6 * max(1.0, float(np.abs(checked).max()))).any():
        i, j = np.argwhere(checked > own)[0]
        raise ValueError(
            f"client {i} is more similar to {j} ({checked[i, j]}) than to itself ({checked[i, i]}): "
            "is this a distance matrix?"
        )
    return checked


def check_share(value: float, name: str, *, low: float = 0.0, high: float = 1.0) -> float:
    """Return ``value`` if it lies within ``[low, high]``."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, expected a number from {low} to {high}")
    return float(value)


def check_settings(
    function: Callable[..., Any], settings: Mapping[str, Any], what: str, *, given: Sequence[str] = ()
) -> None:
    """Raise ``ValueError`` if a function does not take these settings or lacks one, beside those ``given`` it later."""
    parameters = inspect.signature(function).parameters.values()
    takes = {one.name: one for one in parameters if one.name not in given and one.kind is not one.VAR_KEYWORD}
    unknown = sorted(set(settings) - set(takes)) if all(one.kind is not one.VAR_KEYWORD for one in parameters) else []
    missing = [name for name, one in takes.items() if one.default is one.empty and name not in settings]
    if unknown or missing:
        wrong = f"does not take {', '.join(unknown)}" if unknown else f"needs {', '.join(missing)}"
        raise ValueError(f"{what} {wrong}: its settings are {', '.join(takes) or 'none'}")


def renumber(labels: ArrayLike) -> IntArray:
    """Number the clusters 0..k-1 in the order in which clients first meet them; -1 stays -1.

    >>> renumber([7, 3, 7, -1])
    array([ 0,  1,  0, -1])
    """
    labels = np.asarray(labels)
    names: dict[int, int] = {}
    return np.array([-1 if x < 0 else names.setdefault(int(x), len(names)) for x in labels], dtype=np.int64)


def _check_finite(array: FloatArray, where: str) -> None:
    # A sum is finite unless a value is not (or the sum overflows): one cheap pass in the ordinary case.
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(array.sum(dtype=np.float64))
    if not np.isfinite(total) and not np.isfinite(array).all():
        value = array[~np.isfinite(array)].flat[0]
        raise ValueError(f"{where} holds {value}: leave this client out of the round, or lower its learning rate")
