"""Data as the code of paper 002 prepares them (discrepancies D-9 and D-13), to measure what its defects cost.

Training and test set are pooled before clients get them; the code takes the pooled test part's *labels* from the test
set but its *images* from the training set, so that they do not belong together. Of its pool a client takes the first
2,100 samples, trains on four fifths of them, and is tested on all the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.random import Generator as Rng
from numpy.typing import ArrayLike

from cflib.datasets import Dataset
from cflib.dealing import Partition
from cflib.partition import class_subsets

TAKEN = 2100
VALIDATION = 0.2  # share of what is taken that the code sets aside for validation
TESTS = {2: 1000, 5: 500}  # samples of the test part that a client with so many classes gets


def pooled(dataset: Dataset, *, mislabelled: bool = True) -> Dataset:
    """Append the test set to the training set; ``mislabelled`` pairs its labels with the first training images."""
    count = len(dataset.test_labels)
    if len(dataset.train_labels) < count:
        raise ValueError(f"{dataset.name} has {len(dataset.train_labels)} training images for {count} test labels")
    images = dataset.train_images[:count] if mislabelled else dataset.test_images
    name = f"{dataset.name} pooled{', mislabelled' if mislabelled else ''}"
    return replace(
        dataset,
        name=name,
        train_images=np.concatenate([dataset.train_images, images]),
        train_labels=np.concatenate([dataset.train_labels, dataset.test_labels]),
        checksum=hashlib.sha256(f"{dataset.checksum} {name}".encode()).hexdigest(),
    )


def pooled_classes(
    labels: ArrayLike, *, n_clients: int, classes: int, rng: Rng, tests: int, taken: int = TAKEN
) -> Partition:
    """Split a pooled set, of which the last ``tests`` samples are the test part, as the code of paper 002 does.

    Every client gets its part of its classes from both sets, shuffles them, takes the first ``taken``, trains on four
    fifths of those and is tested on all that it did not take.
    """
    if classes not in TESTS:
        raise ValueError(f"classes is {classes}: the published splits have {' or '.join(map(str, TESTS))}")
    every = np.asarray(labels)
    first = every.size - tests
    counts = np.bincount(every[first:])
    some = min(TESTS[classes], int(counts.min()) * len(counts) // n_clients // classes * classes)
    own = class_subsets(every[:first], n_clients=n_clients, classes=classes, rng=rng)
    more = class_subsets(every[first:], n_clients=n_clients, classes=classes, rng=rng, samples=some)
    train, test = [], []
    for client in range(n_clients):
        parts = [own.train[client], own.test[client], first + more.train[client], first + more.test[client]]
        order = rng.permutation(np.concatenate(parts))
        if not 1 <= taken < order.size:
            raise ValueError(f"taken is {taken}, client {client} has {order.size} samples: take some, not all")
        train.append(np.sort(order[: round((1 - VALIDATION) * taken)]))
        test.append(np.sort(order[taken:]))
    parameters = {"n_clients": n_clients, "classes": classes, "tests": tests, "taken": taken}
    return Partition(
        "pooled_classes", parameters, tuple(train), tuple(test), own.truth, (None,) * n_clients, test_from="train"
    )
