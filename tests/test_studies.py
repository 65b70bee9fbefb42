"""Finished runs by arm and seed, the parts of a study, and a run state by state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cflib import datasets, methods, partition
from cflib.experiment import Measures, Run
from cflib.federation import Federation
from cflib.models import Network
from cflib.protocol import Schedule
from cflib.records import Store
from cflib.rules import final
from cflib.runs import gather, models_after, run
from cflib.simulation import Attendance
from cflib.studies.arms import (
    TASKS,
    by_arm,
    by_round,
    chronicle,
    client_accuracies,
    cluster_accuracies,
    cost_of_parting,
    generic_accuracies,
    prolonged,
    states,
)
from cflib.studies.parts import Parts, seeds_there
from cflib.training import Training, trainer


@pytest.fixture(scope="module")
def spec():
    data = datasets.load("digits")
    split = partition.class_subsets(
        data.train_labels, n_clients=4, classes=5, rng=np.random.default_rng(0), test_labels=data.test_labels
    )
    network = Network("linear", (8, 8), 10, {"scale": 16})
    training = Training(learning_rate=0.1, batch_size=32)
    return Run(methods.fedavg(), Federation(data, split), network, training, rounds=2, measures=Measures(server=()))


def test_records_come_by_arm_over_the_seeds_that_all_arms_have():
    there = [("FedAvg", 0), ("FedAvg", 1), ("FedAvg", 2), ("DBSCAN", 1), ("DBSCAN", 0), ("OPTICS", 1)]
    found = by_arm({name: name for name in there})
    assert found == {"FedAvg": [("FedAvg", 0), ("FedAvg", 1)], "DBSCAN": [("DBSCAN", 0), ("DBSCAN", 1)]}
    assert by_arm({("FedAvg", 1): "no seed 0"}) == by_arm({}) == {}


def test_seeds_are_counted_from_0_to_the_first_that_one_of_the_names_lacks():
    found = {("probe", 5, seed) for seed in (0, 1, 2, 4)} | {("probe", 10, seed) for seed in (0, 2)}
    assert seeds_there(found, [("probe", 5)], 5) == 3
    assert seeds_there(found, [("probe", 5)], 2) == 2
    assert seeds_there(found, iter([("probe", 5), ("probe", 10)]), 5) == 1
    assert seeds_there(found, [("probe", 1)], 5) == 0


def test_a_part_covers_the_runs_that_have_all_its_words():
    words = ("probe", "IID", "epochs 5", "seed 0")
    assert Parts(["probe"]).cover(*words)
    assert Parts(["two", " probe / seed 0 "]).cover(*words)
    assert Parts(["all"]).cover(*words)
    assert not Parts(["none"]).cover(*words)
    assert not Parts(["five", "probe/seed 1", "probe/epochs 10"]).cover(*words)
    assert not Parts([]).cover(*words)


def test_a_part_that_fits_no_run_is_named_with_the_words_that_do():
    asked = Parts(["rotaton/seed 0", "rotation/seed 1", "all", "none"])
    for seed in (0, 1):
        asked.cover("rotation", f"seed {seed}")
    with pytest.raises(ValueError, match=r"no run here fits rotaton/seed 0; .* rotation, seed 0, seed 1"):
        asked.check()
    Parts(["none"]).check()


def test_a_part_whose_runs_are_all_there_fits(spec, tmp_path):
    store, asked = Store(tmp_path), Parts(["mine"])
    gather({"mine": spec}, store=store)
    gather({"mine": spec}, store=store, compute=asked.cover)
    asked.check()


def test_accuracies_come_by_round_and_client_and_by_cluster(spec, tmp_path):
    apart = replace(spec, method=methods.oracle([0, 1, 1, 0]))
    record = run(apart, store=Store(tmp_path), progress=False)
    found = client_accuracies(record)
    assert found.shape == (2, 4)
    assert found.mean(axis=1) == pytest.approx(record.rounds["accuracy_received"])
    assert cluster_accuracies(record) == pytest.approx([found[-1, [0, 3]].mean(), found[-1, 1:3].mean()])


def test_the_cost_of_parting_is_also_told_for_clients_that_are_not_alone(spec, tmp_path):
    store = Store(tmp_path)
    together, parted = (
        run(replace(spec, method=m), store=store, progress=False)
        for m in (methods.fedavg(), methods.oracle([0, 1, 1, 1]))
    )
    lost = final(client_accuracies(together).T) - final(client_accuracies(parted).T)
    told = cost_of_parting(together, parted)
    assert told["sizes"] == [1, 3]
    assert told["cost"] == pytest.approx(lost.mean())
    assert told["cost to clients not alone"] == pytest.approx(lost[1:].mean())


def test_states_are_those_of_the_run_itself(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_CHECKPOINTS", str(tmp_path))
    found = states(spec)
    assert [state.round for state in found] == [0, 1, 2]
    (model,), _ = models_after(spec, store=Store(tmp_path), progress=False)
    assert all(np.array_equal(a, b) for a, b in zip(found[-1].models[0], model, strict=True))


@pytest.mark.parametrize("method", [methods.fedavg(), methods.oracle([0, 1, 1, 0])], ids=["fedavg", "oracle"])
def test_a_run_that_goes_on_from_another_ends_like_one_that_was_never_interrupted(spec, method, tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_CHECKPOINTS", str(tmp_path))
    first = replace(spec, method=method, schedule=Schedule(share=0.5, per="cluster"))
    rest = replace(first, rounds=4, start=(first, 2))
    options = {"store": Store(tmp_path), "progress": False}
    before, after = run(first, snapshots=[2], **options), run(rest, **options)
    both, whole = prolonged(before, after), run(replace(first, rounds=4), **options)
    assert both.labels.tolist() == whole.labels.tolist()
    assert np.array_equal(client_accuracies(both), client_accuracies(whole))
    assert both.rounds["round"].tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="the first run ends with round 4, the other begins with 3"):
        prolonged(whole, after)


def test_a_chronicle_tells_who_was_there_what_they_did_and_which_models_are_the_same(spec):
    away = Attendance(leaves={0: 1, 3: 1}, returns={0: 2, 3: 2})
    lived = replace(spec, method=methods.oracle([0, 1, 1, 0]), rounds=3, attendance=away)
    history = states(lived)
    told = chronicle(lived, history)
    assert by_round(told, "there").tolist() == [[True] * 4, [False, True, True, False], [True] * 4]
    assert [[TASKS[task] for task in row] for row in by_round(told, "task")][1] == ["none", "train", "train", "none"]
    assert by_round(told, "cluster").tolist() == [[0, 1, 1, 0]] * 3
    assert set(told["clusters"]) == {2}
    assert not told["stopped"].any()
    model, sent = by_round(told, "model"), by_round(told, "sent")
    assert model[0, 0] == model[0, 3] == model[1, 0] != model[2, 0]
    assert len(set(model[:, 1])) == 3
    assert sent[1].tolist() == [0, model[0, 1], model[0, 1], 0]
    assert np.array_equal(sent[2], model[1])
    assert np.array_equal(by_round(told, "received"), model)


def test_a_generic_model_is_tested_beside_the_best_of_those_it_is_made_of(spec):
    end = states(replace(spec, method=methods.oracle([0, 1, 1, 0])))[-1]
    engine, data = trainer(spec.network, spec.training), spec.federation.server()
    found = generic_accuracies(end, engine, {(0, 1): data, (1,): data})
    single = [engine.evaluate(model, *data).accuracy for model in end.models]
    assert found["best single"].tolist() == [max(single), single[1]]
    mean = [(a + b) / 2 for a, b in zip(*end.models, strict=True)]
    assert found["generic model"].tolist() == pytest.approx([engine.evaluate(mean, *data).accuracy, single[1]])
