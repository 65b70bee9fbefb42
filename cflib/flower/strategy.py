"""Any method of the grid as a Flower strategy, for a ServerApp and a ClientApp of one's own.

>>> from cflib import methods
>>> strategy = ClusteredStrategy(methods.louvain_cfl("1nn"), clients=10)

``strategy.start(grid, initial_arrays, num_rounds=5)`` then works as with Flower's own strategies, and a ClientApp that
works with ``FedAvg`` works here: it finds its model under ``arrays`` and answers with arrays and ``num-examples``. It
says who it is with ``app.query("client")(cflib.flower.app.introduce)``, or nodes are registered by name. A method that
lets clients choose sends further models as ``arrays.1``, ``arrays.2``, and reads the number of the one chosen from the
metric ``chosen``; one that probes (paper 002) sends ``query.descriptor`` and takes the last bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from cflib.arrays import IntArray, Weights
from cflib.flower.runtime import Roster, pack, unpack_reply
from cflib.grid import Method, State
from cflib.methods import spell
from cflib.planning import plan, received
from cflib.protocol import Job, Schedule
from cflib.server import generic_model, start, step


class ClusteredStrategy(Strategy):  # type: ignore[misc]  # flwr is imported without its types
    """Drives the server loop of this library from Flower's own.

    ``state`` holds the models of all clusters and the cluster of each client after the last round, ``labels`` the
    clusters of every round. What ``start`` returns is one model: the mean of the clusters, by their sizes.
    """

    def __init__(
        self,
        method: Method,
        clients: int,
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
        trainable: Sequence[bool] | None = None,
        further_models: Callable[[int], Weights] | None = None,
        names: Sequence[str] = (),
        wait: float = 300.0,
        least: int = 1,
        timeout: float = 600.0,
    ) -> None:
        if method.models is not None and further_models is None:
            raise ValueError(f"{method.name} starts from {method.models} models: give further_models(i) for i = 1, …")
        self.method, self.clients, self.seed, self.schedule = method, clients, seed, schedule or Schedule()
        self.trainable, self.further_models = trainable, further_models
        self.names, self.wait, self.least, self.timeout = tuple(names), wait, least, timeout
        self.state: State | None = None
        self.labels: list[IntArray] = []
        self._roster: Roster | None = None
        self._sent: list[tuple[Message, Job]] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for each client that trains, with the model that the method gives it."""
        if self.state is None:
            first, further = arrays.to_numpy_ndarrays(), self.further_models
            self.state = start(
                self.method,
                self.clients,
                lambda i: further(i) if i and further is not None else first,
                trainable=self.trainable,
            )
        nodes = self._nodes(grid)
        present = np.array(sorted(nodes), dtype=np.int64)
        jobs = plan(self.method, self.state, present, seed=self.seed, schedule=self.schedule)
        return self._messages(jobs, nodes, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round; clients with no usable reply are left out and named in ``state.excluded``."""
        assert self.state is not None
        jobs = [job for _, job in self._sent]
        told = [unpack_reply(reply, job) for reply, job in self._pairs(replies)]
        self.state = step(self.method, self.state, jobs, told, schedule=self.schedule)
        self.labels.append(self.state.labels)
        for client, reason in sorted(self.state.excluded.items()):
            log(INFO, "\t└──> client %s is left out: %s", client, reason)
        mean = generic_model(self.state.models, self.state.labels, range(len(self.state.models)))
        facts: dict[str, Any] = {"clusters": len(self.state.models), "excluded": len(self.state.excluded)}
        return ArrayRecord(list(mean)), MetricRecord(facts)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for each client that is online, with the model that it would train next."""
        assert self.state is not None
        nodes, state = self._nodes(grid), self.state
        jobs = []
        mixed: dict[bytes, tuple[Weights, ...]] = {}
        for client in sorted(nodes):
            models = received(state.models, state.shares[client], mixed)
            choose = self.method.choose if len(models) > 1 else "only"
            jobs.append(Job(client, state.round, "evaluate", models, choose))
        return self._messages(jobs, nodes, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the numbers that clients report, weighed by their samples; who they are is no such number."""
        rows: list[Mapping[str, Any]] = []
        for reply, _ in self._pairs(replies):
            if not reply.has_error():
                rows += [_numbers(record) for record in reply.content.metric_records.values()]
        rows = [row for row in rows if row.get("num-examples", 0) > 0]
        names = {name for row in rows for name in row}
        means = {}
        for name in sorted(names - {"num-examples", "client", "chosen"}):
            values, samples = zip(*((row[name], row["num-examples"]) for row in rows if name in row), strict=True)
            means[name] = float(np.average(values, weights=samples))
        return MetricRecord(means) if means else None

    def summary(self) -> None:
        """Log the method's choices."""
        log(INFO, "\t├──> %s for %s clients, seed %s", self.method.name, self.clients, self.seed)
        for cell in ("describe", "compare", "cluster", "when", "give", "combine"):
            log(INFO, "\t│\t├── %s: %s", cell, spell(getattr(self.method, cell)))

    def _nodes(self, grid: Grid) -> dict[int, int]:
        wanted = self.clients if self._roster is None else self.least
        self._roster = self._roster or Roster(grid, names=self.names, ttl=self.timeout)
        return self._roster.gather(self.clients, wanted=wanted, least=self.least, seconds=self.wait)

    def _messages(self, jobs: Sequence[Job], nodes: Mapping[int, int], config: ConfigRecord) -> list[Message]:
        records: dict[int, ArrayRecord] = {}
        messages = [pack(job, nodes[job.client], ttl=self.timeout, records=records, extra=dict(config)) for job in jobs]
        self._sent = list(zip(messages, jobs, strict=True))
        return messages

    def _pairs(self, replies: Iterable[Message]) -> list[tuple[Message, Job]]:
        """Return each reply with the job that it answers."""
        jobs = {message.metadata.message_id: job for message, job in self._sent}
        found = {reply.metadata.reply_to_message_id: reply for reply in replies}
        return [(found[name], job) for name, job in jobs.items() if name in found]


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the single finite numbers of a record; whatever else a client elsewhere sends is passed over."""
    single = {name: float(value) for name, value in record.items() if isinstance(value, (int, float))}
    return {name: value for name, value in single.items() if np.isfinite(value)}
