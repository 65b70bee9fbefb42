"""A handful of numbers, one a seed or a pair: their mean and how sure it is, and their shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import FloatArray


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval from ``low`` to ``high``, over ``n`` values."""

    mean: float
    low: float
    high: float
    n: int


def bimodality(values: ArrayLike) -> float:
    """Return Sarle's coefficient ``(skewness^2 + 1) / kurtosis``, within (0, 1]: 1 for two points, 5/9 if uniform.

    Above 5/9 the values gather at two ends rather than in the middle; adding or multiplying a number changes nothing.
    Equal values have no shape: 0.

    >>> bimodality([0, 0, 1, 1])
    1.0
    """
    checked = check_values(values, "values")
    centred = checked - checked.mean()
    if (scale := np.abs(centred).max()) == 0:
        return 0.0
    centred = centred / scale  # the fourth power of a large number is none
    square = float(np.mean(centred**2))
    skewness = float(np.mean(centred**3)) / square**1.5
    return float((skewness**2 + 1) * square**2 / np.mean(centred**4))


def confidence_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the mean of n independent values with its Student-t interval; one value has the interval (-inf, inf).

    >>> confidence_interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484..., n=3)
    """
    from scipy.stats import t

    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number between 0 and 1, such as 0.95")
    checked = check_values(values, "values")
    centre, n = float(checked.mean()), checked.size
    if n == 1:
        return Interval(centre, -np.inf, np.inf, 1)
    margin = float(t.ppf((1 + level) / 2, n - 1) * checked.std(ddof=1) / np.sqrt(n))
    return Interval(centre, centre - margin, centre + margin, n)


def paired_interval(first: ArrayLike, second: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the interval of the mean difference ``first - second`` over pairs, such as two methods at equal seeds."""
    one, two = check_values(first, "first values"), check_values(second, "second values")
    if one.shape != two.shape:
        raise ValueError(f"{one.size} values cannot be paired with {two.size}: pass the same seeds in the same order")
    return confidence_interval(one - two, level=level)


def check_values(values: ArrayLike, name: str) -> FloatArray:
    """Return values as numbers after checking that there are some and all are finite."""
    checked = np.asarray(values, dtype=np.float64)
    if checked.size == 0 or not np.isfinite(checked).all():
        raise ValueError(f"{name} are {checked.tolist()}: pass at least one, and leave out runs without a result")
    return checked
