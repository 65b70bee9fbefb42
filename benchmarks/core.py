"""The core against plain loops: distances of 100 clients of the McMahan CNN, FLIC's row update, agreement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cflib.clustering import agreement_matrix, louvain
from cflib.distances import cosine_distances, shifted_cosine, to_similarity, trusted_distances, update_shifted_cosine

MCMAHAN = [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 512), (512,), (512, 10), (10,)]


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield (workload, ours, peer, ratio or bound)."""
    rng = np.random.default_rng(0)
    centre = [rng.normal(size=shape).astype(np.float32) for shape in MCMAHAN]
    models = [[a + 0.01 * rng.normal(size=a.shape).astype(np.float32) for a in centre] for _ in range(100)]
    updates = [np.concatenate([np.ravel(a) for a in model]) for model in models]
    size = sum(a.nbytes for a in models[0]) * 100
    for name, ours, pair, items in [
        ("trusted_distances", lambda: trusted_distances(models), _trusted_pair, models),
        ("cosine_distances", lambda: cosine_distances(updates), _cosine_pair, updates),
    ]:
        seconds, extra = _measure(ours)
        pairs = [(i, j) for i in range(5) for j in range(i + 1, 9)]  # a sample of the 4,950 pairs, all alike
        began = time.perf_counter()
        for i, j in pairs:
            pair(items[i], items[j])
        loop = (time.perf_counter() - began) / len(pairs) * 4950
        memory = f"extra memory {extra / size:.0%} of the input"
        yield (
            f"`{name}`, 100 clients, 1,663,370 parameters",
            f"{seconds:.2f} s, {memory}",
            f"{loop:.1f} s, loop over pairs in float64",
            f"{loop / seconds:.0f}x",
        )
    known = shifted_cosine(updates)
    seconds, _ = _measure(lambda: louvain(update_shifted_cosine(known, updates, range(10)), self_loops=True))
    yield (
        "FLIC's round: 10 reports among 100 clients, and Louvain",
        f"{seconds:.2f} s",
        "bound 0.5 s",
        f"{seconds / 0.5:.0%} of it",
    )
    points = rng.normal(size=(500, 3)) + 3 * rng.normal(size=(10, 3))[np.arange(500) % 10]
    affinity = to_similarity(np.linalg.norm(points[:, None] - points, axis=2))
    for backend in ("networkx", "python-louvain"):
        seconds, _ = _measure(lambda backend=backend: agreement_matrix(affinity, backend=backend))
        yield (
            f"`agreement_matrix`, 500 clients, {backend}",
            f"{seconds:.1f} s",
            "bound 30 s",
            f"{seconds / 30:.0%} of it",
        )


def _trusted_pair(a: list[Any], b: list[Any]) -> float:
    factors = [
        1 + np.linalg.norm(y.astype(float) - x) / (np.linalg.norm(x.astype(float)) + 1e-8)
        for x, y in zip(a, b, strict=True)
    ]
    return float(np.prod(factors) - 1)


def _cosine_pair(a: Any, b: Any) -> float:
    x, y = a.astype(float), b.astype(float)
    return float(1 - x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def _measure(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of a call, and the most memory it held beyond what was there."""
    before, peak, over = _resident(), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            peak[0] = max(peak[0], _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    over.set()
    watcher.join()
    return seconds, max(0, peak[0] - before)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
