"""Where a training step of the McMahan CNN spends its time: each operation alone, on one thread, against GEMM."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

BATCH = 10


def rows() -> Iterator[tuple[str, float, float]]:
    """Yield (operation, milliseconds, GFLOP) for one batch; GFLOP is 0 where memory, not arithmetic, sets the pace."""
    from cflib.backend import load_tensorflow

    tf, _ = load_tensorflow()
    raw = tf.raw_ops

    def image(size: int, channels: int) -> Any:
        return tf.constant(np.random.default_rng(0).random((BATCH, size, size, channels), dtype=np.float32))

    convolution = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    for name, size, into, out in (("first convolution", 28, 1, 32), ("second convolution", 14, 32, 64)):
        x, g = image(size, into), image(size, out)
        kernel = tf.zeros((5, 5, into, out))
        work = 2 * BATCH * size**2 * 25 * into * out / 1e9
        yield f"{name}, forward", _time(tf, lambda x=x, k=kernel: raw.Conv2D(input=x, filter=k, **convolution)), work
        yield (
            f"{name}, gradient of its kernel",
            _time(
                tf,
                lambda x=x, g=g, k=kernel: raw.Conv2DBackpropFilter(
                    input=x, filter_sizes=k.shape, out_backprop=g, **convolution
                ),
            ),
            work,
        )
        if into > 1:
            yield (
                f"{name}, gradient of its input",
                _time(
                    tf,
                    lambda x=x, g=g, k=kernel: raw.Conv2DBackpropInput(
                        input_sizes=x.shape, filter=k, out_backprop=g, **convolution
                    ),
                ),
                work,
            )
    x, w, g = tf.zeros((BATCH, 3136)), tf.zeros((3136, 512)), tf.zeros((BATCH, 512))
    work = 2 * BATCH * 3136 * 512 / 1e9
    yield "dense layer, forward", _time(tf, lambda: tf.matmul(x, w)), work
    yield "dense layer, gradient of its kernel", _time(tf, lambda: tf.matmul(x, g, transpose_a=True)), work
    yield "dense layer, gradient of its input", _time(tf, lambda: tf.matmul(g, w, transpose_b=True)), work
    yield "its update, 1.6 million weights read and written", _time(tf, lambda: w - 0.01 * w), 0.0
    pooled = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    for name, size, channels in (("first pooling", 28, 32), ("second pooling", 14, 64)):
        big = image(size, channels)
        small = raw.MaxPool(input=big, **pooled)
        gradient = _time(
            tf,
            lambda big=big, small=small: raw.MaxPoolGrad(orig_input=big, orig_output=small, grad=small, **pooled),
        )
        yield f"{name}, forward and gradient", gradient + _time(tf, lambda b=big: raw.MaxPool(input=b, **pooled)), 0.0


def _time(tf: Any, work: Callable[[], Any]) -> float:
    """Return the milliseconds of a compiled call, the best of many."""
    call, best = tf.function(work), np.inf
    call()
    for _ in range(60):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return 1e3 * best


def server_share() -> tuple[float, float]:
    """Return the server's seconds in a round of 100 clients of this network under Louvain CFL, and under FLIC."""
    from cflib import methods
    from cflib.models import Network, initial_weights
    from cflib.protocol import Job, Reply, Schedule
    from cflib.server import start, step

    network = Network("mcmahan_cnn", input_shape=(28, 28))
    first = initial_weights(network, 0)
    rng = np.random.default_rng(0)
    found = []
    for method, reporting in ((methods.louvain_cfl("1nn"), 100), (methods.flic(round=2), 10)):
        state = start(method, 100, lambda i: first)
        for turn in range(2):  # in the second round everything is there: memory, matrix, communities
            chosen = range(100) if turn == 0 else range(reporting)
            noise = [[a + 0.01 * rng.standard_normal(a.shape, dtype=np.float32) for a in first] for _ in chosen]
            jobs = [Job(i, turn, "train", (first,)) for i in chosen]
            replies = [Reply(i, arrays, samples=600) for i, arrays in zip(chosen, noise, strict=True)]
            began = time.perf_counter()
            state = step(method, state, jobs, replies, schedule=Schedule())
            seconds = time.perf_counter() - began
        found.append(seconds)
    return found[0], found[1]
