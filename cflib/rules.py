"""The rules that decide a claim, fixed before any result is seen: each turns the values of runs into a finding.

A number within its tolerance, an ordering or an equality by the paired interval over seeds, a spread by permutation, a
trend over a series, an event in enough runs. Too few seeds decide nothing, and the finding says how many it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import FloatArray
from cflib.samples import Interval, confidence_interval, paired_interval

SIGNS = {"less": -1.0, "greater": 1.0}
SLACK = 1e-9  # 0.95 + 0.05 is not quite 1: a value on the edge of a tolerance is within it
EXACT_SEEDS = 16  # up to this many, a permutation test tries every exchange


@dataclass(frozen=True)
class Finding:
    """What a test found: whether the condition ``held`` (None: undecided), the value behind it, over ``n`` runs."""

    held: bool | None
    value: float
    interval: tuple[float, float] | None
    n: int
    note: str = ""
    against: bool | None = None
    """Where it did not hold: whether the runs speak against it, or merely do not show it."""


def final(series: ArrayLike) -> FloatArray:
    """Return what the ledger calls final: the mean over the last eighth, at least one, of rounds ``(..., rounds)``."""
    values = np.asarray(series, dtype=np.float64)
    last: FloatArray = values[..., -max(1, values.shape[-1] // 8) :].mean(axis=-1)
    return last


def judge_number(values: ArrayLike, reported: float, tolerance: float, *, seeds: int = 1) -> Finding:
    """Hold if the mean over runs is within ``tolerance`` of the reported value."""
    found = confidence_interval(check_runs(values, 1))
    near = abs(found.mean - reported) <= tolerance + SLACK
    beyond = found.low > reported + tolerance or found.high < reported - tolerance
    apart = tolerance == 0 if found.n == 1 else beyond  # one run has no interval: only an exact number contradicts
    return _finding(near, found, seeds, f"expected {reported:g} ± {tolerance:g}", apart)


def judge_ordering(first: ArrayLike, second: ArrayLike, direction: str, *, by: float = 0, seeds: int = 3) -> Finding:
    """Hold if the paired 95 % interval of ``first - second`` lies beyond ``by`` in the direction "less" or "greater".

    ``second`` may be one number for all; what is found is then ``first`` itself, not its difference from that number. A
    negative ``by`` asks that ``first`` is not worse by more than that.

    >>> judge_ordering([0.5, 0.6, 0.8], [0.4, 0.5, 0.6], "greater")
    Finding(held=False, value=0.133..., interval=(-0.010..., 0.276...), n=3, note='the interval contains 0',
            against=False)
    """
    one = check_runs(first, 1)
    if np.ndim(second) == 0:
        return _beyond(confidence_interval(one), direction, by, seeds, base=float(check_runs(second)[0]))
    return _beyond(paired_interval(one, second), direction, by, seeds)


def judge_equality(first: ArrayLike, second: ArrayLike, margin: float, *, seeds: int = 3) -> Finding:
    """Hold if the paired 95 % interval of ``first - second`` lies within ± ``margin``; containing 0 proves nothing."""
    found = paired_interval(check_runs(first, 1), second)
    apart = found.low > margin or found.high < -margin
    return _finding(max(-found.low, found.high) <= margin + SLACK, found, seeds, f"it leaves ± {margin:g}", apart)


def judge_spread(first: ArrayLike, second: ArrayLike, direction: str, *, seeds: int = 20) -> Finding:
    """Hold if ``first`` varies less (or more) between seeds than ``second``: a permutation test at the 5 % level.

    Both are ``(seeds,)`` or ``(seeds, rounds)``, paired by seed. A seed's deviation is its distance from the median of
    all, mean over rounds; by chance alone its arms could be exchanged. Medians keep the level for skewed scores such as
    ARI. 20 seeds find a halved spread four times in five; fewer than ``seeds`` can only show a difference.
    """
    one, two, sign = check_runs(first), check_runs(second), sign_of(direction)
    if one.shape != two.shape:
        raise ValueError(f"shapes {one.shape} and {two.shape} cannot be paired: pass the same seeds and rounds")
    apart = [np.abs(arm - np.median(arm, axis=0)).reshape(len(arm), -1).mean(axis=1) for arm in (one, two)]
    p, opposite = (_exchange_share(s * sign * (apart[0] - apart[1])) for s in (1, -1))
    held = True if p <= 0.05 else False if opposite <= 0.05 or len(one) >= seeds else None
    few = f", n = {len(one)}, needs {seeds}" if held is None else ""
    note = f"mean deviation {apart[0].mean():.3g} against {apart[1].mean():.3g}, p = {p:.3g}{few}"
    against = opposite <= 0.05 if held is False else None
    return Finding(held, float(apart[0].mean() - apart[1].mean()), None, len(one), note, against)


def judge_trend(series: ArrayLike, direction: str, *, seeds: int = 3) -> Finding:
    """Hold if the 95 % interval over runs of Spearman's correlation with the column's place excludes 0 as claimed.

    ``series`` is ``(runs, points)``, columns in the order of what grows; a constant row has correlation 0.
    """
    from scipy.stats import rankdata

    rows = check_runs(series, 2)
    if rows.shape[1] < 3:
        raise ValueError(f"a series has {rows.shape[1]} points: a trend needs three; compare two by an ordering")
    ranks, steps = (rankdata(x, axis=-1) - (rows.shape[1] + 1) / 2 for x in (rows, np.arange(rows.shape[1])))
    norms = np.sqrt((ranks**2).sum(axis=1) * (steps**2).sum())
    found = confidence_interval(np.divide(ranks @ steps, norms, out=np.zeros(len(rows)), where=norms > 0))
    return _beyond(found, direction, 0, seeds)


def judge_event(happened: ArrayLike, *, share: float = 1, seeds: int = 3) -> Finding:
    """Hold if it happened in this share of the runs or more; where all are asked for, one counterexample decides."""
    from scipy.stats import binomtest

    runs = np.atleast_1d(np.asarray(happened))
    if runs.dtype != bool or runs.ndim != 1 or runs.size == 0:
        raise ValueError(f"events are {runs.tolist()}: pass True or False for each run")
    count, n = int(runs.sum()), runs.size
    bounds = binomtest(count, n).proportion_ci()
    found = Interval(count / n, float(bounds.low), float(bounds.high), n)
    needed = 1 if share == 1 and count < n else seeds
    apart = found.high < share or share == 1
    return _finding(count / n >= share - SLACK, found, needed, f"{count} of {n} runs, expected {share:.0%}", apart)


def combine(conditions: Mapping[str, bool | None]) -> str:
    """Return the outcome of a claim: all its conditions hold, some, none, or nothing is decided.

    >>> combine({"MNIST": True, "CIFAR-10": None}), combine({"MNIST": None})
    ('partly', 'not attempted')
    """
    if all(held is None for held in conditions.values()):
        return "not attempted"
    return "reproduced" if all(conditions.values()) else "partly" if any(conditions.values()) else "not reproduced"


def check_runs(values: ArrayLike, ndim: int | None = None) -> FloatArray:
    """Return the values of runs, a row a run, after checking that they are finite."""
    runs = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if runs.size == 0 or not np.isfinite(runs).all() or ndim not in (None, runs.ndim):
        raise ValueError(f"values are {runs.tolist()}: pass finite ones, a row a run; leave out runs without a result")
    return runs


def sign_of(direction: str) -> float:
    """Return 1 for "greater", -1 for "less"."""
    if direction not in SIGNS:
        raise ValueError(f"direction is {direction!r}, expected one of {tuple(SIGNS)}")
    return SIGNS[direction]


def _finding(held: bool, found: Interval, seeds: int, failed: str, against: bool) -> Finding:
    interval = (found.low, found.high) if np.isfinite(found.low) else None
    if found.n < seeds:
        return Finding(None, found.mean, interval, found.n, f"n = {found.n}, needs {seeds}")
    if held:
        return Finding(True, found.mean, interval, found.n)
    return Finding(False, found.mean, interval, found.n, failed, bool(against))


def _beyond(found: Interval, direction: str, by: float, seeds: int, *, base: float = 0.0) -> Finding:
    sign = sign_of(direction)
    low, high = sorted(sign * (end - base) for end in (found.low, found.high))
    edge = base + sign * by + 0.0  # which is never minus 0
    failed = (
        f"the interval contains {edge:g}" if high >= by else "the other way round" if base == 0 else f"beyond {edge:g}"
    )
    return _finding(low > by, found, seeds, failed, high < by or low == high)  # where all runs agree, nothing is open


def _exchange_share(differences: FloatArray) -> float:
    """Return how often a sum with exchanged arms, i.e. signs, reaches the observed one (at random for many seeds)."""
    n = len(differences)
    if n <= EXACT_SEEDS:
        flips = np.arange(2**n)[:, None] >> np.arange(n) & 1
    else:
        flips = np.random.default_rng(0).integers(0, 2, size=(2**EXACT_SEEDS, n))
        flips[0] = 0
    sums = (1 - 2 * flips) @ differences
    return float(np.mean(sums >= differences.sum() - SLACK * np.abs(differences).sum()))


TESTS: dict[str, Callable[..., Finding]] = {
    "number": judge_number,
    "ordering": judge_ordering,
    "equality": judge_equality,
    "spread": judge_spread,
    "trend": judge_trend,
    "event": judge_event,
}
