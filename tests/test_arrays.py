"""Weights, vectors, labels and the guards that name what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflib import arrays as a


def test_flatten_and_unflatten_are_inverse():
    weights = [np.arange(6.0).reshape(2, 3), np.array(7.0), np.arange(2.0)]
    back = a.unflatten(a.flatten(weights), weights)
    for one, other in zip(weights, back, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_vector_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="2 parameters"):
        a.unflatten(np.ones(3), [np.ones(2)])


def test_subtract_gives_the_update():
    assert a.subtract([np.array([3.0])], [np.array([1.0])])[0].tolist() == [2]


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=12))
def test_renumbered_labels_have_no_gaps_and_keep_the_partition(labels):
    fresh = a.renumber(labels)
    a.check_labels(fresh, noise=True)
    for i, one in enumerate(labels):
        assert (fresh[i] == -1) == (one == -1)
        for j, other in enumerate(labels):
            assert (fresh[i] == fresh[j]) == (one == other)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 2], "skip \\[1\\]"),
        ([0, -1], "client 1 has label -1"),
        ([0.0, 1.0], "use integers"),
        ([], "one label a client"),
        ([[0]], "one label a client"),
    ],
)
def test_bad_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        a.check_labels(labels)


def test_similarities_larger_off_the_diagonal_are_taken_for_distances():
    with pytest.raises(ValueError, match="is this a distance matrix"):
        a.check_similarities([[0, 1], [1, 0]])
    assert a.check_similarities([[2, 1], [1, 2]]).shape == (2, 2)


def test_shares_outside_their_range_are_refused():
    assert a.check_share(0.5, "share") == 0.5
    with pytest.raises(ValueError, match=r"threshold is 1.5, expected a number from 0.0 to 1.0"):
        a.check_share(1.5, "threshold")
