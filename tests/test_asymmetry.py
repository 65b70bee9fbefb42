"""The trusted distance has a reference: how much that matters is measured on hand-made models and on a small run."""

from __future__ import annotations

import numpy as np
import pytest

from cflib import methods
from cflib.records import Store
from cflib.studies.asymmetry import asymmetry, measure
from tests.test_runs import digits_run


def test_a_pair_that_differs_by_its_reference_is_measured():
    distances = np.array([[0.0, 1.0, 4.0], [3.0, 0.0, 4.0], [4.0, 4.0, 0.0]])
    (row,) = measure(iter([distances]), methods.louvain_cfl())
    assert (row["round"], row["largest"], row["relative"]) == (1, 2.0, 1.0)
    assert row["mean"] == pytest.approx(2 / 3)
    assert row["same"] == 1  # 0 and 1 are the nearest pair either way


def test_communities_that_depend_on_the_reference_are_told():
    near, far = 1.0, 9.0
    pairs = np.array([[0, near, far, far], [far, 0, far, far], [near, far, 0, near], [far, near, far, 0]])
    (row,) = measure(iter([pairs]), methods.louvain_cfl())
    assert row["same"] == 0


def test_a_run_is_measured_round_by_round_and_read_the_second_time(tmp_path, monkeypatch):
    spec, store = digits_run(method=methods.louvain_cfl(), rounds=2), Store(tmp_path / "kept")
    assert asymmetry(spec, store=store, compute=False).empty
    table = asymmetry(spec, store=store)
    assert table["round"].tolist() == [1, 2]
    assert (table["largest"] > 0).all()
    assert (table["relative"] < 1).all()
    monkeypatch.setattr("cflib.studies.asymmetry.follow", None)
    assert asymmetry(spec, store=store).equals(table)
