"""One-shot clustering told from a watched run: the same shot, partition and models as the method run by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cflib import datasets, methods, metrics, partition
from cflib.arrays import renumber
from cflib.experiment import Measures, Run
from cflib.federation import Federation
from cflib.models import Network
from cflib.recall import Recall
from cflib.records import Store
from cflib.runs import gather, models_after, run
from cflib.simulation import Simulation
from cflib.studies import shots
from cflib.training import Training

pytestmark = pytest.mark.usefixtures("folders_of_the_module")
LATE = 3


def watching_digits(*, balance: bool) -> Run:
    """Nine clients of three clusters, watched and never clustered."""
    data = datasets.load("digits")
    split = partition.cluster_classes(
        data.train_labels,
        n_clients=9,
        overlap=False,
        balance=balance,
        rng=np.random.default_rng(0),
        test_labels=data.test_labels,
    )
    return Run(
        shots.watching(),
        Federation(data, split),
        Network("mlp", input_shape=(8, 8, 1), classes=10, options={"hidden": (16,), "scale": 16}),
        Training(optimizer="sgd", learning_rate=0.1, epochs=2, batch_size=20),
        rounds=6,
    )


@pytest.fixture(scope="module")
def base():
    return watching_digits(balance=False)


@pytest.fixture(scope="module")
def watched(base):
    return compute(base)


def compute(spec):
    return run(spec, progress=False)


def same(stitched, record):
    columns = ["round", "clusters", *shots.SCORES.values(), "f1_received", "f1_general"]
    pd.testing.assert_frame_equal(stitched[columns], record.rounds[columns], check_exact=True)


def enter(base, watched, **changes):
    settings = {"arm": "corrected", "late": LATE, "sattler": {}, "briggs": {}} | changes
    return shots.entrants(base, watched, **settings)


@pytest.mark.parametrize(("name", "algorithm"), shots.OCFL.items())
@pytest.mark.parametrize("arm", ["corrected", "as_published"])
def test_a_variant_goes_on_exactly_as_the_method_run_by_itself(base, watched, name, algorithm, arm):
    alone = compute(replace(base, method=methods.ocfl(algorithm, arm=arm)))
    record = compute(enter(base, watched, arm=arm)[name])
    same(shots.whole(watched, record, base.federation.truth), alone)


def test_sattler_and_briggs_go_on_exactly_as_run_by_themselves(base, watched):
    truth, sattler_of = base.federation.truth, {"SCL": (9.0, 0.01, LATE - 1)}
    runs = enter(base, watched, sattler=sattler_of, briggs={"BCL": 0.9})
    sattler = compute(replace(base, method=methods.sattler(eps1=9.0, eps2=0.01, cooldown=LATE - 1)))
    briggs = compute(replace(base, method=methods.briggs(round=LATE, threshold=0.9)))
    assert sattler.rounds["clusters"].iloc[-1] > 1
    assert briggs.rounds["clusters"].iloc[-1] > 1
    same(shots.whole(watched, compute(runs["SCL"]), truth), sattler)
    same(shots.whole(watched, compute(runs["BCL"]), truth), briggs)


@pytest.mark.parametrize("trigger", methods.TRIGGERS)
def test_a_trigger_fires_in_the_round_in_which_the_method_clusters(base, watched, trigger):
    alone = compute(replace(base, method=methods.ocfl(trigger=trigger)))
    fired = [event["round"] for event in alone.events if "clustered" in event["event"]]
    shot = shots.shot_round(watched.rounds["watched"], trigger)
    assert fired == ([] if shot is None else [shot])


def test_triggers_by_hand():
    assert shots.shot_round([0.5, 0.4, 0.4, 0.45]) == 4
    assert shots.shot_round([0.5, 0.4], "algorithm_1") == 1
    assert shots.shot_round([0.3, 0.5, 0.4], "first_fall") == 3
    assert shots.shot_round([0.5, 0.4, 0.3]) is None
    with pytest.raises(ValueError, match="'rise'"):
        shots.shot_round([0.5], "rise")


def test_equal_partitions_in_one_round_are_one_run_and_one_cluster_is_the_baseline(base):
    assert shots.go_on(base, [0] * 9, 3) is base
    groups = np.arange(9) // 3
    assert shots.go_on(base, groups, 3).key == shots.go_on(base, groups.tolist(), 3).key
    assert shots.go_on(base, groups, 3).key != shots.go_on(base, groups, 2).key
    assert shots.go_on(base, groups, 1).start is None


def test_without_a_shot_the_variants_stay_one_cluster(base, watched):
    calm = replace(watched, rounds=watched.rounds.assign(watched=np.linspace(1, 0.5, base.rounds)))
    assert all(enter(base, calm)[name] is base for name in shots.OCFL)


def test_scores_in_hindsight_are_those_of_the_matrix_of_each_round(base, watched):
    truth = base.federation.truth
    found = shots.hindsight_scores(watched, truth)
    assert found.index.tolist() == list(range(1, base.rounds + 1))
    one = methods.ocfl("kmeans").cluster(watched.matrix(2))
    assert found.loc[2, "KM"] == metrics.adjusted_rand(truth, one)
    pd.testing.assert_frame_equal(shots.hindsight_scores(watched, truth, variants=["HDB"]), found[["HDB"]])


def test_a_summary_averages_the_scores_of_the_first_rounds_and_f1_of_all():
    rounds = pd.DataFrame({"round": [1, 2, 3, 4], "clusters": [1, 3, 3, 2]})
    rounds = rounds.assign(adjusted_rand=[0.0, 1.0, 1.0, 0.4], adjusted_mutual_information=0.5, homogeneity=0.25)
    rounds = rounds.assign(completeness=1.0, rand=[0.3, 1.0, 1.0, 0.7])
    rounds = rounds.assign(f1_received=[0.2, 0.4, 0.6, 0.8], f1_general=[0.5, 0.3, 0.1, 0.1])
    found = shots.summarise(rounds, first=2)
    expected = {
        "ari": 0.5,
        "rand": 0.65,
        "ari_all": 0.6,
        "pf1": 0.5,
        "gf1": 0.25,
        "gap": 0.25,
        "shot": 2,
        "clusters": 2,
    }
    assert found["gf1_lagging"] == pytest.approx((shots.GUESS + 0.5 + 0.3 + 0.1) / 4)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert np.isnan(shots.summarise(rounds.assign(clusters=1))["shot"])


def test_clusters_that_stay_score_the_rounds_that_were_not_run():
    rounds = pd.DataFrame({"round": [1, 2, 3], "clusters": [1, 3, 3], "adjusted_rand": [0.0, 0.8, 0.8]})
    rounds = rounds.assign(adjusted_mutual_information=0.5, homogeneity=[0.0, 1.0, 1.0], completeness=1.0)
    rounds = rounds.assign(rand=1.0, f1_received=0.5, f1_general=0.5)
    found = shots.summarise(rounds, first=10, settled=True)
    assert (found["ari"], found["homogeneity"]) == pytest.approx((0.8 * 9 / 10, 9 / 10))
    assert shots.summarise(rounds, first=2, settled=True)["ari"] == pytest.approx(0.4)
    assert shots.summarise(rounds, first=10)["ari"] == pytest.approx(1.6 / 3)
    assert shots.summarise(rounds.assign(clusters=1), first=10, settled=True)["ari"] == pytest.approx(1.6 / 3)


@pytest.mark.parametrize("first", [6, 50])
def test_the_shot_alone_tells_the_score_of_clusters_that_stay(base, watched, first):
    truth, runs = base.federation.truth, enter(base, watched)
    told = shots.told_by_shot(watched, truth, first=first)
    for name in shots.OCFL:
        rounds = shots.whole(watched, compute(runs[name]), truth)
        assert told[name] == pytest.approx(shots.summarise(rounds, first=first, settled=True)["ari"])
    calm = replace(watched, rounds=watched.rounds.assign(watched=np.linspace(1, 0.5, base.rounds)))
    assert np.isnan(list(shots.told_by_shot(calm, truth).values())).all()


def test_a_whole_run_has_the_plain_rand_index_of_every_round(base, watched):
    truth, groups = base.federation.truth, np.arange(9) % 2
    rounds = shots.whole(watched, compute(shots.go_on(base, groups, 3)), truth)
    alone, split = metrics.plain_rand(truth, np.zeros(9, int)), metrics.plain_rand(truth, groups)
    assert rounds["rand"].tolist() == [alone, alone, split, split, split, split]


def test_clients_without_a_cluster_keep_their_model_and_are_scored_as_one_group(base, watched):
    labels = np.array([0, 0, 1, 1, 2, 2, 2, -1, -1])
    branch = shots.go_on(base, labels, LATE)
    record = compute(branch)
    assert record.labels[-1].tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert record.rounds["adjusted_rand"].iloc[-1] == metrics.adjusted_rand(base.federation.truth, record.labels[-1])
    before = models_after(base, LATE - 1, progress=False)[0][0]
    after = models_after(branch, base.rounds, progress=False)[0]
    assert all(np.array_equal(a, b) for a, b in zip(before, after[3], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(before, after[2], strict=True))
    assert (record.clients["client"] == 8).sum() == base.rounds - LATE + 1


@pytest.mark.parametrize(("split", "dropped"), [("separate", [0, 1, 2, 3, 10]), ("overlapping", [0, 1, 2, 10, 11])])
def test_table_one_scores_the_clients_without_a_cluster_as_one_group(split, dropped):
    labels, truth = np.arange(30), np.arange(30) // 10
    labels[dropped] = -1
    found = metrics.score_partition(truth, renumber(shots.together(labels)))
    cell = shots.published_table().loc[("cifar10", 30, f"{split} balanced", "BCL")]
    assert [0.6 * found[column] for column in shots.SCORES.values()] == pytest.approx(list(cell), abs=1e-4)


def test_a_split_that_comes_too_late_is_the_baseline(base):
    assert shots.split_later(base, 9.0, 0.01, cooldown=base.rounds - 1, arm="corrected") is base
    assert shots.split_later(base, 9.0, 0.01, cooldown=base.rounds - 2, arm="corrected").start == (
        base,
        base.rounds - 1,
    )


def test_two_descriptions_of_one_trajectory_train_every_client_once(base, monkeypatch, tmp_path):
    trained, work = [], Simulation._work
    monkeypatch.setattr(Simulation, "_work", lambda self, job: trained.append(job.task) or work(self, job))
    short = replace(base, rounds=2, measures=Measures(clients=(), server=()))
    arms = {arm: replace(short, method=shots.watching(arm)) for arm in ("corrected", "as_published")}
    gather(arms, store=Store(tmp_path), progress=False)
    assert trained.count("train") == 2 * 9
    for arm in arms:
        gather({arm: arms[arm]}, store=Store(tmp_path / arm), progress=False, recall=Recall(most=0))
    assert trained.count("train") == 3 * 2 * 9


def test_the_shape_of_a_temperature_is_judged_as_the_ledger_says():
    falls, climbs = [0.6, 0.2], np.linspace(0.25, 0.5, 10)
    assert all(shots.temperature_shape([*falls, *climbs, *[0.5] * 38]).values())
    slow = shots.temperature_shape([*falls, *np.linspace(0.2, 0.5, 48)])
    assert slow == {"drops at first": True, "rises sharply": False, "stable from round 20": False}
    assert not shots.temperature_shape([0.1, *climbs, *[0.5] * 39])["drops at first"]
    with pytest.raises(ValueError, match="12 rounds"):
        shots.temperature_shape([0.5] * 12)


def test_the_published_table_has_its_cells():
    table = shots.published_table()
    assert table.index.is_unique
    assert len(table) == 3 * 2 * 4 * 6
    assert table.loc[("mnist", 30, "overlapping imbalanced", "MS"), "ami"] == 0.94
    assert table.loc[("cifar10", 15, "separate balanced", "HDB"), "homogeneity"] == 0.7691


def test_the_archive_has_the_cells_of_the_table_and_the_baseline():
    archive, table = shots.archived_runs(), shots.published_table()
    assert len(archive) == len(table) + 3 * 2 * 4
    assert set(table.index) <= set(archive.index)
    assert archive.loc[("mnist", 15, "separate balanced", "SCL")].tolist() == [22, 6, 0.6826, 0.2093]
    unsplit = archive.xs("BNC", level="algorithm")
    assert unsplit["shot"].isna().all()
    assert (unsplit["clusters"] == 1).all()
