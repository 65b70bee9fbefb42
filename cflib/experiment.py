"""Everything that determines the result of one federated run, and its content address."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cflib.client import Attack
from cflib.federation import Federation
from cflib.grid import Method
from cflib.keys import canonical, key
from cflib.models import Network
from cflib.protocol import Schedule
from cflib.simulation import Attendance
from cflib.training import Training

View = Literal["received", "own", "global"]


@dataclass(frozen=True)
class Measures:
    """What to write down, and how often.

    ``clients``: which models are tried on every client's own test data: the one it *receives*, its *own* cluster's,
    and the *global* one, the unweighted mean of all (in the table of rounds ``accuracy_global_on_clients``).
    ``server``: which are tried on the server's test set. The former happens every ``clients_every`` rounds and in each
    of the last ``closing``, the latter every ``every``, and both after the last.
    """

    every: int = 1
    clients_every: int = 1
    clients: tuple[View, ...] = ("received",)
    server: tuple[Literal["global", "clusters"], ...] = ("global", "clusters")
    matrices_every: int = 1
    closing: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("clients", ("received", "own", "global")), ("server", ("global", "clusters"))):
            if unknown := sorted(set(getattr(self, name)) - set(allowed)):
                raise ValueError(f"measures of the {name} name {unknown}, expected some of {allowed}")
        for name in ("every", "clients_every", "matrices_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1 round")
        if self.closing < 0:
            raise ValueError(f"closing is {self.closing}, expected a number of rounds, 0 for none")


@dataclass(frozen=True)
class Run:
    """Everything that determines the result of one federated run."""

    method: Method
    federation: Federation
    network: Network
    training: Training
    rounds: int
    seed: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    attack: Attack | None = None
    attendance: Attendance = field(default_factory=Attendance)
    measures: Measures = field(default_factory=Measures)
    start: tuple[Run, int] | None = None
    """Another run and a round of it (counted from 1): this run goes on from the models it had then."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}, expected at least 1")
        if self.start is not None and not 1 <= self.start[1] < self.rounds:
            raise ValueError(f"the run starts from round {self.start[1]}, expected 1 to {self.rounds - 1}")
        if self.start is not None and not self.start[0].inherited < self.start[1] <= self.start[0].rounds:
            parent, round_ = self.start
            span = f"{parent.inherited + 1} to {parent.rounds}"
            raise ValueError(f"the run starts from round {round_} of another that computes rounds {span}: take one")
        if self.start is not None:
            self._check_parent(self.start[0])
        there = set(range(self.federation.n_clients))
        named = {
            "attack": self.attack.clients if self.attack else (),
            "attendance": [*self.attendance.joins, *self.attendance.leaves, *self.attendance.returns],
            "attendance.silent": [client for clients in self.attendance.silent.values() for client in clients],
        }
        for where, clients in named.items():
            if unknown := sorted(set(clients) - there):
                raise ValueError(f"{where} names clients {unknown}: there are 0 to {len(there) - 1}")

    def _check_parent(self, parent: Run) -> None:
        own, other = self.federation.n_clients, parent.federation.n_clients
        if own != other:
            raise ValueError(f"n_clients is {own}, but the run that it goes on from has {other}: take the same")
        if self.network != parent.network:
            raise ValueError(f"network is {self.network}, but the run that it goes on from has {parent.network}")

    @property
    def inherited(self) -> int:
        """How many rounds it takes over from another run instead of computing them."""
        return 0 if self.start is None else self.start[1]

    @property
    def specification(self) -> dict[str, Any]:
        """The run in plain terms; of a parent only what determines its first rounds."""
        plain: dict[str, Any] = canonical(replace(self, start=None))
        if self.start is not None:
            parent, round_ = self.start
            prefix = replace(parent, rounds=round_, measures=Measures())
            plain["start"] = [prefix.specification, round_]
        return plain

    @property
    def key(self) -> str:
        """The content address of the run; raises ``NoStableNameError`` if a lambda is part of it."""
        return key(self.specification)
