"""Who holds which samples: every paper's split as a function ``f(labels, *, n_clients, ..., rng, test_labels=None)``.

Training samples are disjoint unless the docstring says otherwise. With ``test_labels`` a client's test samples come
from that set, disjoint too, in the class shares of its training samples; without, a fifth of its own is held out.
Errors (``ValueError``) name the class that runs short, the value out of range, or the client left empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator as Rng
from numpy.typing import ArrayLike

from cflib.dealing import Count, Partition, Pool, Tests, spread

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

VEHICLES_AND_ANIMALS = (0, 0, 1, 1, 1, 1, 1, 1, 0, 0)  # the groups of CIFAR-10's classes in paper 000
SEPARATE = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))  # the classes of paper 004's three clusters
OVERLAPPING = ((0, 1, 2, 3, 8, 9), (4, 5, 6, 7, 8, 9), (0, 1, 2, 3, 4, 5))


def iid(labels: ArrayLike, *, n_clients: int, rng: Rng, samples: Count = None, test_labels: Tests = None) -> Partition:
    """Deal all samples, or ``samples`` a client, at random in equal parts (sizes differ by one at most); one group."""
    pool = Pool("iid", labels, n_clients, rng, test_labels, samples=samples)
    return pool.deal(pool.equal_sizes(samples), pool.blocks(1, 1))


def quantity_skew(
    labels: ArrayLike, *, n_clients: int, alpha: float, rng: Rng, min_size: int = 10, test_labels: Tests = None
) -> Partition:
    """Deal all samples at random in parts whose sizes beyond ``min_size`` follow Dir(``alpha``); one true group."""
    pool = Pool("quantity_skew", labels, n_clients, rng, test_labels, alpha=alpha, min_size=min_size)
    sizes = min_size + rng.multinomial(pool.labels.size - n_clients * min_size, rng.dirichlet([alpha] * n_clients))
    return pool.deal(sizes[:, None], pool.blocks(1, 1))


def label_swap(
    labels: ArrayLike, *, n_clients: int, rng: Rng, groups: int = 5, samples: Count = None, test_labels: Tests = None
) -> Partition:
    """Deal samples at random; clients of group g, the g-th block, exchange the labels 2g and 2g + 1 (paper 003)."""
    pool = Pool("label_swap", labels, n_clients, rng, test_labels, groups=groups, samples=samples)
    truth = pool.blocks(groups, pool.classes // 2)
    return pool.deal(pool.equal_sizes(samples), truth, [("swap", 2 * g, 2 * g + 1) for g in truth.tolist()])


def rotation(
    labels: ArrayLike, *, n_clients: int, rng: Rng, groups: int = 4, samples: Count = None, test_labels: Tests = None
) -> Partition:
    """Deal samples at random; clients of group g, the g-th block, turn images by g quarter turns (paper 003, F-7)."""
    pool = Pool("rotation", labels, n_clients, rng, test_labels, groups=groups, samples=samples)
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
    pool = Pool("majority_class", labels, n_clients, rng, test_labels, share=share, samples=samples, groups=groups)
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
    pool = Pool("paired_majority", labels, n_clients, rng, test_labels, share=share, samples=samples)
    return pool.deal(pool.majority(share, 2, samples), np.arange(n_clients) // 2 % (pool.classes // 2))


def class_subsets(
    labels: ArrayLike, *, n_clients: int, rng: Rng, classes: int = 2, samples: Count = None, test_labels: Tests = None
) -> Partition:
    """Give each group of clients its own ``classes`` consecutive classes, in equal parts (paper 002: two or five)."""
    pool = Pool("class_subsets", labels, n_clients, rng, test_labels, classes=classes, samples=samples)
    if not 1 <= classes <= pool.classes or pool.classes % classes:
        raise ValueError(f"classes is {classes}, expected a divisor of the {pool.classes} classes there are")
    truth = pool.blocks(pool.classes // classes, pool.classes)
    counts = np.zeros((n_clients, pool.classes), dtype=np.int64)
    for c, size in enumerate(pool.sizes.tolist()):
        members = np.flatnonzero(truth == c // classes)
        counts[members, c] = spread(size, members.size) if samples is None else spread(samples, classes)[c % classes]
    return pool.deal(counts, truth)


def dirichlet(
    labels: ArrayLike, *, n_clients: int, alpha: float, rng: Rng, min_size: int = 10, test_labels: Tests = None
) -> Partition:
    """Deal each class by shares drawn from Dir(``alpha``) over clients, as NIID-Bench does (paper 002).

    A client that already holds its equal part of all samples gets no more; the draw is repeated until everyone has
    ``min_size``. There are no true groups: ``truth`` is -1.
    """
    pool = Pool("dirichlet", labels, n_clients, rng, test_labels, alpha=alpha, min_size=min_size)
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
    pool = Pool("cluster_classes", labels, n_clients, rng, None if as_published else test_labels, **settings)
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
