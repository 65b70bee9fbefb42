"""What old updates cost: the two terms of paper 003's eq. 6, measured whenever a client reports again.

A server that keeps the last update of every client compares one of round t with one of an earlier round s. The error
against comparing two of round t is at most the way the common model has gone since (a) plus how differently the client
trains from its new starting point (b). Both can be seen the moment the client reports again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from cflib.arrays import FloatArray, Weights, flatten
from cflib.experiment import Run
from cflib.grid import Memory
from cflib.protocol import Reply
from cflib.records import Store
from cflib.studies.arms import follow
from cflib.studies.tables import kept_table


def both_ends(reply: Reply, received: Weights, trainable: Sequence[bool]) -> FloatArray:
    """Describe a client by the model it received and the one it sent ``(2, p)``, over the trainable arrays."""
    ends = (received, reply.arrays)
    return np.stack([flatten([a for a, used in zip(m, trainable, strict=True) if used]) for m in ends])


def staleness(
    spec: Run, *, store: Store | None = None, workers: int | None = None, compute: bool = True
) -> pd.DataFrame:
    """Return a row for each time that a client of this run reports again; kept like a record, since it trains.

    Of ``client`` in ``round`` (from 1), last heard in round ``since``: ``way`` (a), ``turn`` (b), and over the others
    that report in the same round the mean ``bias`` (the left side of eq. 6, absolute), the mean distance ``apart`` that
    it distorts, and the mean ``cosine_bias`` of the similarity that FLIC really uses. Without ``compute`` the table is
    empty unless it is kept already.
    """
    spec = replace(spec, method=replace(spec.method, describe=both_ends, compare=None))

    def make() -> pd.DataFrame:
        pairs = pairwise(follow(spec, workers=workers))
        rows = [row for before, after in pairs for row in measure(before.memory, after.memory, after.round)]
        return pd.DataFrame(rows)

    told = {"staleness": spec.specification}
    return kept_table(told, make, n_clients=spec.federation.n_clients, store=store, compute=compute)


def measure(before: Mapping[int, Memory], after: Mapping[int, Memory], round: int) -> Iterator[dict[str, float]]:
    """Yield the row of each client that reports again in this round (from 1)."""
    fresh = [client for client in sorted(after) if after[client].round == round - 1]
    sent = {client: after[client].description[1] - after[client].description[0] for client in fresh}
    for client in fresh:
        if client not in before:
            continue
        old, new = before[client].description, after[client].description
        stored, others = old[1] - old[0], [sent[other] for other in fresh if other != client]
        gaps = np.array([[_norm(o - stored), _norm(o - sent[client])] for o in others]).reshape(-1, 2)
        cosines = np.array([[_cosine(o, stored), _cosine(o, sent[client])] for o in others]).reshape(-1, 2)
        yield {
            "round": round,
            "client": client,
            "since": before[client].round + 1,
            "way": _norm(new[0] - old[0]),
            "turn": _norm(new[1] - old[1]),
            "bias": float(np.abs(gaps[:, 0] - gaps[:, 1]).mean()) if others else np.nan,
            "apart": float(gaps[:, 1].mean()) if others else np.nan,
            "cosine_bias": float(np.abs(cosines[:, 0] - cosines[:, 1]).mean()) if others else np.nan,
        }


def _norm(vector: FloatArray) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def _cosine(one: FloatArray, other: FloatArray) -> float:
    scale = _norm(one) * _norm(other)
    return float(one.astype(np.float64) @ other) / scale if scale > 0 else 0.0
