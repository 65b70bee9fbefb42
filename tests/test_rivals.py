"""Sattler's and Briggs' thresholds are chosen on a run that is not judged, by norms and scores of that run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cflib.recall import Recall
from cflib.records import Store
from cflib.runs import gather, models_after, run
from cflib.simulation import Simulation
from cflib.studies import rivals, shots
from tests.test_shots import watching_digits

pytestmark = pytest.mark.usefixtures("folders_of_the_module")
LATE = 2


@pytest.fixture(scope="module")
def base():
    return watching_digits(balance=True)


@pytest.fixture(scope="module")
def watched(base):
    return run(base, progress=False)


def test_norms_are_those_of_the_round_that_follows_and_are_kept_to_the_last_bit(base, tmp_path, monkeypatch):
    store = Store(tmp_path / "norms")
    assert rivals.update_norms(base, 2, store=store, compute=False) is None
    mean, each = rivals.update_norms(base, 2, store=store)
    before, after = (models_after(base, round, progress=False)[0][0] for round in (2, 3))
    gap = np.concatenate([(b - a).ravel() for a, b in zip(before, after, strict=True)])
    assert mean == pytest.approx(float(np.linalg.norm(gap)), rel=1e-4)
    assert len(each) == 9
    assert mean < each.max()
    monkeypatch.setattr(rivals, "models_after", None)
    again, every = rivals.update_norms(base, 2, store=store, compute=False)
    assert (again, every.tolist()) == (mean, each.tolist())


def test_norms_are_those_of_the_arms_own_description(base):
    plain = rivals.update_norms(base, 1)
    twice = rivals.update_norms(replace(base, method=replace(base.method, describe=_doubled)), 1)
    assert twice[0] == pytest.approx(2 * plain[0], rel=1e-5)


def _doubled(reply, received, trainable):
    return 2 * shots.watching().describe(reply, received, trainable)


def test_the_best_threshold_is_the_middle_one_of_those_that_find_the_truth(watched):
    distances = 1.0 - np.kron(np.eye(3), np.ones((3, 3)))
    flat = replace(watched, triangles=distances[np.triu_indices(9, 1)][None].astype(np.float32), kept=np.array([4]))
    scores = rivals.merge_scores(flat, np.arange(9) // 3, round=4, thresholds=[0.2, 0.4, 0.6, 1.5])
    assert scores["clusters"].tolist() == [3, 3, 3, 1]
    assert scores["ari"].tolist() == [1, 1, 1, 0]
    assert rivals.best_threshold(scores) == 0.4
    with pytest.raises(ValueError, match="norms are 2"):
        rivals.between(2.0, 1.0, [(0.5, 0.5)])


def test_rounds_without_a_split_are_not_trained_again(base, tmp_path, monkeypatch):
    monkeypatch.setattr(rivals, "GRID", ((-3.0, 0.5),))
    store, recall = Store(tmp_path), Recall()
    record = gather({"held": base}, store=store, recall=recall, progress=False, snapshots={LATE})["held"]
    rivals.update_norms(base, LATE, store=store)
    trained, work = [], Simulation._work
    monkeypatch.setattr(Simulation, "_work", lambda self, job: trained.append(job.task) or work(self, job))
    tried = rivals.try_pairs(base, record, arm="corrected", late=LATE, store=store, recall=recall)
    assert tried["ari"].tolist() == [0.0]
    assert "train" not in trained


def test_the_pairs_tried_vary_both_tests_and_the_best_is_kept(base, watched, tmp_path):
    how = {"arm": "corrected", "late": LATE, "store": Store(tmp_path)}
    assert rivals.try_pairs(base, watched, **how, compute=False).empty
    tried = rivals.try_pairs(base, watched, **how)
    mean, each = rivals.update_norms(base, LATE, store=Store(tmp_path))
    assert len(tried) == len(rivals.GRID)
    assert (tried["e1"] < mean).any()
    assert (tried["e1"] > mean).any()
    assert (tried["e2"] < each.max()).all()
    assert tried["e2"].nunique() > 1
    assert tried["kept"].sum() == 1
    assert tried.loc[tried["kept"], "ari"].item() == tried["ari"].max()
    assert tried.groupby("e2")["ari"].nunique().max() > 1, "e1 changes nothing"
    assert rivals.try_pairs(base, watched, **how, compute=False).equals(tried)
