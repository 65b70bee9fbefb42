"""FLIC taken apart on real digits: one watched run, clusters found again from its record, and what goes on from it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from cflib import clustering, methods
from cflib.protocol import Schedule
from cflib.records import Store
from cflib.runs import run
from cflib.studies.branches import admitted, asked, continued, watched
from cflib.studies.hindsight import compare_groups, latest_reports, regroup, reports
from cflib.studies.staleness import staleness
from tests.test_runs import digits_run

LOUVAIN = partial(clustering.louvain, self_loops=True)
SPARSE = Schedule(share=0.34, per="cluster")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("CFLIB_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("CFLIB_CHECKPOINTS", str(tmp_path / "checkpoints"))


def test_watching_changes_nothing_in_the_training():
    plain, kept = (run(spec, progress=False) for spec in (digits_run(), watched(digits_run())))
    np.testing.assert_array_equal(plain.rounds["accuracy_received"], kept.rounds["accuracy_received"])
    assert kept.kept.tolist() == [1, 2, 3]
    assert plain.kept.size == 0


def test_clusters_that_go_on_from_a_watched_run_equal_flic_in_one_loop():
    whole = digits_run(methods.flic(round=2), rounds=4, schedule=Schedule(share=0.5, per="cluster"))
    parent = watched(replace(whole, method=methods.fedavg(), rounds=2))
    one, half = run(whole, progress=False), run(parent, progress=False, snapshots=[2])
    labels = regroup(half, LOUVAIN, rounds=[2])[0]
    np.testing.assert_array_equal(labels, one.labels[1])
    two = run(replace(continued(parent, 2, labels, rounds=4), attendance=whole.attendance), progress=False)
    np.testing.assert_array_equal(one.labels[2:], two.labels)
    for column in ("accuracy_received", "f1_received"):
        np.testing.assert_array_equal(one.rounds[column].to_numpy()[2:], two.rounds[column].to_numpy())


def test_clients_never_drawn_stay_away_and_then_choose_their_cluster():
    parent = watched(digits_run(rounds=2, schedule=SPARSE))
    labels = regroup(run(parent, progress=False, snapshots=[2]), LOUVAIN, rounds=[2])[0]
    unseen = np.flatnonzero(labels < 0)
    assert 0 < unseen.size < 12
    child = continued(parent, 2, labels, rounds=4)
    record = run(child, progress=False, snapshots=[4])
    assert set(record.clients["client"]).isdisjoint(unseen)
    last = run(admitted(child), progress=False)
    assert set(last.clients["client"]) == set(unseen)
    assert (last.labels[-1] >= 0).all()
    np.testing.assert_array_equal(np.delete(last.labels[-1], unseen), np.delete(labels, unseen))


def test_nobody_can_be_admitted_if_all_were_drawn():
    with pytest.raises(ValueError, match="cluster earlier"):
        admitted(continued(digits_run(), 2, [0] * 6 + [1] * 6, rounds=3))


def test_in_a_full_round_everybody_reports():
    parent = watched(digits_run(rounds=2, schedule=SPARSE))
    assert not np.isnan(run(asked(parent, 2), progress=False).matrix(3)).any()


def test_reports_are_those_that_the_server_draws():
    record = run(watched(digits_run(schedule=SPARSE, seed=3)), progress=False)
    latest = latest_reports(reports(12, rounds=3, seed=3, schedule=SPARSE))
    for number in (1, 2, 3):
        np.testing.assert_array_equal(latest[number - 1] > 0, ~np.isnan(np.diagonal(record.matrix(number))))


def test_clients_left_out_of_the_graph_get_no_cluster():
    record = run(watched(digits_run(rounds=1)), progress=False)
    keep = np.arange(12)[None] < 6
    labels = regroup(record, LOUVAIN, keep=keep)
    assert (labels[0, 6:] == -1).all()
    assert (labels[0, :6] >= 0).all()
    assert (regroup(record, LOUVAIN, keep=~np.ones_like(keep)) == -1).all()
    with pytest.raises(ValueError, match=r"keep has shape \(12,\)"):
        regroup(record, LOUVAIN, keep=keep[0])


def test_groups_are_compared_over_the_clients_that_have_a_cluster():
    table = compare_groups([0, 0, 1, 1], [[1, 1, 0, -1], [0, 0, 0, 1], [-1, -1, -1, -1]])
    assert table["correct"].tolist() == [True, False, False]
    assert table["clusters"].tolist() == [2, 2, 0]
    assert table["purity"].tolist()[:2] == [1.0, 0.25]
    assert table["majority_purity"].tolist()[:2] == [1.0, 0.75]
    assert table["allotted"].tolist() == [0.75, 1.0, 0.0]


def test_the_error_of_an_old_update_is_within_the_two_terms_of_equation_6(tmp_path, monkeypatch):
    spec, store = digits_run(rounds=4, schedule=Schedule(share=0.5)), Store(tmp_path / "stale")
    assert staleness(spec, store=store, compute=False).empty
    table = staleness(spec, store=store)
    drawn = reports(12, rounds=4, seed=0, schedule=spec.schedule)
    assert len(table) == sum((drawn[t] & drawn[:t].any(axis=0)).sum() for t in range(1, 4))
    assert (table["bias"] <= table["way"] + table["turn"] + 1e-6).all()
    assert (table[["way", "turn", "bias", "apart"]] > 0).all().all()
    monkeypatch.setattr("cflib.studies.staleness.follow", None)
    assert staleness(spec, store=store).equals(table)
