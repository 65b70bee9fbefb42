"""The in-process runtime: many clients in one process, in parallel, with the same result for any number of workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from cflib.arrays import IntArray, Weights
from cflib.client import Attack, choose, conspire, perform
from cflib.federation import Federation
from cflib.models import Network
from cflib.protocol import Job, Reply
from cflib.recall import Recall, fingerprint
from cflib.training import EVALUATION_BATCH, Evaluation, Trainer, Training, trainer

DROPOUT = 103  # marks the stream of random numbers that decides who falls silent


@dataclass(frozen=True)
class Attendance:
    """Who is there: rounds in which clients join and leave, and who falls silent in the middle of a round.

    ``joins``, ``leaves`` and ``returns`` map a client to a round (counted from 0), ``silent`` maps a round to clients
    that take their job and never answer; ``dropout`` makes that happen at random, with this probability a job.
    """

    joins: Mapping[int, int] = field(default_factory=dict)
    leaves: Mapping[int, int] = field(default_factory=dict)
    returns: Mapping[int, int] = field(default_factory=dict)
    silent: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}, expected a probability from 0 to below 1")

    def present(self, n_clients: int, round: int) -> IntArray:
        """Return the clients that can be asked in this round."""
        there = [
            i
            for i in range(n_clients)
            if self.joins.get(i, 0) <= round
            and (round < self.leaves.get(i, round + 1) or round >= self.returns.get(i, round + 1))
        ]
        return np.array(there, dtype=np.int64)

    def answers(self, job: Job, seed: int) -> bool:
        """Tell whether the client of this job will answer it."""
        if job.client in self.silent.get(job.round, ()):
            return False
        return (
            self.dropout == 0 or np.random.default_rng((seed, job.round, job.client, DROPOUT)).random() >= self.dropout
        )


def score(models: Sequence[Weights], federation: Federation, engine: Trainer, pool: Executor) -> list[Evaluation]:
    """Evaluate models on the server's own test data, in fixed pieces, so that the sums do not depend on the pool."""
    images, labels = federation.server()
    size = EVALUATION_BATCH
    pieces = [(m, slice(low, low + size)) for m in range(len(models)) for low in range(0, len(labels), size)]
    found = pool.map(lambda piece: engine.evaluate(models[piece[0]], images[piece[1]], labels[piece[1]]), pieces)
    totals: list[Evaluation | None] = [None] * len(models)
    for (m, _), result in zip(pieces, found, strict=True):
        so_far = totals[m]
        totals[m] = result if so_far is None else so_far + result
    return [total for total in totals if total is not None]


class Simulation:
    """Runs jobs in a thread pool; every client trains on one thread, so results do not depend on ``workers``."""

    def __init__(
        self,
        federation: Federation,
        network: Network,
        training: Training,
        *,
        seed: int,
        attack: Attack | None = None,
        attendance: Attendance | None = None,
        workers: int | None = None,
        recall: Recall | None = None,
    ) -> None:
        self.federation, self.network, self.training = federation, network, training
        self.recall = recall
        self.seed, self.attack, self.attendance = seed, attack, attendance or Attendance()
        self.clients = [federation.client(i) for i in range(federation.n_clients)]
        self.workers = workers or len(os.sched_getaffinity(0))
        self.pool = ThreadPoolExecutor(self.workers, thread_name_prefix="client")
        self._choices: dict[int, tuple[Job, int]] = {}

    def present(self, round: int) -> IntArray:
        """Return the ids of the clients that can be asked in this round."""
        return self.attendance.present(len(self.clients), round)

    def map(self, jobs: Sequence[Job]) -> list[Reply]:
        """Do the jobs in parallel; replies come in client order."""
        answered = [job for job in jobs if job.task == "evaluate" or self.attendance.answers(job, self.seed)]
        models = {id(model): model for job in answered for model in job.models} if self.recall is not None else {}
        names = dict(zip(models, self.pool.map(fingerprint, models.values()), strict=True))
        replies = sorted(self.pool.map(lambda job: self._perform(job, names), answered), key=lambda reply: reply.client)
        return replies if self.attack is None else conspire(self.attack, jobs, replies)

    def score(self, models: Sequence[Weights]) -> list[Evaluation]:
        """Evaluate models on the server's own test data."""
        engine = trainer(self.network, self.training)
        if self.recall is None:
            return score(models, self.federation, engine, self.pool)
        names = [("server", fingerprint(model)) for model in models]
        found = {name: self.recall.get(name) for name in names}
        missing = [place for place, name in enumerate(names) if found[name] is None]
        fresh = score([models[place] for place in missing], self.federation, engine, self.pool)
        for place, result in zip(missing, fresh, strict=True):
            found[names[place]] = result
            self.recall.keep(names[place], result, result.confusion.nbytes)
        return [found[name] for name in names]

    def close(self) -> None:
        """End the worker threads."""
        self.pool.shutdown()

    def _perform(self, job: Job, names: Mapping[int, bytes]) -> Reply:
        """Do a job, or remember what came of it; ``names`` has the fingerprints of models by their identity."""
        if self.recall is None:
            return self._work(job)
        told = (names[id(model)] for model in job.models)
        question = (job.task, job.client, job.round, job.choose, str(job.settings), *told)
        reply: Reply | None = self.recall.get(question)
        if reply is None:
            reply = self._work(job)
            self.recall.keep(question, reply, sum(array.nbytes for array in reply.arrays))
        return reply

    def _work(self, job: Job) -> Reply:
        data, usual = self.clients[job.client], (self.network, self.training)
        return perform(job, data, *usual, seed=self.seed, attack=self.attack, chosen=self._choice(job))

    def _choice(self, job: Job) -> int:
        """Let the client choose; asked again about the same models, to train after an evaluation, it remembers."""
        if len(job.models) == 1:
            return 0
        before, chosen = self._choices.get(job.client, (None, 0))
        if before is None or before.models is not job.models or before.choose != job.choose:
            chosen = choose(job, self.clients[job.client], trainer(self.network, self.training))
            self._choices[job.client] = job, chosen
        return chosen
