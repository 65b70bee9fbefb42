"""A federation small enough to work out by hand: client i pulls the model half-way towards its own target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cflib.protocol import Job, Reply


def weights(*values: float) -> list[np.ndarray]:
    """A model of a 1 x 2 kernel and a bias of one number."""
    return [np.array([values[:2]], dtype=float), np.array(values[2:], dtype=float)]


@dataclass
class Pull:
    """A runtime whose clients train by moving a share of the way to their target."""

    targets: Sequence[Sequence[float]]
    rate: float = 0.5
    samples: Sequence[int] | None = None
    broken: dict[tuple[int, int], str] = field(default_factory=dict)
    joins: dict[int, int] = field(default_factory=dict)
    gone: dict[int, tuple[int, ...]] = field(default_factory=dict)
    asked: list[list[Job]] = field(default_factory=list)

    def present(self, round: int) -> np.ndarray:
        there = [
            i for i in range(len(self.targets)) if self.joins.get(i, 0) <= round and i not in self.gone.get(round, ())
        ]
        return np.array(there, dtype=np.int64)

    def map(self, jobs: Sequence[Job]) -> list[Reply]:
        self.asked.append(list(jobs))
        return [reply for job in jobs if (reply := self.answer(job)) is not None]

    def answer(self, job: Job) -> Reply | None:
        target = weights(*self.targets[job.client])
        losses = [sum(float(((t - a) ** 2).sum()) for t, a in zip(target, m, strict=True)) for m in job.models]
        chosen = int(np.argmin(losses))
        start = job.models[chosen]
        arrays = [a + self.rate * (t - a) for a, t in zip(start, target, strict=True)]
        fault = self.broken.get((job.round, job.client))
        if fault == "silent":
            return None
        if fault == "nan":
            arrays[0] = arrays[0] * np.nan
        if fault == "shape":
            arrays[1] = np.zeros(3)
        samples = self.samples[job.client] if self.samples else 1
        if job.task == "describe":
            arrays = arrays[-1:]
        return Reply(job.client, arrays, chosen, samples, {"loss": losses[chosen], "steps": 4.0})
