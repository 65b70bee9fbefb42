"""How far the trusted distance depends on which of two clients is the reference (paper 000, eq. 2; L-2).

The distance divides by the norms of one client's layers, so d(i, j) and d(j, i) differ; an undirected graph has room
for one of them. The authors keep that of the client with the lower number. Would the other one have changed anything?
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from cflib.arrays import FloatArray
from cflib.distances import cross_trusted_distances
from cflib.experiment import Run
from cflib.grid import Method
from cflib.metrics import adjusted_rand
from cflib.records import Store
from cflib.studies.arms import follow
from cflib.studies.tables import kept_table


def asymmetry(spec: Run, *, store: Store | None = None, compute: bool = True) -> pd.DataFrame:
    """Return a row a round of a run that compares models by trusted distance; kept like a record, since it trains.

    ``largest`` and ``mean``: |d(i, j) - d(j, i)| over all pairs; ``relative``: the largest as a share of the mean of
    the two; ``same``: whether Louvain finds the same communities if the other client is the reference. Without
    ``compute`` the table is empty unless it is kept already.
    """

    def make() -> pd.DataFrame:
        after = (state for state in follow(spec) if state.round > 0)
        models = ([state.memory[client].description for client in state.known] for state in after)
        return pd.DataFrame(list(measure((cross_trusted_distances(m, m) for m in models), spec.method)))

    told = {"asymmetry": spec.specification}
    return kept_table(told, make, n_clients=spec.federation.n_clients, store=store, compute=compute)


def measure(matrices: Iterator[FloatArray], method: Method) -> Iterator[dict[str, float]]:
    """Yield the row of each round from its full matrix, in which row i has client i as the reference."""
    assert method.cluster is not None
    for round_, distances in enumerate(matrices, start=1):
        upper = np.triu_indices(len(distances), 1)
        one, other = distances[upper], distances.T[upper]
        gaps = np.abs(one - other)
        found = [method.cluster(_mirrored(values, len(distances))) for values in (one, other)]
        yield {
            "round": round_,
            "largest": float(gaps.max()),
            "mean": float(gaps.mean()),
            "relative": float((gaps / ((one + other) / 2)).max()),
            "same": float(adjusted_rand(*found) == 1),
        }


def _mirrored(values: FloatArray, n: int) -> FloatArray:
    matrix = np.zeros((n, n))
    matrix[np.triu_indices(n, 1)] = values
    return matrix + matrix.T
