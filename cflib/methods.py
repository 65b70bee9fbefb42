"""The published methods, each a row of the grid: ``ocfl()`` returns a ``Method``; ``table()`` lists them all.

``arm="as_published"`` keeps what the authors' code does where it contradicts the text; the default is the corrected
reading. To adapt a method, replace a cell: ``dataclasses.replace(ocfl(), cluster=mine)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from cflib import aggregation, choices, clustering
from cflib.arrays import FloatArray, IntArray, Weights, check_settings
from cflib.choices import Arm
from cflib.distances import (
    clustering_temperature,
    cosine_distances,
    cross_model_cosine_distances,
    cross_trusted_distances,
    model_cosine_distances,
    shifted_cosine,
    trusted_distances,
)
from cflib.grid import Method, State, own_cluster

Combine = Callable[[Sequence[Weights], FloatArray], Weights]


def _backend(arm: Arm) -> str:
    """The Louvain of an arm: the authors of papers 000 and 001 use python-louvain."""
    return "python-louvain" if _published(arm) else "networkx"


def _update(arm: Arm) -> Callable[..., FloatArray]:
    """The description of an arm: paper 004's code measures statistics and counters too."""
    return choices.update_with_statistics if _published(arm) else choices.update


def _published(arm: Arm) -> bool:
    if arm not in ("corrected", "as_published"):
        raise ValueError(f"arm is {arm!r}, expected 'corrected' or 'as_published'")
    return arm == "as_published"


def fedavg(*, combine: Combine = aggregation.weighted_mean) -> Method:
    """One model for all (McMahan et al., 2017); pass another ``combine`` for a robust baseline."""
    return Method("fedavg", combine=combine)


def local_only() -> Method:
    """Every client trains alone."""
    return Method("local_only", initial=choices.each_alone)


def oracle(labels: Sequence[int]) -> Method:
    """Clusters known beforehand, e.g. the true groups, or those of a clustering already made."""
    return Method("oracle", initial=partial(choices.given, labels=tuple(int(x) for x in labels)))


MODEL_DISTANCES: dict[str, tuple[Callable[..., FloatArray], Callable[..., FloatArray]]] = {
    "trusted": (trusted_distances, cross_trusted_distances),
    "kernels": (partial(trusted_distances, arrays="kernels"), partial(cross_trusted_distances, arrays="kernels")),
    "cosine": (model_cosine_distances, cross_model_cosine_distances),
}
"""Distances between models: among clients, and from clients to community models."""
Distance = Literal["trusted", "kernels", "cosine"]


def _comparing(distance: Distance) -> tuple[Callable[..., FloatArray], Callable[..., FloatArray]]:
    """How to compare clients by a distance, and how to give each the nearest community's model by the same."""
    if distance not in MODEL_DISTANCES:
        raise ValueError(f"distance is {distance!r}, expected one of {sorted(MODEL_DISTANCES)}")
    compare, cross = MODEL_DISTANCES[distance]
    return compare, choices.nearest if distance == "trusted" else partial(choices.nearest, compare=cross)


def louvain_cfl(
    give: Literal["avg", "1nn", "wnn"] = "1nn",
    *,
    resolution: float = 1.0,
    power: float = 3,
    distance: Distance = "trusted",
    arm: Arm = "corrected",
) -> Method:
    """Louvain communities every round (paper 000).

    ``distance``: trusted over all arrays, trusted over kernels alone (without biases and batch normalisation), or the
    cosine distance. As published: with python-louvain, and WNN one round later than 1NN (L-7).
    """
    backend, (compare, nearest) = _backend(arm), _comparing(distance)
    gives: dict[str, Callable[[State], FloatArray]] = {
        "avg": choices.average,
        "1nn": nearest,
        "wnn": partial(nearest, k=3, beta=1.0, since=2 if _published(arm) else 1),
    }
    if give not in gives:
        raise ValueError(f"give is {give!r}, expected one of {sorted(gives)}")
    return Method(
        f"louvain_cfl_{give}",
        describe=choices.model,
        compare=compare,
        cluster=partial(choices.communities, resolution=resolution, power=power, backend=backend),
        when=choices.every_round,
        give=gives[give],
        combine=choices.plain_mean,
        pool="memory",
    )


def late(*, round: int = 10, resolution: float = 1.0, power: float = 3, arm: Arm = "corrected") -> Method:
    """AVG up to a round, then the communities of that round apart (paper 000's Late)."""
    return Method(
        "late",
        describe=choices.model,
        compare=trusted_distances,
        cluster=partial(choices.communities, resolution=resolution, power=power, backend=_backend(arm)),
        when=partial(choices.until_round, round=round),
        give=partial(choices.average_then_own, round=round),
        combine=choices.plain_mean,
        pool="memory",
        choose="accuracy",
    )


def agreement_cfl(
    *, threshold: float = 0.6, power: float = 3, distance: Distance = "trusted", arm: Arm = "corrected"
) -> Method:
    """Communities on which most of 21 resolutions agree, every round (paper 001); ``distance`` as in Louvain CFL."""
    backend, (compare, nearest) = _backend(arm), _comparing(distance)
    return Method(
        "agreement_cfl",
        describe=choices.model,
        compare=compare,
        cluster=partial(choices.agreed_communities, threshold=threshold, power=power, backend=backend),
        when=choices.every_round,
        give=nearest,
        combine=choices.plain_mean,
        pool="memory",
    )


def bias_clustering(
    algorithm: Literal["dbscan", "optics", "kmeans"] = "dbscan", *, eps: float = 0.0279, n_clusters: int = 3
) -> Method:
    """Clusters of last-layer biases after one probe round; newcomers are admitted or flagged (paper 002)."""
    clusters = {
        "dbscan": partial(clustering.dbscan, eps=eps, min_samples=2),
        "optics": partial(clustering.optics, min_samples=2),
        "kmeans": partial(clustering.kmeans, n_clusters=n_clusters),
    }
    if algorithm not in clusters:
        raise ValueError(f"algorithm is {algorithm!r}, expected one of {sorted(clusters)}")
    return Method(
        f"bias_clustering_{algorithm}",
        describe=choices.last_bias,
        cluster=clusters[algorithm],
        when=choices.every_round,
        once=True,
        inherit=True,
        probe=True,
        admit=partial(choices.near_core, eps=eps) if algorithm == "dbscan" else choices.nearest_member,
    )


def flic(
    *,
    round: int = 200,
    self_loops: bool = True,
    combine: Combine = aggregation.weighted_mean,
) -> Method:
    """Louvain on the last update of every client seen so far, once; clusters start from the common model (003)."""
    return Method(
        "flic",
        describe=choices.update,
        compare=shifted_cosine,
        cluster=partial(clustering.louvain, self_loops=self_loops),
        when=partial(choices.at_round, round=round),
        give=choices.own_or_best,
        combine=combine,
        once=True,
        inherit=True,
        choose="accuracy",
    )


TRIGGERS = {"first_rise": choices.first_rise, "algorithm_1": choices.algorithm_1, "first_fall": choices.first_fall}


def ocfl(
    algorithm: Literal["hdbscan", "mean_shift", "kmeans", "affinity"] = "hdbscan",
    *,
    trigger: Literal["first_rise", "algorithm_1", "first_fall"] = "first_rise",
    n_clusters: int = 3,
    share: float = 0.2,
    arm: Arm = "corrected",
) -> Method:
    """One clustering of the updates at the moment the temperature tells (paper 004)."""
    clusters: dict[str, Callable[[FloatArray], IntArray]] = {
        "hdbscan": partial(choices.dense_clusters, share=share),
        "mean_shift": clustering.mean_shift,
        "kmeans": partial(clustering.kmeans, n_clusters=n_clusters),
        "affinity": partial(choices.exemplars, arm=arm),
    }
    if algorithm not in clusters or trigger not in TRIGGERS:
        raise ValueError(f"{algorithm!r}, {trigger!r}: expected one of {sorted(clusters)} and of {sorted(TRIGGERS)}")
    return Method(
        f"ocfl_{algorithm}",
        describe=_update(arm),
        compare=cosine_distances,
        cluster=clusters[algorithm],
        when=TRIGGERS[trigger],
        give=choices.own_or_best,
        combine=choices.plain_mean,
        once=True,
        choose="accuracy",
        watch=clustering_temperature,
    )


def sattler(*, eps1: float = 0.35, eps2: float = 0.35, cooldown: int = 20, arm: Arm = "corrected") -> Method:
    """Recursive bipartition of clusters that stand still but are divided.

    The settings are those that paper 004 states; its script has 2.5, 1.0 and 40, Sattler et al. 0.4, 1.6 and 20.
    """
    return Method(
        "sattler",
        describe=_update(arm),
        compare=cosine_distances,
        cluster=clustering.bipartition,
        when=partial(choices.stationary_but_divided, eps1=eps1, eps2=eps2, cooldown=cooldown),
        give=choices.own_or_best,
        combine=choices.plain_mean,
        choose="accuracy",
    )


def briggs(*, round: int = 21, threshold: float = 0.05, arm: Arm = "corrected") -> Method:
    """Agglomerative clustering of the updates once, after some rounds; as paper 004 runs it."""
    return Method(
        "briggs",
        describe=_update(arm),
        compare=cosine_distances,
        cluster=partial(choices.merged, threshold=threshold, arm=arm),
        when=partial(choices.at_round, round=round),
        give=own_cluster if _published(arm) else choices.own_or_best,
        combine=choices.plain_mean,
        once=True,
        choose="accuracy",
    )


def ifca(n_models: int = 2) -> Method:
    """Clients choose among several models the one with the lowest loss (Ghosh et al., 2020)."""
    return Method(
        "ifca",
        give=choices.client_chooses,
        combine=choices.plain_mean,
        initial=choices.unallotted,
        models=n_models,
        choose="loss",
    )


ROWS: dict[str, Callable[[], Method]] = {
    "fedavg": fedavg,
    "local_only": local_only,
    "oracle": partial(oracle, labels=()),
    "louvain_cfl_avg": partial(louvain_cfl, "avg"),
    "louvain_cfl_1nn": partial(louvain_cfl, "1nn"),
    "louvain_cfl_wnn": partial(louvain_cfl, "wnn"),
    "late": late,
    "agreement_cfl": agreement_cfl,
    "bias_clustering_dbscan": partial(bias_clustering, "dbscan"),
    "bias_clustering_optics": partial(bias_clustering, "optics"),
    "bias_clustering_kmeans": partial(bias_clustering, "kmeans"),
    "flic": flic,
    "ocfl_hdbscan": partial(ocfl, "hdbscan"),
    "ocfl_mean_shift": partial(ocfl, "mean_shift"),
    "ocfl_kmeans": partial(ocfl, "kmeans"),
    "ocfl_affinity": partial(ocfl, "affinity"),
    "sattler": sattler,
    "briggs": briggs,
    "ifca": ifca,
}
"""Every method by name, with its default settings; call one with keywords to change them."""


def get(name: str, **settings: Any) -> Method:
    """Return a method by name, e.g. ``get("flic", round=50)``."""
    if name not in ROWS:
        raise ValueError(f"no method {name!r}: there are {', '.join(ROWS)}")
    check_settings(ROWS[name], settings, name)
    return ROWS[name](**settings)


def table() -> list[dict[str, str]]:
    """Return the grid: for every method its six choices in words a reader can look up in the source."""
    cells = ("describe", "compare", "cluster", "when", "give", "combine")
    rows = []
    for name, make in ROWS.items():
        method = make()
        row = {cell: spell(getattr(method, cell)) for cell in cells}
        if method.cluster is None:
            row["cluster"] = "chosen by the client" if method.models else spell(method.initial)
        rows.append({"method": name, **row})
    return rows


def spell(choice: Any) -> str:
    """Write a function and its bound settings, e.g. ``at_round(round=200)``.

    >>> spell(partial(choices.at_round, round=200))
    'at_round(round=200)'
    """
    if choice is None:
        return "-"
    if not isinstance(choice, partial):
        return str(choice.__name__)
    settings = ", ".join(f"{key}={value}" for key, value in choice.keywords.items())
    return f"{choice.func.__name__}({settings})"
