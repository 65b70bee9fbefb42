"""The federations whose speed is measured, the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cflib import datasets, partition
from cflib.federation import Federation
from cflib.models import Network
from cflib.training import Training


@dataclass(frozen=True)
class Workload:
    """A federation, a network and local training; ``rounds`` are run, the first of them not counted as steady."""

    title: str
    dataset: str
    clients: int
    samples: int
    network: str
    options: dict[str, Any]
    batch: int
    rounds: int

    def federation(self) -> Federation:
        """Return the data, split evenly."""
        data = datasets.load(self.dataset)
        split = partition.iid(
            data.train_labels,
            n_clients=self.clients,
            samples=self.samples,
            rng=np.random.default_rng(0),
            test_labels=data.test_labels,
        )
        return Federation(data, split)

    def model(self) -> Network:
        """Return the network."""
        shape = datasets.load(self.dataset).train_images.shape[1:]
        return Network(self.network, input_shape=shape, classes=10, options=self.options)

    def training(self) -> Training:
        """Return the local training: plain SGD, one epoch."""
        return Training(optimizer="sgd", learning_rate=0.01, epochs=1, batch_size=self.batch)


WORKLOADS = {
    "mcmahan": Workload("McMahan CNN, 10 clients x 600, batch 10", "mnist", 10, 600, "mcmahan_cnn", {}, 10, 5),
    "mobilenet": Workload("MobileNet 32x32, 10 clients x 500, batch 32", "cifar10", 10, 500, "mobilenet", {}, 32, 3),
    "mlp": Workload(
        "MLP on digits, 100 clients, 20 rounds", "digits", 100, 14, "mlp", {"hidden": (200,), "scale": 16}, 10, 20
    ),
}
