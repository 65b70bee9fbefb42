"""Several runs by arm: computed, or recalled if all are kept; and a run state by state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cflib import datasets, methods, partition
from cflib.experiment import Measures, Run
from cflib.federation import Federation
from cflib.models import Network
from cflib.records import Store
from cflib.runs import models_after
from cflib.studies.arms import client_accuracies, cluster_accuracies, run_arms, states
from cflib.training import Training


@pytest.fixture(scope="module")
def spec():
    data = datasets.load("digits")
    split = partition.class_subsets(
        data.train_labels, n_clients=4, classes=5, rng=np.random.default_rng(0), test_labels=data.test_labels
    )
    network = Network("linear", (8, 8), 10, {"scale": 16})
    training = Training(learning_rate=0.1, batch_size=32)
    return Run(methods.fedavg(), Federation(data, split), network, training, rounds=2, measures=Measures(server=()))


def test_arms_are_recalled_only_if_all_of_their_runs_are_kept(spec, tmp_path):
    apart = replace(spec, method=methods.oracle([0, 0, 1, 1]))
    arms, store = {"one": [spec, replace(spec, seed=1)], "two": [apart]}, Store(tmp_path)
    assert run_arms(arms, store=store, compute=False) == {}
    made = run_arms(arms, store=store, progress=False)
    assert {name: [record.provenance["method"] for record in records] for name, records in made.items()} == {
        "one": ["fedavg", "fedavg"],
        "two": ["oracle"],
    }
    again = run_arms(arms, store=store, compute=False)
    assert [record.key for record in again["one"]] == [one.key for one in arms["one"]]
    assert run_arms({**arms, "more": [replace(spec, seed=2)]}, store=store, compute=False) == {}


def test_accuracies_come_by_round_and_client_and_by_cluster(spec, tmp_path):
    apart = replace(spec, method=methods.oracle([0, 1, 1, 0]))
    (record,) = run_arms({"two": [apart]}, store=Store(tmp_path), progress=False)["two"]
    found = client_accuracies(record)
    assert found.shape == (2, 4)
    assert found.mean(axis=1) == pytest.approx(record.rounds["accuracy_received"])
    assert cluster_accuracies(record) == pytest.approx([found[-1, [0, 3]].mean(), found[-1, 1:3].mean()])


def test_states_are_those_of_the_run_itself(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_CHECKPOINTS", str(tmp_path))
    found = states(spec)
    assert [state.round for state in found] == [0, 1, 2]
    (model,), _ = models_after(spec, store=Store(tmp_path), progress=False)
    assert all(np.array_equal(a, b) for a, b in zip(found[-1].models[0], model, strict=True))
