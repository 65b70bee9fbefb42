"""Louvain as networkx 3.6 and python-louvain 0.16 run it, from an affinity matrix and without their graph objects.

The partitions are theirs, client for client. It is computed here because networkx may swap equally good clients for
ever (its issue 8739), and because 500 clients at 21 resolutions take seconds this way instead of half a minute.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import IntArray, check_matrix

Backend = Literal["networkx", "python-louvain"]
Graph = list[dict[int, float]]
Shuffle = Callable[[Any], None]
_LEAST_GAIN = 1e-7  # both libraries stop when a level gains less modularity than this


def affinity_graph(affinity: ArrayLike, *, self_loops: bool) -> Graph:
    """Return the positive affinities of each client, by neighbour."""
    checked = check_matrix(affinity, "affinities")
    checked = checked / 2 + checked.T / 2
    largest = float(checked.max())
    if not np.diagonal(checked).any() and checked.min() >= 0 and largest > 0:
        # Being at distance 0 is transitive; the missing edges of a graph are not, unless it is complete multipartite.
        absent = (checked <= 1e-9 * largest).astype(np.float32)
        if np.array_equal(absent @ absent > 0, absent > 0):
            i, j = np.unravel_index(int(np.argmax(checked)), checked.shape)
            raise ValueError(
                f"client {i} has affinity 0 to itself and {checked[i, j]} to {j}: is this a distance matrix? Turn it "
                "into similarities (cflib.distances.to_similarity), or set the diagonal of a similarity matrix"
            )
    if not self_loops:
        np.fill_diagonal(checked, 0)
    # A power of two scales without rounding, and keeps squares of very large or small weights representable.
    weights = np.ldexp(checked, -int(np.frexp(np.abs(checked).max())[1]))
    return [{other: weight for other, weight in enumerate(row) if weight > 0} for row in weights.tolist()]


def communities_of(graph: Graph, resolution: float, backend: Backend, seed: int) -> IntArray:
    """Louvain as the library runs it: its visiting order, its order of summation, its choice among ties."""
    if not 0 < resolution < np.inf:
        raise ValueError(f"resolution is {resolution}, expected a number above 0; 1 is plain modularity")
    if backend not in ("networkx", "python-louvain"):
        raise ValueError(f"backend is {backend!r}, expected 'networkx' or 'python-louvain'")
    shuffle: Shuffle = (random.Random(seed) if backend == "networkx" else np.random.RandomState(seed)).shuffle
    labels: IntArray = np.arange(len(graph))
    if not any(graph):
        return labels
    first = True
    while True:
        communities, gain = _local_moves(graph, resolution, backend, shuffle)
        if backend == "python-louvain" and gain < _LEAST_GAIN and not first:
            return labels
        # The next level's nodes are numbered, and so visited, by the founder of a community or by its first member.
        used = sorted(set(communities)) if backend == "networkx" else dict.fromkeys(communities)
        names = {old: new for new, old in enumerate(used)}
        communities = [names[old] for old in communities]
        labels, first = np.array(communities)[labels], False
        if backend == "networkx" and gain <= _LEAST_GAIN:
            return labels
        merged: Graph = [{} for _ in names]
        for node, row in enumerate(graph):
            for other, weight in row.items():
                if other >= node:
                    here, there = communities[node], communities[other]
                    merged[here][there] = merged[there][here] = merged[here].get(there, 0.0) + weight
        graph = merged


def _local_moves(graph: Graph, resolution: float, backend: Backend, shuffle: Shuffle) -> tuple[list[int], float]:
    """Move nodes between communities until nothing improves; return the communities and the modularity gained."""
    size, networkx = len(graph), backend == "networkx"
    near = [np.array([other for other in row if other != node], dtype=np.intp) for node, row in enumerate(graph)]
    links = [np.array([weight for other, weight in row.items() if other != node]) for node, row in enumerate(graph)]
    loops = np.array([row.get(node, 0.0) for node, row in enumerate(graph)])
    degrees = np.array([sum(row.values()) for row in graph]) + loops
    total = sum(degrees.tolist()) / 2
    communities, held, order = np.arange(size), degrees.copy(), list(range(size))

    def quality() -> float:
        level = zip(near, links, communities, strict=True)
        within = sum(link[communities[others] == home].sum() for others, link, home in level)
        internal, expected = (within / 2 + loops.sum()) / total, ((held / (2 * total)) ** 2).sum()
        # The two libraries weigh different terms by the resolution: this is where they part below 1.
        return float(internal - resolution * expected if networkx else resolution * internal - expected)

    start = before = quality()
    seen = set[bytes]()
    shuffle(order)
    while True:
        moved = False
        for node in order:
            home, degree, met = communities[node], degrees[node], communities[near[node]]
            towards = np.bincount(met, weights=links[node], minlength=size)
            held[home] -= degree
            if networkx:
                leave = -towards[home] / total + resolution * (held[home] * degree) / (2 * total**2)
                gains = leave + towards / total - resolution * (held * degree) / (2 * total**2)
            else:
                share = degree / (2 * total)
                leave = -towards[home] + resolution * held[home] * share
                gains = leave + towards - resolution * held * share
                drawn = np.arange(np.count_nonzero(towards))
                shuffle(drawn)
            gains[towards == 0] = 0
            best = gains.max()
            tied = np.flatnonzero(gains == best)
            if best <= 0:
                target = home
            elif len(tied) == 1:
                target = tied[0]
            else:  # the first in the library's order wins: as met, or as drawn among those met
                order_met = list(dict.fromkeys(met.tolist()))
                choices = order_met if networkx else [order_met[position] for position in drawn]
                target = next(choice for choice in choices if gains[choice] == best)
            held[target] += degree
            communities[node] = target
            moved = moved or target != home
        after = quality()
        state = communities.tobytes()
        if not moved or state in seen or (not networkx and after - before < _LEAST_GAIN):
            return communities.tolist(), after - start
        before = after
        seen.add(state)  # rounding can make each of two equal states look better than the other: stop at a repetition
        if not networkx:
            order = list(range(size))
            shuffle(order)
