"""A federation to see through: clients fit one slope each, the server averages them (paper 003, fig. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cflib.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class Course:
    """How the weights move: ``common`` ``(rounds + 1,)``, the first one included, and ``own`` ``(rounds, clients)``.

    ``own`` are the clients' weights after their local training, before the server averages them.
    """

    common: FloatArray
    own: FloatArray


def fit_slopes(
    slopes: Sequence[float],
    *,
    rng: np.random.Generator,
    rounds: int = 10,
    epochs: int = 10,
    samples: int = 50,
    batch: int = 10,
    rate: float = 0.01,
    noise: float = 1.0,
) -> Course:
    """Train ``y = w x`` by FedAvg from w = 0; client k has ``samples`` points of ``y = slopes[k] x`` plus noise.

    Inputs and noise are normal. Clients take minibatch steps on the mean squared error, as many passes a round as
    ``epochs``, and all count the same.
    """
    counts = {"rounds": rounds, "epochs": epochs, "samples": samples, "batch": batch}
    if not len(slopes) or min(counts.values()) < 1 or not rate > 0:
        raise ValueError(f"slopes {list(slopes)}, {counts}, rate {rate}: expected one slope or more, numbers above 0")
    x = rng.normal(size=(len(slopes), samples))
    y = np.asarray(slopes, dtype=float)[:, None] * x + noise * rng.normal(size=x.shape)
    common, own = np.zeros(rounds + 1), np.zeros((rounds, len(slopes)))
    for number in range(rounds):
        for client in range(len(slopes)):
            w = common[number]
            for _ in range(epochs):
                order = rng.permutation(samples)
                for part in (order[low : low + batch] for low in range(0, samples, batch)):
                    inputs = x[client, part]
                    w -= rate * 2 * np.mean((w * inputs - y[client, part]) * inputs)
            own[number, client] = w
        common[number + 1] = own[number].mean()
    return Course(common, own)
