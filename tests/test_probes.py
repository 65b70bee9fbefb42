"""Probes: the bias vectors and layer distances of one round of local training."""

from __future__ import annotations

import numpy as np
import pytest

from cflib import clustering, datasets, methods, partition
from cflib.distances import coordinates, minkowski_distances
from cflib.experiment import Measures, Run
from cflib.federation import Federation
from cflib.models import Network
from cflib.records import Store
from cflib.runs import run
from cflib.studies.probes import Probe, biases, gather_probes, layer_distances, views
from cflib.training import Training

NETWORK = Network("mlp", (8, 8), 10, {"hidden": [16], "scale": 16})
TRAINING = Training("adam", 0.01, epochs=3, batch_size=16)


@pytest.fixture(scope="module")
def federation():
    data = datasets.load("digits")
    rng = np.random.default_rng(0)
    split = partition.class_subsets(data.train_labels, n_clients=10, classes=5, rng=rng, test_labels=data.test_labels)
    return Federation(data, split)


def conduct(probe, store):
    return gather_probes({"only": probe}, store=store, progress=False)["only"]


def test_the_views_are_the_layers_in_order_the_parts_of_the_last_and_everything():
    found = views(NETWORK)
    assert list(found.values()) == [(0, 1), (2, 3), (2,), (3,), (0, 1, 2, 3)]
    assert list(found)[2:] == ["last kernel", "last bias", "all weights"]


def test_statistics_of_normalisation_belong_to_no_view():
    network = Network("mobilenet_v2", (32, 32, 3), 10, {"alpha": 0.35})
    trained = [place for place, used in enumerate(network.trainable) if used]
    found = views(network)
    assert found["all weights"] == tuple(trained)
    assert sorted(place for name in list(found)[:-3] for place in found[name]) == trained


def test_a_probe_is_the_first_round_of_bias_clustering(federation, tmp_path):
    record = conduct(Probe(federation, NETWORK, TRAINING, seed=3), Store(tmp_path))
    vectors = biases(record)
    eps = float(np.median(minkowski_distances(vectors)))
    spec = Run(
        methods.bias_clustering("dbscan", eps=eps),
        federation,
        NETWORK,
        TRAINING,
        rounds=1,
        seed=3,
        measures=Measures(clients=(), server=()),
    )
    labels = run(spec, store=Store(tmp_path), progress=False).labels[-1]
    assert labels.tolist() == clustering.dbscan(vectors, eps=eps).tolist()


def test_distances_of_a_layer_cluster_like_the_layer_itself(federation, tmp_path):
    record = conduct(Probe(federation, NETWORK, TRAINING), Store(tmp_path))
    vectors, distances = biases(record), layer_distances(record, NETWORK)["last bias"]
    assert np.allclose(distances, minkowski_distances(vectors), atol=1e-6)
    assert np.allclose(minkowski_distances(coordinates(distances)), distances, atol=1e-6)
    truth = federation.truth.tolist()
    assert clustering.kmeans(vectors, n_clusters=2).tolist() == truth
    assert clustering.kmeans(coordinates(distances), n_clusters=2).tolist() == truth
    assert record.rounds["parameters"].tolist() == [1040, 170, 160, 10, 1210]


def test_a_kept_probe_is_read_not_trained_again(federation, tmp_path, monkeypatch):
    probe, store = Probe(federation, NETWORK, TRAINING), Store(tmp_path)
    first = conduct(probe, store)
    monkeypatch.setattr("cflib.studies.probes._conduct", None)
    assert conduct(probe, store).digest == first.digest


def test_a_probe_that_may_not_be_computed_is_read_if_it_is_there_and_left_out_if_not(federation, tmp_path):
    probes = {seed: Probe(federation, NETWORK, TRAINING, seed) for seed in range(3)}
    store = Store(tmp_path)
    first = gather_probes(probes, store=store, compute=lambda seed: seed == 1, progress=False)
    assert list(first) == [1]
    again = gather_probes(probes, store=store, compute=lambda seed: seed == 2, progress=False)
    assert list(again) == [1, 2]
    assert again[1].digest == first[1].digest
    assert [record.key for record in again.values()] == [probes[1].key, probes[2].key]


def test_a_diverged_client_is_named(federation, tmp_path):
    wild = Probe(federation, NETWORK, Training("sgd", 1e30, epochs=3, batch_size=16))
    with pytest.raises(ValueError, match="diverged in the probe: lower the learning rate"):
        conduct(wild, Store(tmp_path))
