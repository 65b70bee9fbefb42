"""Optimizers as Keras's formulas: one step from weights, gradients and what is kept between steps to the next.

TensorFlow comes as an argument, so that nothing is loaded here.
"""

from __future__ import annotations

from typing import Any

KEPT = {"sgd": 0, "momentum": 1, "adam": 2, "nadam": 2}
"""Arrays that an optimizer keeps for each array of weights."""


def updated(
    tf: Any, optimizer: str, momentum: float, weights: Any, gradients: Any, slots: Any, rate: Any, step: Any
) -> Any:
    """One optimizer step with Keras's formulas; for the first two optimizers gradients come multiplied by the rate."""
    if optimizer == "sgd":
        return [w - g for w, g in zip(weights, gradients, strict=True)], slots
    if optimizer == "momentum":
        velocities = [momentum * v - g for v, g in zip(slots[0], gradients, strict=True)]
        return [w + v for w, v in zip(weights, velocities, strict=True)], [velocities, slots[1]]
    means = [m + (g - m) * (1 - 0.9) for m, g in zip(slots[0], gradients, strict=True)]
    squares = [s + (tf.square(g) - s) * (1 - 0.999) for s, g in zip(slots[1], gradients, strict=True)]
    size, product = 1.0 - 0.999**step, slots[2][0]  # the product of Nadam's momenta so far
    if optimizer == "adam":
        rate = rate * tf.sqrt(size) / (1.0 - 0.9**step)
        moved = [w - m * rate / (tf.sqrt(s) + 1e-7) for w, m, s in zip(weights, means, squares, strict=True)]
        return moved, [means, squares, [product]]
    now, later = 0.9 * (1.0 - 0.5 * 0.96**step), 0.9 * (1.0 - 0.5 * 0.96 ** (step + 1.0))
    product = product * now
    old, new = rate * later / (1.0 - product * later), rate * (1.0 - now) / (1.0 - product)
    parts = zip(weights, gradients, means, squares, strict=True)
    return [w - (old * m + new * g) / (tf.sqrt(s / size) + 1e-7) for w, g, m, s in parts], [means, squares, [product]]
