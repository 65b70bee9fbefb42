"""One workload on one engine, in a process of its own: ``python -m benchmarks.engines ENGINE WORKLOAD``.

Prints a line of JSON: the seconds of each round, and of the whole process since its start.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any

import numpy as np

STARTED = time.time()


def ours(name: str) -> list[float]:
    """Run this project's in-process engine."""
    from benchmarks.workloads import WORKLOADS
    from cflib import methods
    from cflib.drive import first_state
    from cflib.experiment import Run
    from cflib.server import serve
    from cflib.simulation import Simulation

    load = WORKLOADS[name]
    spec = Run(methods.fedavg(), load.federation(), load.model(), load.training(), rounds=load.rounds)
    runtime = Simulation(spec.federation, spec.network, spec.training, seed=0)
    seconds, began = [], time.perf_counter()
    for _ in serve(spec.method, runtime, first_state(spec), rounds=load.rounds, seed=0):
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    return seconds


def fit(name: str) -> list[float]:
    """Train the clients one after the other with ``keras.Model.fit`` and average their weights."""
    load, clients = peer_data(name)
    model = keras_model(name)
    weights, seconds = model.get_weights(), []
    for _ in range(load.rounds):
        began = time.perf_counter()
        trained = []
        for images, labels in clients:
            model.set_weights(weights)
            model.fit(images, labels, batch_size=load.batch, verbose=0)
            trained.append(model.get_weights())
        weights = [sum(arrays) / len(arrays) for arrays in zip(*trained, strict=True)]
        seconds.append(time.perf_counter() - began)
    return seconds


def flower(name: str) -> list[float]:
    """Run Flower's simulation with Keras clients, one CPU a client, as its tutorials do."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    marks: list[float] = []
    client_app = ClientApp()
    load = peer_data(name)[0]

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        from benchmarks.engines import keras_client

        model, load, clients = keras_client(name)
        images, labels = clients[int(context.node_config["partition-id"])]
        model.set_weights(message.content["arrays"].to_numpy_ndarrays())
        model.fit(images, labels, batch_size=load.batch, verbose=0)
        reply = {"arrays": ArrayRecord(model.get_weights()), "metrics": MetricRecord({"num-examples": len(labels)})}
        return Message(RecordDict(reply), reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            result = super().aggregate_train(server_round, replies)
            marks.append(time.perf_counter())
            return result

    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        model = keras_model(name)
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=load.clients)
        marks.append(time.perf_counter())
        strategy.start(grid=grid, initial_arrays=ArrayRecord(model.get_weights()), num_rounds=load.rounds)

    run_simulation(
        server_app, client_app, num_supernodes=load.clients, backend_config={"client_resources": {"num_cpus": 1}}
    )
    return [after - before for before, after in itertools.pairwise(marks)]


def peer_data(name: str) -> tuple[Any, list[Any]]:
    """Return a workload and its clients' scaled images and labels, with TensorFlow's settings as a user has them."""
    from benchmarks.workloads import WORKLOADS

    os.environ.pop("TF_NUM_INTRAOP_THREADS", None)
    os.environ.pop("TF_ENABLE_ONEDNN_OPTS", None)
    if os.environ.get("BENCH_ONEDNN"):
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
    load = WORKLOADS[name]
    federation = load.federation()
    divisor = load.options.get("scale", 255)
    data = [federation.client(i) for i in range(load.clients)]
    return load, [(np.atleast_3d(c.train_images / divisor).astype("float32"), c.train_labels) for c in data]


def keras_model(name: str) -> Any:
    """Return the workload's network in plain Keras, compiled."""
    import keras
    from keras import layers

    if name == "mobilenet":
        model = keras.applications.MobileNet((32, 32, 3), weights=None, classes=10, classifier_activation=None)
    elif name == "mcmahan":
        stack: list[Any] = [keras.Input((28, 28)), layers.Reshape((28, 28, 1))]
        for filters in (32, 64):
            stack += [layers.Conv2D(filters, 5, padding="same", activation="relu"), layers.MaxPooling2D()]
        model = keras.Sequential([*stack, layers.Flatten(), layers.Dense(512, activation="relu"), layers.Dense(10)])
    else:
        hidden = layers.Dense(200, activation="relu")
        model = keras.Sequential([keras.Input((8, 8)), layers.Flatten(), hidden, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
    return model


_KEPT: dict[str, Any] = {}


def keras_client(name: str) -> Any:
    """Return the model, the workload and all clients' data, kept in the worker, which favours the peer."""
    if name not in _KEPT:
        load, clients = peer_data(name)
        _KEPT[name] = (keras_model(name), load, clients)
    return _KEPT[name]


if __name__ == "__main__":
    engine, workload = sys.argv[1:]
    rounds = {"ours": ours, "fit": fit, "flower": flower}[engine](workload)
    print(json.dumps({"rounds": rounds, "whole": time.time() - STARTED}), flush=True)
