"""One-shot clustering told from one run that never clusters (paper 004): when, into what, and how it goes on.

Up to the shot every variant of OCFL trains as no clustering does, and after it equal partitions train alike. So one
watched run gives the round of every trigger and, from its matrices, the partition of every clusterer in any round; only
what differs in partition or round is trained, from the watched run's models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cflib import choices, methods, metrics
from cflib.arrays import FloatArray, IntArray
from cflib.choices import Arm
from cflib.experiment import Run
from cflib.grid import Method, State, own_cluster
from cflib.places import folder
from cflib.records import Record
from cflib.simulation import Attendance
from cflib.studies.hindsight import regroup

Variant = Literal["kmeans", "affinity", "mean_shift", "hdbscan"]
OCFL: dict[str, Variant] = {
    "KM": "kmeans",
    "AFF": "affinity",
    "MS": "mean_shift",
    "HDB": "hdbscan",
}
"""OCFL's variants by the names of table I."""

SCORES = {"ari": "adjusted_rand", "ami": "adjusted_mutual_information", "homogeneity": "homogeneity"}
"""The columns of table I, and of a record's rounds."""

GUESS = 2 / 110
"""Macro F1 of always the same answer where ten classes are equally large: about that of an untrained network."""


def watching(arm: Arm = "corrected") -> Method:
    """OCFL that measures the temperature and never clusters: the paper's baseline."""
    return replace(methods.ocfl(arm=arm), name="no clustering", cluster=None, when=None, give=own_cluster, once=False)


def shot_round(temperatures: ArrayLike, trigger: str = "first_rise") -> int | None:
    """Return the round, counted from 1, in which a trigger of ``methods.TRIGGERS`` fires; None if it never does.

    >>> shot_round([0.4353, 0.3323, 0.3938]), shot_round([0.3, 0.2]), shot_round([0.3, 0.2], "first_fall")
    (3, None, 2)
    """
    if trigger not in methods.TRIGGERS:
        raise ValueError(f"trigger is {trigger!r}, expected one of {sorted(methods.TRIGGERS)}")
    watched = tuple(float(value) for value in np.asarray(temperatures))
    nobody = State(0, (), np.zeros(0, dtype=np.int64), np.zeros((0, 0)), (), [])
    for round in range(1, len(watched) + 1):
        if methods.TRIGGERS[trigger](replace(nobody, round=round - 1, watched=watched[:round])):
            return round
    return None


def go_on(base: Run, labels: ArrayLike, round: int) -> Run:
    """Return the run that is clustered into ``labels`` in a round and then goes on to the end of ``base``.

    The round itself already combines by cluster, as OCFL's shot does. One cluster changes nothing: ``base`` itself.
    Clients without a cluster (-1) are one more, which is never heard again and keeps its model (O-25).
    """
    dropped, found = np.flatnonzero(np.asarray(labels) < 0).tolist(), together(labels)
    if (found == found[0]).all():
        return base
    method = replace(methods.oracle(found.tolist()), combine=base.method.combine)
    branch = replace(base, method=method, start=(base, round - 1) if round > 1 else None)
    if not dropped:
        return branch
    return replace(branch, attendance=Attendance(silent=dict.fromkeys(range(round - 1, base.rounds), tuple(dropped))))


def together(labels: ArrayLike) -> IntArray:
    """Return labels in which the clients without a cluster make one of their own: so table I of paper 004 scores them.

    >>> together([0, -1, 1, -1])
    array([0, 2, 1, 2])
    """
    found = np.asarray(labels)
    return np.where(found < 0, found.max() + 1, found)


def split_later(base: Run, eps1: float, eps2: float, *, cooldown: int, arm: Arm) -> Run:
    """Return Sattler's method going on from ``base`` where it may split first; ``base`` itself if that is too late."""
    if cooldown + 1 >= base.rounds:
        return base
    method = methods.sattler(eps1=eps1, eps2=eps2, cooldown=cooldown, arm=arm)
    return replace(base, method=method, start=(base, cooldown + 1))


def entrants(
    base: Run,
    watched: Record,
    *,
    arm: Arm,
    late: int,
    sattler: Mapping[str, tuple[float, float, int]],
    briggs: Mapping[str, float],
) -> dict[str, Run]:
    """Return for every algorithm of table I the run that continues ``base``, whose record is ``watched``.

    ``sattler`` names e1, e2 and the cooldown, ``briggs`` single thresholds; Briggs clusters in round ``late``. Those
    whose clusters are often alike come first: neighbours share work.
    """
    shot = shot_round(watched.rounds["watched"])
    found = partitions(watched, shot, arm=arm)
    runs = {"BNC": base, **{name: base if shot is None else go_on(base, found[name], shot) for name in found}}
    for name, threshold in briggs.items():
        runs[name] = go_on(base, choices.merged(watched.matrix(late), threshold=threshold, arm=arm), late)
    for name, (eps1, eps2, cooldown) in sattler.items():
        runs[name] = split_later(base, eps1, eps2, cooldown=cooldown, arm=arm)
    return runs


def partitions(watched: Record, round: int | None, *, arm: Arm = "corrected") -> dict[str, IntArray]:
    """Return what each of OCFL's variants makes of the matrix of a round; of none, a single cluster."""
    if round is None:
        return dict.fromkeys(OCFL, np.zeros(watched.labels.shape[1], dtype=np.int64))
    return {name: regroup(watched, _clusterer(how, arm), rounds=[round])[0] for name, how in OCFL.items()}


def hindsight_scores(
    watched: Record, truth: ArrayLike, *, arm: Arm = "corrected", variants: Sequence[str] = tuple(OCFL)
) -> pd.DataFrame:
    """Return the ARI that each variant would have had if it had clustered in a round: a row a round, from 1."""
    found = {name: regroup(watched, _clusterer(OCFL[name], arm)) for name in variants}
    scores = {name: [metrics.adjusted_rand(truth, row) for row in rows] for name, rows in found.items()}
    return pd.DataFrame(scores, index=pd.Index(watched.kept, name="round"))


def told_by_shot(watched: Record, truth: ArrayLike, *, arm: Arm = "corrected", first: int = 50) -> dict[str, float]:
    """Return the ARI of table I that the shot alone determines, for each variant: clusters once made stay.

    NaN where the trigger has not fired in the rounds at hand.
    """
    shot = shot_round(watched.rounds["watched"])
    if shot is None:
        return dict.fromkeys(OCFL, np.nan)
    share = max(0, first - shot + 1) / first
    return {name: share * metrics.adjusted_rand(truth, one) for name, one in partitions(watched, shot, arm=arm).items()}


def whole(before: Record, after: Record, truth: ArrayLike) -> pd.DataFrame:
    """Return the rounds of a run together with those of the run it continues, and the plain Rand index of each."""
    first = int(after.rounds["round"].min())
    rounds = pd.concat([before.rounds[before.rounds["round"] < first], after.rounds], ignore_index=True)
    labels = [*before.labels[: first - 1], *after.labels]
    return rounds.assign(rand=[metrics.plain_rand(truth, row) for row in labels])


def summarise(rounds: pd.DataFrame, *, first: int = 50, settled: bool = False) -> dict[str, float]:
    """Return a cell of table I and of figure 2: means over rounds, the scores over the ``first`` only (O-10).

    ``settled`` says that clusters once made stay: rounds up to ``first`` that were not run count as the last one.
    ``pf1`` and ``gf1`` are the means over clients and rounds of the F1 on own and on the server's test data, ``gap``
    their distance (eq. 5); the two that lag take the general F1 of the models of one round before, the first of which
    is untrained (O-24). ``shot`` is the first round with more than one cluster (NaN: none).
    """
    early, divided = rounds[rounds["round"] <= first], rounds.loc[rounds["clusters"] > 1, "round"]
    missing = first - len(rounds) if settled and len(divided) else 0
    weights = np.append(np.ones(len(early) - 1), 1 + max(0, missing))
    pf1, gf1 = float(rounds["f1_received"].mean()), float(rounds["f1_general"].mean())
    lagging = float(np.mean([GUESS, *rounds["f1_general"].iloc[:-1]]))
    return {
        **{name: float(np.average(early[column], weights=weights)) for name, column in SCORES.items()},
        **{name: float(np.average(early[name], weights=weights)) for name in ("completeness", "rand")},
        "ari_all": float(rounds["adjusted_rand"].mean()),
        "pf1": pf1,
        "gf1": gf1,
        "gf1_lagging": lagging,
        "gap": metrics.learning_gap(pf1, gf1),
        "gap_lagging": metrics.learning_gap(pf1, lagging),
        "shot": float(divided.min()) if len(divided) else np.nan,
        "clusters": float(rounds["clusters"].iloc[-1]),
        "ari_final": float(rounds["adjusted_rand"].iloc[-1]),
    }


def published_table() -> pd.DataFrame:
    """Return table I of paper 004 by data set, number of clients, split and algorithm, e.g. "separate balanced"."""
    return _reference("ocfl_table1.csv")[list(SCORES)]


def archived_runs() -> pd.DataFrame:
    """Return what paper 004 does not print but its authors' archive has, for the same cells and the baseline.

    ``shot`` is the first round with more than one cluster (NaN: none), ``clusters`` their number at the end; ``pf1``
    and ``gf1`` are means over clients and rounds.
    """
    return _reference("ocfl_archive.csv")[["shot", "clusters", "pf1", "gf1"]]


def _reference(name: str) -> pd.DataFrame:
    table = pd.read_csv(folder("reference", "CFLIB_REFERENCE") / name)
    overlap = table["overlap"].map({True: "overlapping", False: "separate"})
    split = overlap + " " + table["balance"].map({True: "balanced", False: "imbalanced"})
    return table.assign(split=split).set_index(["dataset", "clients", "split", "algorithm"]).sort_index()


def temperature_shape(temperatures: ArrayLike) -> dict[str, bool]:
    """Tell whether a temperature drops at first, rises sharply, and is stable from round 20 (claim O18, 50 rounds)."""
    values = np.asarray(temperatures, dtype=np.float64)
    if len(values) < 21:
        raise ValueError(f"the series has {len(values)} rounds: stability from round 20 needs more, paper 004 has 50")
    low, last = int(values.argmin()), values[-1]
    half = values[low] + (last - values[low]) / 2
    return {
        "drops at first": bool(values[1] < values[0]),
        "rises sharply": bool(low + 1 < 20 and values[low : low + 11].max() >= half and last > values[low]),
        "stable from round 20": bool((np.abs(values[19:] - last) <= 0.05 * last).all()),
    }


def _clusterer(how: Variant, arm: Arm) -> Callable[[FloatArray], IntArray]:
    cluster = methods.ocfl(how, arm=arm).cluster
    assert cluster is not None
    return cluster
