"""Defences as detectors, on updates worked out by hand and on crafted crowds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from cflib import attacks
from cflib.client import Attack
from cflib.drive import first_state
from cflib.experiment import Measures
from cflib.grid import Memory
from cflib.protocol import Schedule
from cflib.records import Store
from cflib.runs import models_after, run
from cflib.studies.detection import (
    census,
    compare_defences,
    detect,
    loyal_clients,
    poison,
    separation,
    set_apart,
)
from cflib.studies.hindsight import reports
from cflib.studies.regression import fit_slopes
from cflib.studies.staleness import measure
from tests.test_runs import digits_run


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("CFLIB_CHECKPOINTS", str(tmp_path / "checkpoints"))


def crowd(n: int = 20, size: int = 50, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=size) + 0.3 * rng.normal(size=(n, size))).astype(np.float32)


def test_attackers_alone_are_replaced():
    updates = crowd()
    sent = poison(updates, Attack((1, 3), update=attacks.minus_grad))
    np.testing.assert_array_equal(sent[[1, 3]], -updates[[1, 3]])
    np.testing.assert_array_equal(np.delete(sent, [1, 3], 0), np.delete(updates, [1, 3], 0))


def test_equation_3_makes_the_mean_what_the_attackers_want():
    sent = poison(crowd(), Attack((0, 5, 6), collude=partial(attacks.force_mean, scale=-2.0)))
    honest = np.delete(crowd(), [0, 5, 6], axis=0).mean(axis=0)
    np.testing.assert_allclose(sent.mean(axis=0), -2 * honest, atol=1e-5)


def test_poisoned_labels_cannot_be_put_in_afterwards():
    with pytest.raises(ValueError, match="take a census"):
        poison(crowd(), Attack((1,), labels=attacks.label_flip))


def test_opposed_updates_are_set_apart_even_by_a_majority_and_krum_bows_out():
    for count, names in (
        (4, {"FLIC", "FLIC without loops", "Krum", "trimmed mean"}),
        (12, {"FLIC", "FLIC without loops"}),
    ):
        attackers = list(range(count))
        found = detect(poison(crowd(), Attack(tuple(attackers), update=attacks.minus_grad)), attackers)
        assert set(found) >= names
        assert ("Krum" in found) == (count == 4)
        for name in names:
            assert (found[name]["precision"], found[name]["recall"]) == (1.0, 1.0), name
        assert found["FLIC without loops"]["clusters"] == 2
        assert np.isnan(found["trimmed mean"]["clusters"])


def test_a_cluster_is_set_apart_by_its_majority_and_loyal_clusters_have_no_attacker():
    labels, attackers = [0, 0, 0, 1, 1, 2, -1], [True, True, False, False, True, False, False]
    assert set_apart(labels, attackers).tolist() == [True, True, True, False, False, False, False]
    assert loyal_clients(labels, attackers).tolist() == [5]
    scores = separation(labels, attackers)
    assert (scores["loyal clusters"], scores["clients in one"], scores["clusters"]) == (1, 1, 3)
    assert scores["purity"] == pytest.approx(1 / 6)
    assert (scores["precision"], scores["recall"]) == pytest.approx((2 / 3, 2 / 3))


def test_where_no_cluster_is_free_of_attackers_all_loyal_clients_count():
    assert loyal_clients([0, 0, 1, 1], [True, False, True, False]).tolist() == [1, 3]


def test_a_census_asks_every_client_and_flips_labels_of_attackers_only():
    spec = digits_run()
    model = first_state(spec).models[0]
    honest = census(spec, model, round=1)
    attacked = digits_run(attack=Attack((2,), labels=attacks.label_flip))
    sent = census(attacked, model, round=1)
    assert len(honest) == 12
    np.testing.assert_array_equal(np.delete(sent, 2, 0), np.delete(honest, 2, 0))
    assert not np.allclose(sent[2], honest[2])


KINDS = {"minus-grad": {"update": attacks.minus_grad}, "label flip": {"labels": attacks.label_flip}}


def test_defences_are_compared_on_what_clients_send_after_a_round():
    spec, crowds = digits_run(), {25: [0, 4, 8], 50: [0, 1, 4, 5, 8, 9]}
    table = compare_defences(spec, 2, crowds, KINDS, store=Store.of())
    (model,), _ = models_after(spec, 2)
    for kind, percentage in ((kind, percentage) for kind in KINDS for percentage in crowds):
        bad = crowds[percentage]
        attack = Attack(tuple(bad), **KINDS[kind])
        honest = census(spec, model, round=3)
        sent = poison(honest, attack) if kind == "minus-grad" else census(replace(spec, attack=attack), model, round=3)
        rows = table[(table["attack"] == kind) & (table["attackers"] == percentage)].set_index("defence")
        expected = detect(sent, bad)
        assert set(rows.index) == set(expected)
        for defence, scores in expected.items():
            assert rows.loc[defence, list(scores)].tolist() == pytest.approx(list(scores.values()), nan_ok=True)


def test_compared_defences_are_kept_and_other_attackers_are_another_table(monkeypatch):
    spec, store, bad = digits_run(), Store.of(), {25: np.array([0, 4, 8])}
    assert compare_defences(spec, 2, bad, KINDS, store=store, compute=False).empty
    table = compare_defences(spec, 2, bad, KINDS, store=store)
    monkeypatch.setattr("cflib.studies.detection.census", None)
    seldom = replace(spec, rounds=9, measures=Measures(clients_every=5))  # its first two rounds are the same
    for same in (spec, seldom):
        assert compare_defences(same, 2, bad, KINDS, store=store).equals(table)
    assert compare_defences(spec, 2, {25: [1, 4, 8]}, KINDS, store=store, compute=False).empty


def test_staleness_of_one_report_by_hand():
    before = {0: Memory(0, np.array([[0.0, 0.0], [1.0, 0.0]]))}
    after = {0: Memory(2, np.array([[3.0, 4.0], [3.0, 5.0]])), 1: Memory(2, np.array([[3.0, 4.0], [4.0, 4.0]]))}
    (row,) = measure(before, after, 3)
    assert (row["round"], row["client"], row["since"], row["way"]) == (3, 0, 1, 5.0)
    assert row["turn"] == pytest.approx(np.hypot(2, 5))
    assert row["apart"] == pytest.approx(np.sqrt(2))  # updates (0, 1) and (1, 0); the stored one is (1, 0) too
    assert row["bias"] == pytest.approx(np.sqrt(2))
    assert row["cosine_bias"] == pytest.approx(1.0)


def test_like_clients_find_their_slope_and_unlike_ones_meet_halfway():
    like, unlike = (
        fit_slopes(slopes, rng=np.random.default_rng(0), noise=0, samples=500) for slopes in ((45, 45), (20, 70))
    )
    assert like.common[-1] == pytest.approx(45, abs=0.1)
    assert unlike.common[-1] == pytest.approx(45, abs=2)
    assert unlike.own[-1, 0] < unlike.common[-1] < unlike.own[-1, 1]
    np.testing.assert_allclose(unlike.own.mean(axis=1), unlike.common[1:])


def test_impossible_toys_are_refused():
    with pytest.raises(ValueError, match="expected one slope or more"):
        fit_slopes([], rng=np.random.default_rng(0))


def test_a_round_that_draws_no_attacker_passes_as_if_there_were_none():
    attack = Attack((11,), collude=attacks.force_mean)
    drawn = reports(12, rounds=3, seed=0, schedule=Schedule(share=0.2))
    assert not drawn[:, 11].all()
    calm, attacked = (
        run(digits_run(schedule=Schedule(share=0.2), attack=who), progress=False) for who in (None, attack)
    )
    first = int(np.argmax(drawn[:, 11])) if drawn[:, 11].any() else 3
    scores = [record.rounds["accuracy_received"].to_numpy()[:first] for record in (calm, attacked)]
    np.testing.assert_array_equal(*scores)
