"""The radius of DBSCAN: where it finds the truth, and one that serves several scenarios."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflib.clustering import dbscan
from cflib.studies.radius import best_interval, radius_scores, true_interval

GROUPS = [0, 0, 0, 1, 1, 1]


@settings(max_examples=50)
@given(st.lists(st.integers(-9, 9), min_size=12, max_size=12))
def test_dbscan_finds_the_truth_within_the_interval_and_not_outside(numbers):
    rows = np.array(numbers, dtype=float).reshape(6, 2)
    low, high = true_interval(rows, GROUPS)
    for eps in (low * 0.99, (low + high) / 2, high * 1.01):
        assert eps == 0 or (dbscan(rows, eps=eps).tolist() == GROUPS) == (low <= eps < high)


def test_one_group_is_found_from_its_longest_step_on():
    assert true_interval([[0.0], [1.0], [4.0]], [0, 0, 0]) == (3.0, np.inf)


def test_scores_change_only_where_eps_passes_a_distance():
    edges, scores = radius_scores([[0.0], [1.0], [5.0]], [0, 0, 1])
    assert edges.tolist() == [0, 1, 4, 5, 10]
    assert scores.tolist() == [0, 1, 0, 0]


def test_of_equally_good_stretches_the_longest_is_taken():
    pairs = ([[0.0], [1.0], [7.0], [8.0]], [0, 0, 1, 1])
    nearer = ([[0.0], [3.0], [5.0], [8.0]], [0, 0, 1, 1])  # never right: the two in the middle are nearest
    assert best_interval([pairs, nearer]) == (3.0, 6.0, 0.5)
    assert best_interval([pairs]) == (1.0, 6.0, 1.0)


def test_equal_clients_are_one_cluster_at_any_radius():
    assert best_interval([([[1.0], [1.0]], [0, 0])]) == (0.0, 1.0, 1.0)


def test_vectors_and_groups_must_agree():
    with pytest.raises(ValueError, match="one group a client"):
        true_interval([[0.0], [1.0]], [0])
    with pytest.raises(ValueError, match="no scenarios"):
        best_interval([])
