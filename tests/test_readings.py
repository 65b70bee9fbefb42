"""The trusted distance has a reference and a choice of arrays: how much that matters is measured on the same models."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from cflib import choices, methods
from cflib.distances import trusted_distance, trusted_distances
from cflib.records import Store
from cflib.studies.readings import compare_exponents, compare_readings, read_distances, readings
from tests.test_runs import digits_run

KERNEL, BIAS, STATISTIC = np.ones((2, 2)), np.ones(2), np.ones(2)


def models(*scales):
    """Models whose kernel, bias and statistic are scaled apart."""
    return [[KERNEL * k, BIAS * b, STATISTIC * s] for k, b, s in scales]


def test_the_first_reading_is_the_distance_that_methods_use():
    three = models((1, 1, 1), (2, 1, 3), (4, 2, 1))
    assert np.array_equal(read_distances(three, [True] * 3)["lower number"], trusted_distances(three))


def test_the_other_reference_divides_by_the_other_norm():
    pair = models((1, 1, 1), (2, 1, 1))
    found = read_distances(pair, [True] * 3)
    assert found["lower number"][0, 1] == pytest.approx(trusted_distance(pair[0], pair[1])) == pytest.approx(1)
    assert found["higher number"][0, 1] == pytest.approx(trusted_distance(pair[1], pair[0])) == pytest.approx(0.5)


def test_statistics_and_biases_can_be_left_out():
    pair = models((1, 1, 1), (1, 3, 5))
    found = read_distances(pair, [True, True, False])
    assert found["no statistics"][0, 1] == pytest.approx(2)
    assert found["kernels alone"][0, 1] == pytest.approx(0, abs=1e-6)
    assert "no statistics" not in read_distances(pair, [True] * 3)


def test_gaps_and_communities_are_told_by_hand():
    # By kernels clients 0, 1 and 2, 3 are alike; statistics pair 0, 2 and 1, 3 and weigh more.
    four = models((1, 1, 1), (1.1, 1, 50), (3, 1, 1.1), (3.3, 1, 55))
    truth = [0, 0, 1, 1]
    row = compare_readings(four, [True, True, False], partial(choices.communities, power=3), truth)
    assert (row["ARI: no statistics"], row["ARI: kernels alone"]) == (1, 1)
    assert row["ARI: lower number"] < 0.5
    assert row["agrees: kernels alone"] == row["ARI: lower number"]
    ways = [(trusted_distance(a, b), trusted_distance(b, a)) for i, a in enumerate(four) for b in four[i + 1 :]]
    assert row["largest gap"] == pytest.approx(max(abs(one - other) for one, other in ways))
    assert row["relative gap"] == pytest.approx(max(2 * abs(one - other) / (one + other) for one, other in ways))


def test_a_run_is_measured_round_by_round_and_read_the_second_time(tmp_path, monkeypatch):
    spec, store = digits_run(method=methods.louvain_cfl(), rounds=2), Store(tmp_path / "kept")
    assert readings(spec, store=store, compute=False).empty
    table = readings(spec, store=store)
    assert table["round"].tolist() == [1, 2]
    assert (table["largest gap"] > 0).all()
    monkeypatch.setattr("cflib.studies.readings.follow", None)
    assert readings(spec, store=store).equals(table)


def test_exponents_are_compared_on_the_same_distances_by_hand():
    # Clients 0, 1 and 2, 3 are the true pairs. In the last round similarities are 1 and 3/4 within them, 0 and thrice
    # 1/2 between them; only a root lifts the halves so far that all four are one community. The first round is clear.
    clear, close = np.zeros((4, 4)), np.zeros((4, 4))
    clear[np.triu_indices(4, 1)] = [0, 2, 2, 2, 2, 0.5]
    close[np.triu_indices(4, 1)] = [0, 4, 2, 2, 2, 1]
    table = compare_exponents([clear + clear.T, close + close.T], [0, 0, 1, 1], (0.5, 1, 3)).set_index("exponent")
    assert table["ARI"].tolist() == [0, 1, 1]
    assert table["rounds with other communities"].tolist() == [1, 0, 0]
    assert table["contrast"][1] == pytest.approx(7 / 8 - 3 / 8)
    assert table["mean similarity"][1] == pytest.approx(13 / 24)
    assert table["contrast"][3] == pytest.approx((1 + 27 / 64) / 2 - 3 / 32)
