"""Runs that go on from one common run: watched FedAvg, and what may follow from any of its rounds.

A one-shot method is FedAvg up to its clustering. So FedAvg is run once, keeping FLIC's matrix, and the clusters of any
round and reading, the clients that were never drawn, or a round in which all report, start from its models.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from cflib import aggregation, choices, methods
from cflib.arrays import check_labels
from cflib.experiment import Run
from cflib.methods import Combine
from cflib.simulation import Attendance


def watched(spec: Run) -> Run:
    """Return the same run with FLIC's similarities kept beside it; they change nothing in the training."""
    flic = methods.flic()
    return replace(spec, method=replace(spec.method, describe=flic.describe, compare=flic.compare))


def continued(
    parent: Run, round: int, labels: ArrayLike, *, rounds: int, combine: Combine = aggregation.weighted_mean
) -> Run:
    """Return FLIC after its clustering: these clusters go on, each from the parent's model of this round.

    Clients with label -1 were never drawn; they stay away until they are ``admitted``.
    """
    found = check_labels(labels, noise=True)
    away = Attendance(joins={int(client): rounds for client in np.flatnonzero(found < 0)})
    initial = partial(choices.given, labels=tuple(found.tolist()))
    method = replace(
        methods.flic(combine=combine), describe=None, compare=None, cluster=None, when=None, initial=initial
    )
    return replace(parent, method=method, rounds=rounds, start=(parent, round), attendance=away)


def admitted(child: Run) -> Run:
    """Return one more round, in which the clients that were never drawn take the cluster most accurate for them."""
    unseen = child.attendance.joins
    if not unseen:
        raise ValueError("every client was drawn before the clustering: cluster earlier to have some to admit")
    others = set(range(child.federation.n_clients)) - set(unseen)
    return replace(
        child,
        rounds=child.rounds + 1,
        start=(child, child.rounds),
        schedule=replace(child.schedule, share=1.0, per="federation"),
        attendance=Attendance(leaves=dict.fromkeys(sorted(others), 0)),
    )


def asked(parent: Run, round: int) -> Run:
    """Return one more round after this one, in which all clients report: what FLIC does without."""
    return replace(
        watched(parent), rounds=round + 1, start=(parent, round), schedule=replace(parent.schedule, share=1.0)
    )
