"""Who holds which samples: every paper's split as a function ``f(labels, *, n_clients, ..., rng, test_labels=None)``.

Training samples are disjoint unless the docstring says otherwise. With ``test_labels`` a client's test samples come
from that set, disjoint too, in the class shares of its training samples; without, a fifth of its own is held out.
Errors (``ValueError``) name the class that runs short, the value out of range, or the client left empty.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.random import Generator as Rng
from numpy.typing import ArrayLike, NDArray

from cflib.arrays import FloatArray, IntArray

Tests = ArrayLike | None  # the classes of the test set, if there is one
Count = int | None  # samples a client; None: as many as there are
Parts = list[IntArray]  # the indices of each client
Transform = tuple[str, int] | tuple[str, int, int]
"""What a client does to its data: ``("rotate", quarter_turns)`` or ``("swap", class, class)``."""

SPLITS = (
    "iid",
    "quantity_skew",
    "label_swap",
    "rotation",
    "majority_class",
    "paired_majority",
    "class_subsets",
    "dirichlet",
    "cluster_classes",
)
"""The ways to deal samples to clients, functions of this module."""

HELD_OUT = 0.2  # share of a client's samples kept for testing where there is no test set
VEHICLES_AND_ANIMALS = (0, 0, 1, 1, 1, 1, 1, 1, 0, 0)  # the groups of CIFAR-10's classes in paper 000
SEPARATE = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))  # the classes of paper 004's three clusters
OVERLAPPING = ((0, 1, 2, 3, 8, 9), (4, 5, 6, 7, 8, 9), (0, 1, 2, 3, 4, 5))


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of n clients: sorted indices ``train`` and ``test`` per client, and what is done to them.

    ``test`` points into the test set, or into the training set if ``test_from`` is ``"train"``. ``truth`` ``(n,)``
    holds the true groups; -1 for all clients where there are none.
    """

    name: str
    parameters: Mapping[str, Any]
    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    truth: IntArray
    transforms: tuple[Transform | None, ...]
    test_from: Literal["test", "train"]

    def __post_init__(self) -> None:
        for client, sizes in enumerate(zip(map(len, self.train), map(len, self.test), strict=True)):
            if 0 in sizes:
                raise ValueError(f"client {client} has {sizes[0]} training, {sizes[1]} test samples: use fewer clients")

    @property
    def checksum(self) -> str:
        """The SHA-256 of indices, transforms and truth: equal for equal splits, whatever made them."""
        digest = hashlib.sha256(repr((self.test_from, self.transforms, self.truth.tolist())).encode())
        for indices in (*self.train, *self.test):
            digest.update(f"{len(indices)}:".encode() + np.asarray(indices, dtype="<i8").tobytes())
        return digest.hexdigest()

    def class_counts(self, labels: ArrayLike, *, part: Literal["train", "test"] = "train") -> IntArray:
        """Count each client's samples of each class ``(n, classes)``, as the client sees them after its transform."""
        held = np.asarray(labels)
        rows = [transform_labels(held[i], t) for i, t in zip(getattr(self, part), self.transforms, strict=True)]
        return np.array([np.bincount(row, minlength=held.max() + 1) for row in rows])


def transform_images(images: NDArray[Any], transform: Transform | None) -> NDArray[Any]:
    """Turn images ``(n, height, width, ...)`` against the clock if ``transform`` is ``("rotate", quarter_turns)``."""
    turns = _arguments(transform, "rotate")
    return np.ascontiguousarray(np.rot90(images, turns[0], axes=(1, 2))) if turns else images


def transform_labels(labels: ArrayLike, transform: Transform | None) -> IntArray:
    """Exchange two classes if ``transform`` is ``("swap", class, class)``."""
    before, pair = np.asarray(labels), _arguments(transform, "swap")
    return np.where(before == pair[0], pair[1], np.where(before == pair[1], pair[0], before)) if pair else before


def iid(labels: ArrayLike, *, n_clients: int, rng: Rng, samples: Count = None, test_labels: Tests = None) -> Partition:
    """Deal all samples, or ``samples`` a client, at random in equal parts (sizes differ by one at most); one group."""
    pool = _Pool("iid", labels, n_clients, rng, test_labels, samples=samples)
    return pool.deal(pool.equal_sizes(samples), pool.blocks(1, 1))


def quantity_skew(
    labels: ArrayLike, *, n_clients: int, alpha: float, rng: Rng, min_size: int = 10, test_labels: Tests = None
) -> Partition:
    """Deal all samples at random in parts whose sizes beyond ``min_size`` follow Dir(``alpha``); one true group."""
    pool = _Pool("quantity_skew", labels, n_clients, rng, test_labels, alpha=alpha, min_size=min_size)
    sizes = min_size + rng.multinomial(pool.labels.size - n_clients * min_size, rng.dirichlet([alpha] * n_clients))
    return pool.deal(sizes[:, None], pool.blocks(1, 1))


def label_swap(
    labels: ArrayLike, *, n_clients: int, rng: Rng, groups: int = 5, samples: Count = None, test_labels: Tests = None
) -> Partition:
    """Deal samples at random; clients of group g, the g-th block, exchange the labels 2g and 2g + 1 (paper 003)."""
    pool = _Pool("label_swap", labels, n_clients, rng, test_labels, groups=groups, samples=samples)
    truth = pool.blocks(groups, pool.classes // 2)
    return pool.deal(pool.equal_sizes(samples), truth, [("swap", 2 * g, 2 * g + 1) for g in truth.tolist()])


def rotation(
    labels: ArrayLike, *, n_clients: int, rng: Rng, groups: int = 4, samples: Count = None, test_labels: Tests = None
) -> Partition:
    """Deal samples at random; clients of group g, the g-th block, turn images by g quarter turns (paper 003, F-7)."""
    pool = _Pool("rotation", labels, n_clients, rng, test_labels, groups=groups, samples=samples)
    truth = pool.blocks(groups, 4)
    return pool.deal(pool.equal_sizes(samples), truth, [("rotate", g) for g in truth.tolist()])


def majority_class(
    labels: ArrayLike,
    *,
    n_clients: int,
    share: float,
    rng: Rng,
    samples: Count = None,
    groups: Sequence[int] | None = None,
    test_labels: Tests = None,
) -> Partition:
    """Give client k the share m_k of class k (modulo classes) and equal parts of the others (paper 000).

    Without ``samples`` each client gets as many as the scarcest class allows: 5000 on CIFAR-10 at every share.
    ``groups`` is the true group of each class, such as ``VEHICLES_AND_ANIMALS``; by default each class is its own.
    """
    pool = _Pool("majority_class", labels, n_clients, rng, test_labels, share=share, samples=samples, groups=groups)
    names = np.arange(pool.classes) if groups is None else np.asarray(groups)
    if names.shape != (pool.classes,):
        raise ValueError(f"groups name {names.size} classes, there are {pool.classes}: pass one group a class")
    return pool.deal(pool.majority(share, 1, samples), names[np.arange(n_clients) % pool.classes])


def paired_majority(
    labels: ArrayLike, *, n_clients: int, rng: Rng, share: float = 0.3, samples: Count = None, test_labels: Tests = None
) -> Partition:
    """Give clients 2g and 2g + 1 the share of class 2g, as much of 2g + 1, and equal parts of the rest (paper 001).

    Without ``samples`` each client gets as many as the scarcest class allows: about 5421 on MNIST (A-8). Pairs beyond
    the number of classes start again with class 0, and belong to that group.
    """
    pool = _Pool("paired_majority", labels, n_clients, rng, test_labels, share=share, samples=samples)
    return pool.deal(pool.majority(share, 2, samples), np.arange(n_clients) // 2 % (pool.classes // 2))


def class_subsets(
    labels: ArrayLike, *, n_clients: int, rng: Rng, classes: int = 2, samples: Count = None, test_labels: Tests = None
) -> Partition:
    """Give each group of clients its own ``classes`` consecutive classes, in equal parts (paper 002: two or five)."""
    pool = _Pool("class_subsets", labels, n_clients, rng, test_labels, classes=classes, samples=samples)
    if not 1 <= classes <= pool.classes or pool.classes % classes:
        raise ValueError(f"classes is {classes}, expected a divisor of the {pool.classes} classes there are")
    truth = pool.blocks(pool.classes // classes, pool.classes)
    counts = np.zeros((n_clients, pool.classes), dtype=np.int64)
    for c, size in enumerate(pool.sizes.tolist()):
        members = np.flatnonzero(truth == c // classes)
        counts[members, c] = _spread(size, members.size) if samples is None else _spread(samples, classes)[c % classes]
    return pool.deal(counts, truth)


def dirichlet(
    labels: ArrayLike, *, n_clients: int, alpha: float, rng: Rng, min_size: int = 10, test_labels: Tests = None
) -> Partition:
    """Deal each class by shares drawn from Dir(``alpha``) over clients, as NIID-Bench does (paper 002).

    A client that already holds its equal part of all samples gets no more; the draw is repeated until everyone has
    ``min_size``. There are no true groups: ``truth`` is -1.
    """
    pool = _Pool("dirichlet", labels, n_clients, rng, test_labels, alpha=alpha, min_size=min_size)
    for _ in range(1000):
        counts = np.zeros((n_clients, pool.classes), dtype=np.int64)
        for c, size in enumerate(pool.sizes):
            below = counts.sum(axis=1) < pool.labels.size / n_clients
            shares = rng.dirichlet(np.full(n_clients, alpha)) * below
            shares = shares / shares.sum() if shares.sum() > 0 else below / below.sum()
            counts[:, c] = np.diff(np.floor(np.cumsum(shares)[:-1] * size).astype(np.int64), prepend=0, append=size)
        if counts.sum(axis=1).min() >= min_size:
            return pool.deal(counts, np.full(n_clients, -1))
    raise ValueError(f"1000 draws left a client below {min_size} samples: raise alpha, or lower min_size or n_clients")


def cluster_classes(
    labels: ArrayLike,
    *,
    n_clients: int,
    overlap: bool,
    balance: bool,
    rng: Rng,
    samples: Count = None,
    as_published: bool = False,
    test_labels: Tests = None,
) -> Partition:
    """Draw clients from three clusters of classes, with or without common classes (paper 004's four splits).

    Out of balance, the clusters have 20, 47 and 33 % of the clients, and each draws its class weights from Dir(1). A
    client draws ``samples`` (N / n by default) *with replacement*, 70 % to train and 30 % to test, and keeps those that
    differ, so clients of a cluster share some. Training samples come from ``labels``, test samples from ``test_labels``
    or from 30 % of ``labels`` set aside first. ``as_published`` draws before it splits, as the authors do: a client's
    test samples may then be another's training samples (O-23), and ``test_labels`` are not used.
    """
    settings = {"overlap": overlap, "balance": balance, "samples": samples, "as_published": as_published}
    pool = _Pool("cluster_classes", labels, n_clients, rng, None if as_published else test_labels, **settings)
    if pool.classes != 10 or n_clients < 3:
        raise ValueError(f"{n_clients} clients and {pool.classes} classes: the splits need 3 or more, and 10 classes")
    bounds = (7, 21) if n_clients == 30 else (round(0.2 * n_clients), round(0.67 * n_clients))  # 30: 7, 14 and 9
    truth = pool.blocks(3, 3) if balance else np.searchsorted(bounds, np.arange(n_clients), side="right")
    weights = np.ones((3, 10)) if balance else rng.dirichlet(np.ones(10), size=3)
    for cluster, classes in enumerate(OVERLAPPING if overlap else SEPARATE):
        weights[cluster, np.setdiff1d(np.arange(10), classes)] = 0.0
    total, draws = pool.labels.size, samples or pool.labels.size // n_clients
    aside = np.zeros(total, dtype=bool)
    aside[rng.permutation(total)[: round(0.3 * total)]] = pool.tests is None
    train, test = [], []
    for row in weights[truth]:
        odds = row[pool.labels]
        if as_published:
            drawn = rng.permutation(pool.draw(odds, draws))
            own, held = np.split(drawn, [int(0.7 * drawn.size)])
        else:
            own = pool.draw(odds * ~aside, int(0.7 * draws))
            held = pool.draw(odds * aside if pool.tests is None else row[pool.tests], draws - int(0.7 * draws))
        train.append(own)
        test.append(held)
    return pool.partition(train, test, truth)


class _Pool:
    """The samples there are, who asks for them, and how they are dealt."""

    def __init__(self, name: str, labels: ArrayLike, n: int, rng: Rng, tests: Tests, **parameters: Any) -> None:
        self.name, self.n, self.rng, self.parameters = name, n, rng, {"n_clients": n, **parameters}
        self.labels, self.tests = _check_classes(labels), None if tests is None else _check_classes(tests)
        self.sizes, self.classes = np.bincount(self.labels), int(self.labels.max()) + 1
        total = self.labels.size
        highest = {"n_clients": total, "samples": total, "min_size": total // max(n, 1), "alpha": 1e6}
        for key, high in highest.items():
            value, low = self.parameters.get(key), 1e-3 if key == "alpha" else 1
            if value is not None and not low <= value <= high:
                raise ValueError(f"{key} is {value}, expected from {low} to {high} with {total} samples")
        if self.tests is not None and (missing := np.setxor1d(self.labels, self.tests)).size:
            raise ValueError(f"class {missing[0]} is not in both the training and the test labels: use matching sets")

    def blocks(self, groups: int, most: int) -> IntArray:
        if not 1 <= groups <= min(most, self.n):
            raise ValueError(f"{groups} groups of {self.n} clients: expected from 1 to {min(most, self.n)} groups")
        return np.arange(self.n) * groups // self.n

    def equal_sizes(self, samples: Count) -> IntArray:
        return (_spread(self.labels.size, self.n) if samples is None else np.full(self.n, samples))[:, None]

    def draw(self, odds: FloatArray, size: int) -> IntArray:
        return np.unique(self.rng.choice(odds.size, size, p=odds / odds.sum()))

    def majority(self, share: float, width: int, samples: Count) -> IntArray:
        """Count ``(n, classes)``: ``share`` of each of a client's ``width`` main classes, equal parts of the others."""
        if not 0 <= width * share <= 1 or self.classes % width or self.classes == width:
            known = f"{width} of {self.classes} classes"
            raise ValueError(f"share is {share} for {known}: expected 0 to {1 / width} for a divisor of them")

        def table(size: int) -> IntArray:
            main = int(share * size + 1e-9)  # 0.29 * 100 is 28.999...
            row = np.concatenate([np.full(width, main), _spread(size - width * main, self.classes - width)])
            # Turning one row from client to client makes the totals of the classes as even as the row itself.
            return np.stack([np.roll(row, client // width * width) for client in range(self.n)])

        if samples is None:
            sizes = range(1, self.labels.size + 1)
            samples = bisect_left(sizes, True, key=lambda size: bool(np.any(table(size).sum(axis=0) > self.sizes)))
        return table(samples)

    def deal(self, counts: IntArray, truth: IntArray, transforms: Sequence[Transform] = ()) -> Partition:
        """Deal ``counts`` of each class ``(n, classes)``, or of any class ``(n, 1)``, and test samples to match."""
        by_class = int(counts.shape[1] > 1)
        train = _take(self.labels * by_class, counts, self.rng)
        if self.tests is None:
            cuts = [np.split(self.rng.permutation(own), [max(1, round(HELD_OUT * own.size))]) for own in train]
            return self.partition([own for _, own in cuts], [held for held, _ in cuts], truth, transforms)
        have, need = np.bincount(self.tests * by_class), counts.sum(axis=0)
        scarce = np.argmin(have / np.maximum(need, 1e-9))
        wanted = counts * have[scarce] // max(need[scarce], 1)
        empty = np.flatnonzero(~wanted.any(axis=1))
        wanted[empty, counts[empty].argmax(axis=1)] = 1
        return self.partition(train, _take(self.tests * by_class, wanted, self.rng), truth, transforms)

    def partition(self, train: Parts, test: Parts, truth: IntArray, transforms: Sequence[Transform] = ()) -> Partition:
        own, held = (tuple(np.sort(part) for part in parts) for parts in (train, test))
        given = tuple(transforms) or (None,) * self.n
        return Partition(self.name, self.parameters, own, held, truth, given, "train" if self.tests is None else "test")


def _take(labels: IntArray, counts: IntArray, rng: Rng) -> Parts:
    """Draw disjoint samples: ``counts[i, c]`` of class c for client i."""
    owner = np.full(labels.size, -1)
    for c, wanted in enumerate(counts.T):
        found = rng.permutation(np.flatnonzero(labels == c))
        if wanted.sum() > found.size:
            what = f"class {c}" if counts.shape[1] > 1 else "the data set"
            raise ValueError(f"{what} has {found.size} samples, not {wanted.sum()}: lower samples or n_clients")
        owner[found[: wanted.sum()]] = np.repeat(np.arange(len(counts)), wanted)
    return [np.flatnonzero(owner == client) for client in range(len(counts))]


def _spread(total: int, parts: int) -> IntArray:
    return total // parts + (np.arange(parts) < total % parts)


def _arguments(transform: Transform | None, kind: str) -> tuple[int, ...]:
    if transform is not None and (transform[0], len(transform)) not in (("rotate", 2), ("swap", 3)):
        raise ValueError(f"transform {transform} is unknown: use ('rotate', quarter_turns) or ('swap', class, class)")
    return transform[1:] if transform is not None and transform[0] == kind else ()


def _check_classes(labels: ArrayLike) -> IntArray:
    checked = np.asarray(labels)
    if checked.ndim != 1 or checked.size == 0 or not np.issubdtype(checked.dtype, np.integer) or checked.min() < 0:
        raise ValueError(f"labels are {checked.dtype}{checked.shape}: pass one class a sample, from 0 up")
    return checked.astype(np.int64)
