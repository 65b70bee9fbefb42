"""A data set and who holds which part of it: what each client sees, and what the server keeps for testing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cflib.arrays import IntArray
from cflib.datasets import Dataset
from cflib.dealing import Partition, transform_images, transform_labels

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class ClientData:
    """One client's own samples, already transformed as the partition says."""

    train_images: Images
    train_labels: IntArray
    test_images: Images
    test_labels: IntArray


@dataclass(frozen=True)
class Federation:
    """A data set split among clients.

    ``server_samples`` limits the server's test set, and ``client_samples`` every client's, to an even sample of that
    many images.
    """

    dataset: Dataset
    partition: Partition
    server_samples: int | None = None
    client_samples: int | None = None

    def __post_init__(self) -> None:
        for name in ("server_samples", "client_samples"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}: keep at least one image, or None for all")

    @property
    def checksum(self) -> str:
        """SHA-256 of everything that clients and server hold."""
        text = f"{self.dataset.checksum} {self.partition.checksum} {self.server_samples} {self.client_samples}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.partition.train)

    @property
    def truth(self) -> IntArray:
        """``(n,)`` true groups; all -1 if the partition has none."""
        return self.partition.truth

    def client(self, index: int) -> ClientData:
        """Return the samples of one client."""
        data, part = self.dataset, self.partition
        pool = (
            (data.test_images, data.test_labels) if part.test_from == "test" else (data.train_images, data.train_labels)
        )
        train, test, change = part.train[index], part.test[index], part.transforms[index]
        test = test[_evenly(len(test), self.client_samples)]
        return ClientData(
            transform_images(data.train_images[train], change),
            transform_labels(data.train_labels[train], change),
            transform_images(pool[0][test], change),
            transform_labels(pool[1][test], change),
        )

    def server(self) -> tuple[Images, IntArray]:
        """Return the server's test images and labels: the official test set or an even sample of it."""
        images, labels = self.dataset.test_images, self.dataset.test_labels
        chosen = _evenly(len(labels), self.server_samples)
        return images[chosen], labels[chosen]


def _evenly(n: int, wanted: int | None) -> slice | IntArray:
    """Select all of n samples, or as many as wanted, evenly spread."""
    if wanted is None or wanted >= n:
        return slice(None)
    return np.linspace(0, n - 1, wanted).astype(np.int64)
