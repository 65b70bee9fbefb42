"""The cells of the grid: how to describe a client, cluster, when, what to give, how to combine, where to start.

Plain functions with keyword settings; a method binds them with ``functools.partial``, so that a row can be printed,
hashed and changed one cell at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from scipy.spatial import cKDTree

from cflib import aggregation, attribution, clustering
from cflib.arrays import FloatArray, IntArray, Weights, blocks, flatten, subtract
from cflib.distances import cross_trusted_distances, to_similarity
from cflib.grid import State, own_cluster
from cflib.protocol import Reply

Arm = Literal["corrected", "as_published"]
"""The corrected reading of a paper, or what the authors' code does where it contradicts the text."""

# ---- describe: what stands for a client ------------------------------------------------------------------------


def model(reply: Reply, received: Weights, trainable: Sequence[bool]) -> Weights:
    """Describe a client by the model it sent."""
    return reply.arrays


def update(reply: Reply, received: Weights, trainable: Sequence[bool]) -> FloatArray:
    """Describe a client by its update, trained minus received, over the trainable arrays."""
    return flatten([gap for gap, used in zip(subtract(reply.arrays, received), trainable, strict=True) if used])


def update_with_statistics(reply: Reply, received: Weights, trainable: Sequence[bool]) -> FloatArray:
    """Describe a client as paper 004's code does: statistics and a step counter for each normalisation layer too (O-8).

    A layer has two statistics, so half as many counters as arrays that are not trained; each grows by the number of
    steps and dwarfs the weights.
    """
    counters = np.full(sum(not used for used in trainable) // 2, reply.scores.get("steps", 0.0), dtype=np.float32)
    return flatten([*subtract(reply.arrays, received), counters])


def last_bias(reply: Reply, received: Weights, trainable: Sequence[bool]) -> FloatArray:
    """Describe a client by the bias of its last layer (paper 002)."""
    return np.array(reply.arrays[-1])


# ---- cluster: from a matrix to labels --------------------------------------------------------------------------


def communities(distances: FloatArray, *, power: float = 3, **options: Any) -> IntArray:
    """Run Louvain on the normalised distances turned into similarities and raised to a power (paper 000)."""
    return clustering.louvain(to_similarity(distances, power=power), **options)


def agreed_communities(distances: FloatArray, *, power: float = 3, **options: Any) -> IntArray:
    """Run Louvain at 21 resolutions and keep the pairs that most of them join (paper 001)."""
    return clustering.agreement(to_similarity(distances, power=power), **options)


def dense_clusters(distances: FloatArray, *, share: float = 0.2) -> IntArray:
    """Run HDBSCAN with a minimum size of a share of the clients; noise is one more cluster (paper 004)."""
    return clustering.hdbscan(distances, min_cluster_size=max(2, round(share * len(distances))), noise="together")


def exemplars(distances: FloatArray, *, arm: Arm = "corrected") -> IntArray:
    """Run affinity propagation on cosines; as published, on the distances themselves (O-7)."""
    if arm == "as_published":
        return clustering.affinity_propagation(distances, as_published=True)
    return clustering.affinity_propagation(1 - distances)


def merged(distances: FloatArray, *, threshold: float, arm: Arm = "corrected") -> IntArray:
    """Merge by average linkage up to a threshold; as published, the cosines are taken for distances (O-7).

    There only 25 names are at hand: the clients of further clusters belong to none and are never updated again (O-25).
    """
    if arm == "as_published":
        return clustering.agglomerative(1 - distances, threshold=threshold, as_published=True, names=25)
    return clustering.agglomerative(distances, threshold=threshold)


# ---- when: the sets of clients to cluster now ------------------------------------------------------------------


def every_round(state: State) -> list[IntArray]:
    """Cluster all known clients in every round."""
    return [state.known]


def at_round(state: State, *, round: int) -> list[IntArray]:
    """Cluster all known clients after this many rounds, or after the next one in which anybody replies."""
    return [state.known] if state.clustered is None and state.round + 1 >= round else []


def until_round(state: State, *, round: int) -> list[IntArray]:
    """Cluster all known clients in every round up to this one, and no more."""
    return [state.known] if state.round + 1 <= round else []


def first_rise(state: State) -> list[IntArray]:
    """Cluster when the temperature rises for the first time (paper 004's code)."""
    return [state.known] if len(state.watched) > 1 and state.watched[-1] > state.watched[-2] else []


def first_fall(state: State) -> list[IntArray]:
    """Cluster when the temperature falls for the first time (paper 004, section III-C)."""
    return [state.known] if len(state.watched) > 1 and state.watched[-1] < state.watched[-2] else []


def algorithm_1(state: State) -> list[IntArray]:
    """Cluster when the temperature is no lower than before, starting from minus infinity: in the first round (004)."""
    return [state.known] if (-np.inf, *state.watched)[-1] >= (-np.inf, *state.watched)[-2] else []


def stationary_but_divided(
    state: State, *, eps1: float, eps2: float, cooldown: int, smallest: int = 3
) -> list[IntArray]:
    """Split the clusters whose mean update is small while some member's is large (Sattler et al., 2020)."""
    if state.round <= cooldown:
        return []
    known, fresh, sets = state.known, state.fresh, []
    for cluster in range(len(state.models)):
        here = fresh[state.labels[fresh] == cluster]
        if len(here) < smallest:
            continue
        updates = [state.memory[i].description for i in here]
        mean_norm = np.sqrt(sum(float((block.mean(axis=0) ** 2).sum()) for block in blocks(updates)))
        largest = max(float(np.linalg.norm(update)) for update in updates)
        if mean_norm < eps1 and largest > eps2:
            sets.append(known[state.labels[known] == cluster])  # absent members go where their last update leads
    return sets


# ---- give: which model a client receives -----------------------------------------------------------------------


def average(state: State) -> FloatArray:
    """Give everyone the unweighted mean of the community models."""
    n, k = len(state.labels), len(state.models)
    return np.full((n, k), 1 / k)


def nearest(
    state: State,
    *,
    k: int = 1,
    beta: float = 1.0,
    compare: Callable[[Sequence[Weights], Sequence[Weights]], FloatArray] = cross_trusted_distances,
    since: int = 1,
) -> FloatArray:
    """Give a known client the community model nearest to its own, or a blend of the k nearest; others the mean.

    ``compare`` measures from clients to communities. Before ``since`` rounds are finished everyone gets the mean.
    """
    rows, known = average(state), state.known
    if len(known) and state.round >= since:
        distances = compare([state.memory[i].description for i in known], state.models)
        rows[known] = (
            attribution.nearest(distances) if k == 1 else attribution.weighted_nearest(distances, k=k, beta=beta)
        )
    return rows


def average_then_own(state: State, *, round: int) -> FloatArray:
    """Give everyone the mean of the community models up to a round, and from then on their own community's."""
    return average(state) if state.round < round else own_or_best(state)


def client_chooses(state: State) -> FloatArray:
    """Send every client all models and let it choose (IFCA)."""
    return np.full((len(state.labels), len(state.models)), np.nan)


def own_or_best(state: State) -> FloatArray:
    """Give a clustered client its cluster's model; one that was never sampled chooses among all (paper 003).

    Right after the clustering all clusters hold the same model and there is nothing to choose: it gets that one.
    """
    rows = own_cluster(state)
    if any(model is not state.models[0] for model in state.models):
        rows[state.labels < 0] = np.nan
    return rows


def near_core(state: State, description: FloatArray, *, eps: float, min_samples: int = 2) -> int:
    """Admit a newcomer to the cluster of a core client within eps, else flag it with -1 (paper 002)."""
    members = [i for i in state.known if state.labels[i] >= 0]
    vectors = np.stack([state.memory[i].description for i in members])
    labels = state.labels[members]
    core = cKDTree(vectors).query_ball_point(vectors, eps, return_length=True) >= min_samples
    if not core.any():
        return -1
    return int(attribution.nearest_core(description[None], vectors[core], labels[core], eps=eps)[0])


def nearest_member(state: State, description: FloatArray) -> int:
    """Admit a newcomer to the cluster of the nearest client, however far."""
    members = [i for i in state.known if state.labels[i] >= 0]
    gaps = [float(np.linalg.norm(state.memory[i].description - description)) for i in members]
    return int(state.labels[members[int(np.argmin(gaps))]])


# ---- combine, and where to start -------------------------------------------------------------------------------


def plain_mean(models: Sequence[Weights], samples: FloatArray) -> Weights:
    """Average models, every client counting the same."""
    return aggregation.mean(models)


def plain_median(models: Sequence[Weights], samples: FloatArray) -> Weights:
    """Take the median of every weight, every client counting the same."""
    return aggregation.median(models)


def plain_trimmed_mean(models: Sequence[Weights], samples: FloatArray, *, share: float) -> Weights:
    """Average what is left of every weight after cutting a share at both ends."""
    return aggregation.trimmed_mean(models, share=share)


def plain_krum(models: Sequence[Weights], samples: FloatArray, *, attackers: int) -> Weights:
    """Take the one model nearest to its neighbours."""
    return aggregation.krum(models, attackers=attackers)


def each_alone(n_clients: int) -> IntArray:
    """Start with every client in a cluster of its own."""
    return np.arange(n_clients)


def unallotted(n_clients: int) -> IntArray:
    """Start with no client in any cluster."""
    return np.full(n_clients, -1)


def given(n_clients: int, *, labels: Sequence[int]) -> IntArray:
    """Start from a known partition."""
    if len(labels) != n_clients:
        raise ValueError(f"{len(labels)} labels for {n_clients} clients: give one label a client")
    return np.asarray(labels, dtype=np.int64)
