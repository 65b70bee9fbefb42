"""A method as a row of six choices, and the state that they read.

Clustered federated learning papers differ in how they describe a client, compare descriptions, cluster, when they do,
which model they give a client, and how they combine models. Each choice is a plain function; ``Method`` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from cflib import aggregation, attribution
from cflib.arrays import FloatArray, IntArray, Weights
from cflib.protocol import Choice, Reply

Pool = Literal["replies", "memory"]


@dataclass(frozen=True)
class Memory:
    """The last description a client gave of itself, and the round it gave it in."""

    round: int
    description: Any


@dataclass(frozen=True)
class State:
    """Everything the server knows between two rounds; also the checkpoint."""

    round: int
    """Rounds finished; within a round, the number of the one under way, counted from 0."""
    models: tuple[Weights, ...]
    """One a cluster."""
    labels: IntArray
    """``(n,)`` cluster of each client, -1 where none is allotted."""
    shares: FloatArray
    """``(n, k)`` convex rows over the models: what each client receives; a NaN row lets the client choose."""
    trainable: tuple[bool, ...]
    """Which arrays of a model training changes; the others are statistics."""
    probe: Weights
    """The initial model, which newcomers train to describe themselves."""
    memory: Mapping[int, Memory] = field(default_factory=dict)
    matrix: FloatArray | None = None
    """``(n, n)`` comparisons, NaN for clients that never reported."""
    watched: tuple[float, ...] = ()
    """The number that the method follows, round by round, e.g. the clustering temperature."""
    clustered: int | None = None
    """The round of the first clustering, counted from 0."""
    flagged: frozenset[int] = frozenset()
    """Newcomers near no core client: possibly malicious, not trained."""
    excluded: Mapping[int, str] = field(default_factory=dict)
    """Clients left out of the last round, and why."""
    losses: tuple[tuple[float, ...], ...] = ()
    """Mean training loss of each cluster, round by round since it was formed."""
    stopped: frozenset[int] = frozenset()
    """Clusters that have converged and train no more."""

    @property
    def known(self) -> IntArray:
        """Ids of the clients that have described themselves, ascending."""
        return np.array(sorted(self.memory), dtype=np.int64)

    @property
    def fresh(self) -> IntArray:
        """Ids of the clients that did so in the round under way."""
        return np.array([i for i in sorted(self.memory) if self.memory[i].round == self.round], dtype=np.int64)


def own_cluster(state: State) -> FloatArray:
    """Give every client its cluster's model; one without a cluster gets the mean of all."""
    clusters = np.arange(len(state.models))  # every model has a column, even one that no client chose
    return attribution.own(np.concatenate([state.labels, clusters]))[: len(state.labels)]


def one_cluster(n_clients: int) -> IntArray:
    """Start with all clients together."""
    return np.zeros(n_clients, dtype=np.int64)


@dataclass(frozen=True)
class Method:
    """A row of the grid. A reader adapts one with ``dataclasses.replace(method, cluster=mine)``."""

    name: str = field(metadata={"determines": False})
    describe: Callable[[Reply, Weights, Sequence[bool]], Any] | None = None
    """(reply, model received, trainable arrays) -> what stands for the client; None: nothing is kept."""
    compare: Callable[[Any], FloatArray] | None = None
    """Descriptions -> ``(n, n)`` matrix; None: ``cluster`` gets the stacked descriptions themselves."""
    cluster: Callable[[FloatArray], IntArray] | None = None
    """Matrix or descriptions -> labels."""
    when: Callable[[State], list[IntArray]] | None = None
    """The sets of clients to cluster now, most rounds none; None: never."""
    give: Callable[[State], FloatArray] = own_cluster
    """The ``(n, k)`` shares of the cluster models that make each client's model; a NaN row: the client chooses."""
    combine: Callable[[Sequence[Weights], FloatArray], Weights] = aggregation.weighted_mean
    """(models, sample counts) -> one model."""

    once: bool = False
    """Cluster a single time; comparing ends with it, and describing too unless models are combined from memory."""
    inherit: bool = False
    """A new cluster starts from the old cluster's model (papers 002, 003), not from its members' models."""
    pool: Pool = "replies"
    """Combine this round's replies, or the last known model of every member (paper 000)."""
    initial: Callable[[int], IntArray] = one_cluster
    """Number of clients -> the partition to start from."""
    models: int | None = None
    """Number of independently initialised models; None: one, shared by all initial clusters."""
    choose: Choice = "only"
    """How a client that is sent several models picks one."""
    watch: Callable[[FloatArray], float] | None = None
    """Matrix -> a number followed over rounds until the first clustering."""
    probe: bool = False
    """The first round only asks every client to describe itself (paper 002)."""
    admit: Callable[[State, Any], int] | None = None
    """(state, a newcomer's description) -> its cluster, or -1 to flag it."""

    def __post_init__(self) -> None:
        for name, kind in (("pool", Pool), ("choose", Choice)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(get_args(kind))}")
        if self.models is not None and self.models < 1:
            raise ValueError(f"models is {self.models}: a method starts from one at least, or None for the usual one")
        if (self.cluster is None) != (self.when is None):
            there, missing = ("cluster", "when") if self.when is None else ("when", "cluster")
            raise ValueError(f"{self.name} has {there} but not {missing}: set both, or neither")
        needing = [name for name in ("compare", "cluster") if getattr(self, name) is not None]
        needing += ["pool='memory'"] if self.pool == "memory" else []
        if needing and self.describe is None:
            raise ValueError(f"{self.name} has {needing[0]} but nothing to describe clients: set describe")
        if self.watch is not None and self.compare is None:
            raise ValueError(f"{self.name} watches the matrix of comparisons but makes none: set compare")
