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

ATTACK = 102  # marks the stream of random numbers of attackers


@dataclass(frozen=True)
class Attack:
    """What malicious clients do, each with one of three means.

    ``update`` maps the honest update to the one sent (``rng`` is passed if asked for), ``labels`` maps the training
    labels before training, and ``collude`` maps the honest clients' ``updates`` ``(m, p)`` to one that all attackers
    send (``weights``, their sample counts with the attackers' sum last, are passed if asked for).
    """

    clients: tuple[int, ...]
    update: Callable[..., FloatArray] | None = None
    labels: Callable[..., Any] | None = None
    collude: Callable[..., FloatArray] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(sorted(int(client) for client in self.clients)))
        if sum(means is not None for means in (self.update, self.labels, self.collude)) != 1:
            raise ValueError("an attack needs exactly one of update, labels and collude")


def perform(
    job: Job,
    data: ClientData,
    network: Network,
    training: Training,
    *,
    seed: int,
    attack: Attack | None = None,
    chosen: int | None = None,
) -> Reply:
    """Do one job: choose a model if several came (and the choice is not known), then train, describe or evaluate."""
    engine = trainer(network, replace(training, **job.settings) if job.settings else training)
    chosen = choose(job, data, engine) if chosen is None else chosen
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
        update = flatten(subtract(weights, start))
        if np.isfinite(update).all():  # a client that diverged is left out by the server, attacker or not
            rng = np.random.default_rng((seed, job.round, job.client, ATTACK))
            weights = shifted(start, call(attack.update, update, rng=rng))
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
        r.client: flatten(subtract(r.arrays, start[r.client].models[r.chosen]))
        for r in replies
        if r.client in start and _fits(r, start[r.client])
    }
    honest = {c: u for c, u in updates.items() if c not in attack.clients and np.isfinite(u).all()}
    if not honest or not any(client in updates for client in attack.clients):  # nobody to copy, or nobody to attack
        return list(replies)
    samples = {reply.client: reply.samples for reply in replies}
    weights = [samples[c] for c in honest] + [sum(samples[c] for c in updates if c in attack.clients)]
    agreed = call(attack.collude, updates=np.stack(list(honest.values())), weights=np.array(weights, dtype=float))
    return [
        replace(r, arrays=shifted(start[r.client].models[r.chosen], agreed))
        if r.client in attack.clients and r.client in updates
        else r
        for r in replies
    ]


def _fits(reply: Reply, job: Job) -> bool:
    """Tell whether a reply holds a model like the one sent; if not, the server leaves it out."""
    shapes = [np.shape(array) for array in reply.arrays]
    return 0 <= reply.chosen < len(job.models) and shapes == [np.shape(array) for array in job.models[reply.chosen]]


def choose(job: Job, data: ClientData, engine: Trainer) -> int:
    """Return which of the job's models the client takes: that of the lowest training loss or highest test accuracy."""
    if len(job.models) == 1:
        return 0
    if job.choose == "loss":
        losses = [engine.evaluate(m, data.train_images, data.train_labels).loss for m in job.models]
        return int(np.argmin(np.nan_to_num(losses, nan=np.inf, posinf=np.inf)))  # a model that overflows is not chosen
    return int(np.argmax([engine.evaluate(m, data.test_images, data.test_labels).accuracy for m in job.models]))


def call(attack: Callable[..., FloatArray], *arguments: Any, **offered: Any) -> FloatArray:
    """Call an attack with those of the offered keywords that it asks for."""
    wanted = inspect.signature(attack).parameters
    return attack(*arguments, **{name: value for name, value in offered.items() if name in wanted})
