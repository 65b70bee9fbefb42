"""What a partition is, and how samples are dealt: counted out by class, disjoint, with test samples to match."""

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

HELD_OUT = 0.2  # share of a client's samples kept for testing where there is no test set


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


class Pool:
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
        """Group the clients in equal blocks of neighbours ``(n,)``."""
        if not 1 <= groups <= min(most, self.n):
            raise ValueError(f"{groups} groups of {self.n} clients: expected from 1 to {min(most, self.n)} groups")
        return np.arange(self.n) * groups // self.n

    def equal_sizes(self, samples: Count) -> IntArray:
        """Count ``(n, 1)``: ``samples`` a client, or all there are in equal parts."""
        return (spread(self.labels.size, self.n) if samples is None else np.full(self.n, samples))[:, None]

    def draw(self, odds: FloatArray, size: int) -> IntArray:
        """Draw with replacement and keep the samples that differ."""
        return np.unique(self.rng.choice(odds.size, size, p=odds / odds.sum()))

    def majority(self, share: float, width: int, samples: Count) -> IntArray:
        """Count ``(n, classes)``: ``share`` of each of a client's ``width`` main classes, equal parts of the others."""
        if not 0 <= width * share <= 1 or self.classes % width or self.classes == width:
            known = f"{width} of {self.classes} classes"
            raise ValueError(f"share is {share} for {known}: expected 0 to {1 / width} for a divisor of them")

        def table(size: int) -> IntArray:
            main = int(share * size + 1e-9)  # 0.29 * 100 is 28.999...
            row = np.concatenate([np.full(width, main), spread(size - width * main, self.classes - width)])
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
        """Write down who holds what."""
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


def spread(total: int, parts: int) -> IntArray:
    """Split a total into whole parts that differ by one at most."""
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
