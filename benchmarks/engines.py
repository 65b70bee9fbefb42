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

STARTED = time.time() - float(os.environ.get("BENCH_WAITED", 0))


def ours(name: str) -> list[float]:
    """Run this project's in-process engine."""
    from benchmarks.workloads import WORKLOADS
    from cflib import methods
    from cflib.experiment import Run
    from cflib.runs import first_state
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
    os.environ.pop("TF_NUM_INTRAOP_THREADS", None)
    from benchmarks.workloads import WORKLOADS

    os.environ.pop("TF_NUM_INTRAOP_THREADS", None)  # a user of plain Keras has all cores
    load = WORKLOADS[name]
    federation = load.federation()
    model, scale = keras_model(name)
    clients = [federation.client(i) for i in range(federation.n_clients)]
    weights, seconds = model.get_weights(), []
    for _ in range(load.rounds):
        began = time.perf_counter()
        trained = []
        for client in clients:
            model.set_weights(weights)
            model.fit(client.train_images / scale, client.train_labels, batch_size=load.batch, verbose=0)
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

    from benchmarks.workloads import WORKLOADS

    load, marks, client_app = WORKLOADS[name], [], ClientApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        from benchmarks.engines import keras_client

        model, images, labels = keras_client(name, int(context.node_config["partition-id"]))
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
        model, _ = keras_model(name)
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=load.clients)
        marks.append(time.perf_counter())
        strategy.start(grid=grid, initial_arrays=ArrayRecord(model.get_weights()), num_rounds=load.rounds)

    run_simulation(
        server_app, client_app, num_supernodes=load.clients, backend_config={"client_resources": {"num_cpus": 1}}
    )
    return [after - before for before, after in itertools.pairwise(marks)]


def keras_model(name: str) -> tuple[Any, float]:
    """Return the compiled Keras model of a workload and its pixel scale."""
    import keras

    from benchmarks.workloads import WORKLOADS
    from cflib.models import build

    network = WORKLOADS[name].model()
    options = {key: value for key, value in dict(network.options).items() if key != "scale"}
    model = build(network.name, input_shape=network.input_shape, classes=10, **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
    return model, network.scale


_KEPT: dict[Any, Any] = {}


def keras_client(name: str, index: int) -> tuple[Any, Any, Any]:
    """Return a client's model and data; both are kept in the worker, which favours the peer."""
    from benchmarks.workloads import WORKLOADS

    if name not in _KEPT:
        _KEPT[name] = (*keras_model(name), WORKLOADS[name].federation())
    model, scale, federation = _KEPT[name]
    client = federation.client(index)
    return model, client.train_images / scale, client.train_labels


if __name__ == "__main__":
    engine, workload = sys.argv[1:]
    rounds = {"ours": ours, "fit": fit, "flower": flower}[engine](workload)
    print(json.dumps({"rounds": rounds, "whole": time.time() - STARTED}), flush=True)
