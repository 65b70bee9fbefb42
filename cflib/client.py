"""What a client does with a job: the same code in one process and behind a Flower SuperNode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cflib.arrays import FloatArray, Weights, flatten, subtract, unflatten
from cflib.federation import ClientData
from cflib.models import Network
from cflib.protocol import Job, Reply
from cflib.training import Trainer, Training, trainer


@dataclass(frozen=True)
class Attack:
    """What malicious clients do, each with one of three means.

    ``update`` maps the honest update to the one sent (``rng`` is passed if asked for), ``labels`` maps the training
    labels before training, and ``collude`` maps the honest clients' updates ``(m, p)`` to one that all attackers send.
    """

    clients: tuple[int, ...]
    update: Callable[..., FloatArray] | None = None
    labels: Callable[..., Any] | None = None
    collude: Callable[..., FloatArray] | None = None

    def __post_init__(self) -> None:
        if sum(means is not None for means in (self.update, self.labels, self.collude)) != 1:
            raise ValueError("an attack needs exactly one of update, labels and collude")


def perform(
    job: Job, data: ClientData, network: Network, training: Training, *, seed: int, attack: Attack | None = None
) -> Reply:
    """Do one job: choose a model if several came, then train, describe or evaluate."""
    engine = trainer(network, replace(training, **job.settings) if job.settings else training)
    chosen = _choose(job, data, engine)
    start = job.models[chosen]
    if job.task == "evaluate":
        result = engine.evaluate(start, data.test_images, data.test_labels)
        return Reply(
            job.client, [result.confusion.astype(np.float64)], chosen, len(data.test_labels), {"loss": result.loss}
        )
    malicious = attack is not None and job.client in attack.clients
    labels = data.train_labels
    if malicious and attack is not None and attack.labels is not None:
        labels = attack.labels(labels)
    weights, loss, steps = engine.train(start, data.train_images, labels, seed=seed, round=job.round, client=job.client)
    if malicious and attack is not None and attack.update is not None:
        rng = np.random.default_rng((seed, 2, job.round, job.client))
        weights = shifted(start, _apply(attack.update, flatten(subtract(weights, start)), rng))
    arrays = weights if job.task == "train" else [weights[-1].copy()]  # a view would keep the whole model
    return Reply(job.client, arrays, chosen, len(labels), {"loss": loss, "steps": float(steps)})


def shifted(start: Weights, update: FloatArray) -> list[FloatArray]:
    """Return the model that lies ``update`` away from ``start``."""
    parts = unflatten(update, start)
    return [(array + part).astype(array.dtype) for array, part in zip(start, parts, strict=True)]


def conspire(attack: Attack, jobs: Sequence[Job], replies: Sequence[Reply]) -> list[Reply]:
    """Replace the replies of colluding attackers by the update they agree on."""
    if attack.collude is None:
        return list(replies)
    start = {job.client: job for job in jobs if job.task == "train"}
    updates = {
        r.client: flatten(subtract(r.arrays, start[r.client].models[r.chosen])) for r in replies if r.client in start
    }
    honest = [update for client, update in updates.items() if client not in attack.clients]
    if not honest:
        return list(replies)
    agreed = attack.collude(np.stack(honest))
    return [
        replace(r, arrays=shifted(start[r.client].models[r.chosen], agreed))
        if r.client in attack.clients and r.client in start
        else r
        for r in replies
    ]


def _choose(job: Job, data: ClientData, engine: Trainer) -> int:
    if len(job.models) == 1:
        return 0
    if job.choose == "loss":
        return int(np.argmin([engine.evaluate(m, data.train_images, data.train_labels).loss for m in job.models]))
    return int(np.argmax([engine.evaluate(m, data.test_images, data.test_labels).accuracy for m in job.models]))


def _apply(attack: Callable[..., FloatArray], update: FloatArray, rng: np.random.Generator) -> FloatArray:
    return attack(update, rng=rng) if "rng" in inspect.signature(attack).parameters else attack(update)
