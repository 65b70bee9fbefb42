"""What passes between the server and its clients, in one process and under Flower alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cflib.arrays import IntArray, Weights

Task = Literal["train", "describe", "evaluate"]
Choice = Literal["only", "loss", "accuracy"]


@dataclass(frozen=True)
class Job:
    """One errand for one client.

    ``train`` starts from the model and returns the trained one. ``describe`` trains too but returns the last-layer
    bias alone: nothing else leaves the client. ``evaluate`` returns the confusion matrix on the client's test data.
    With several models the client first chooses one, by lowest training loss or highest test accuracy.
    """

    client: int
    round: int
    task: Task
    models: tuple[Weights, ...]
    choose: Choice = "only"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Overrides of the local training settings, e.g. ``{"epochs": 2}`` for one cluster."""


@dataclass(frozen=True)
class Reply:
    """What a client sends back: ``arrays`` by task, the index of the model it chose, and numbers about its work."""

    client: int
    arrays: Weights
    chosen: int = 0
    samples: int = 1
    scores: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    """Why there is nothing to use, if the client or the way to it failed; the server leaves the client out."""


class Runtime(Protocol):
    """Whatever carries jobs to clients: a thread pool, or a Flower grid."""

    def present(self, round: int) -> IntArray:
        """Return the ids of the clients that can be asked in this round, ascending."""
        ...

    def map(self, jobs: Sequence[Job]) -> list[Reply]:
        """Do the jobs; replies come in client order, those of absent clients are missing."""
        ...


@dataclass(frozen=True)
class Schedule:
    """Who trains in a round, how, and until when.

    ``share`` of the clients train each round, drawn over the whole federation or within each cluster, but no fewer than
    ``least`` (Flower's servers ask for two) where there are as many. ``settings`` overrides the training of single
    clusters. A cluster whose mean training loss has not fallen by ``min_delta``
    within ``patience`` rounds stops: its clients keep receiving its model and train no more (paper 002). A round
    without any usable reply ends the run, unless it ``may_pass``: a model that attackers drove to overflow stays as it
    is.
    """

    share: float = 1.0
    per: Literal["federation", "cluster"] = "federation"
    settings: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    patience: int | None = None
    min_delta: float = 0.0
    least: int = 1
    may_pass: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, expected a number above 0 and up to 1")
        if self.per not in ("federation", "cluster"):
            raise ValueError(f"per is {self.per!r}, expected 'federation' or 'cluster'")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is {self.patience}, expected at least 1 round, or None never to stop")
        if self.least < 1:
            raise ValueError(f"least is {self.least}, expected at least 1 client")

    def count(self, clients: int) -> int:
        """Return how many of so many clients train: the nearest whole number, of two equally near ones the lower.

        >>> [Schedule(share=0.5).count(clients) for clients in (5, 6, 7)], Schedule(share=0.1).count(19)
        ([2, 3, 3], 2)
        """
        return max(self.least, math.ceil(self.share * clients - 0.5 - 1e-9))
