"""Attribution: convex weights over community models, and labels for newcomers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax

from cflib.arrays import renumber
from cflib.attribution import average, best_accuracy, lowest_loss, nearest, nearest_core, own, weighted_nearest
from cflib.clustering import dbscan

shapes = st.tuples(st.integers(1, 8), st.integers(1, 6))
tables = shapes.flatmap(lambda shape: arrays(float, shape, elements=st.floats(0, 1e6)))
shares = shapes.flatmap(lambda shape: arrays(float, shape, elements=st.floats(0, 1)))
partitions = (
    st.lists(st.integers(-1, 4), min_size=1, max_size=12).map(renumber).filter(lambda labels: labels.max() >= 0)
)

FROM_TABLES = {
    "nearest": nearest,
    "weighted_nearest": weighted_nearest,
    "weighted_nearest, two": lambda d: weighted_nearest(d, k=2, beta=0.01),
    "lowest_loss": lowest_loss,
    "best_accuracy": best_accuracy,
}
FROM_LABELS = {"average": average, "own": own}
from_tables = pytest.mark.parametrize("rule", FROM_TABLES.values(), ids=FROM_TABLES)
from_labels = pytest.mark.parametrize("rule", FROM_LABELS.values(), ids=FROM_LABELS)


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def assert_convex(weights, shape):
    assert weights.shape == shape
    assert weights.dtype == np.float64
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)


# Invariants


@from_tables
@given(table=shares)
def test_rows_of_a_table_become_convex_weights(rule, table):
    assert_convex(rule(table), table.shape)


@from_labels
@given(labels=partitions)
def test_labels_become_convex_weights(rule, labels):
    assert_convex(rule(labels), (len(labels), labels.max() + 1))


@from_tables
@given(table=shares, data=st.data())
def test_renaming_clients_permutes_the_rows(rule, table, data):
    order = data.draw(st.permutations(range(len(table))))
    assert np.array_equal(rule(table[order]), rule(table)[order])


@given(table=tables)
def test_one_neighbour_is_the_nearest(table):
    assert np.array_equal(weighted_nearest(table, k=1), nearest(table))


@given(table=tables, k=st.integers(1, 8), beta=st.floats(0, 10))
def test_weighted_nearest_is_a_softmax_over_the_k_nearest(table, k, beta):
    for row, weights in zip(table, weighted_nearest(table, k=k, beta=beta), strict=True):
        chosen = sorted(range(len(row)), key=lambda community: (row[community], community))[:k]
        expected = np.zeros(len(row))
        expected[chosen] = softmax(-beta * row[chosen])
        np.testing.assert_allclose(weights, expected, atol=1e-12)


@given(table=shares, offset=st.integers(0, 1000))
def test_weighted_nearest_depends_on_differences_of_distances_only(table, offset):
    np.testing.assert_allclose(weighted_nearest(table + offset, k=9), weighted_nearest(table, k=9), rtol=1e-9)


# Worked out by hand


def test_average_weighs_communities_alike_whatever_their_size():
    assert average([0, 0, 0, 1]).tolist() == [[0.5, 0.5]] * 4
    assert average([0, 0, -1]).tolist() == [[1.0]] * 3


def test_own_gives_the_community_of_the_label_and_a_client_not_allotted_the_global_model():
    assert own([2, 0, 1, -1]).tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0], [1 / 3] * 3]


def test_ties_go_to_the_first_community():
    tie = [[0.5, 0.2, 0.2], [0.3, 0.3, 0.3]]
    assert nearest(tie).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert lowest_loss(tie).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert best_accuracy([[0.1, 0.9, 0.9]]).tolist() == [[0, 1, 0]]
    assert weighted_nearest(tie, k=2).tolist() == [[0, 0.5, 0.5], [0.5, 0.5, 0]]


def test_the_best_model_is_the_lowest_loss_or_the_highest_accuracy():
    assert lowest_loss([[0.4, -1.0, 2.0]]).tolist() == [[0, 1, 0]]
    assert best_accuracy([[0.4, 0.1, 0.9]]).tolist() == [[0, 0, 1]]


def test_weighted_nearest_mixes_three_by_default():
    third = weighted_nearest([[0.0, np.log(2.0), np.log(4.0), 50.0]])
    np.testing.assert_allclose(third, [[4 / 7, 2 / 7, 1 / 7, 0.0]])
    np.testing.assert_allclose(weighted_nearest([[0.0, np.log(2.0)]], beta=2.0), [[0.8, 0.2]])
    assert weighted_nearest([[5.0, 1.0, 9.0]], beta=0.0).tolist() == [[1 / 3] * 3]


def test_a_model_mixed_from_equal_models_is_not_shrunk():
    # Eq. 4 of paper 000 divides by the number of neighbours as well; the weights here still sum to 1.
    assert weighted_nearest([[0.2, 0.2, 0.2]]).sum() == pytest.approx(1.0)


def test_distances_of_any_size_neither_overflow_nor_vanish():
    np.testing.assert_allclose(weighted_nearest([[2000.0, 2000.0 + np.log(3.0)]]), [[0.75, 0.25]])
    assert weighted_nearest([[1e300, 1e308]], beta=1e10).tolist() == [[1.0, 0.0]]
    assert weighted_nearest([[1e308, 1e308]], beta=1e10).tolist() == [[0.5, 0.5]]


def test_one_client_and_one_community_are_a_case_like_any_other():
    for rule in FROM_TABLES.values():
        assert rule([[0.3]]).tolist() == [[1.0]]
    for rule in FROM_LABELS.values():
        assert rule([0]).tolist() == [[1.0]]


# Newcomers


def test_a_newcomer_joins_its_nearest_core_client_within_eps():
    cores, labels = [[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]], [0, 2, 5]
    newcomers = [[0.0, 1.0], [3.0, 3.5], [6.0, 13.0], [6.0, 13.1], [1.4, 2.0]]
    assert nearest_core(newcomers, cores, labels, eps=5.0).tolist() == [0, 2, 5, -1, 0]
    assert nearest_core(newcomers, cores, labels, eps=0.0).tolist() == [-1] * 5
    assert nearest_core([[3.0, 4.0]], cores, labels, eps=0.0).tolist() == [2]
    assert nearest_core([[1.5, 2.0]], cores, labels, eps=np.inf).tolist() == [0]


def test_without_core_clients_every_newcomer_is_flagged():
    labels = nearest_core([[0.0], [1.0]], [], [], eps=1.0)
    assert labels.tolist() == [-1, -1]
    assert labels.dtype == np.int64


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_a_newcomer_equal_to_a_clustered_client_gets_its_label(seed):
    vectors = np.random.default_rng(seed).normal(size=(20, 2))
    labels = dbscan(vectors, eps=0.5, noise="keep")
    core = labels >= 0  # with two samples every client of a cluster is core
    assert np.array_equal(nearest_core(vectors, vectors[core], labels[core], eps=0.5), labels)


# Errors


@from_tables
def test_tables_must_be_finite_and_two_dimensional(rule):
    with pytest.raises(ValueError, match=r"client 1 has \w+ nan with community 0"):
        rule([[0.1, 0.2], [np.nan, 0.3]])
    with pytest.raises(ValueError, match=r"client 0 has \w+ inf with community 1"):
        rule([[0.1, np.inf]])
    with pytest.raises(ValueError, match=r"shape \(2,\), expected \(clients, communities\)"):
        rule([0.1, 0.2])
    with pytest.raises(ValueError, match=r"shape \(0,\)"):
        rule([])
    with pytest.raises(ValueError, match=r"shape \(2, 0\)"):
        rule([[], []])


@pytest.mark.parametrize("rule", [nearest, weighted_nearest])
def test_negative_distances_are_taken_for_similarities(rule):
    with pytest.raises(ValueError, match=r"client 0 has distance -0.5 < 0 to community 1: are these similarities"):
        rule([[0.1, -0.5]])


@pytest.mark.parametrize("value", [-0.1, 87.5])
def test_accuracies_are_shares(value):
    with pytest.raises(ValueError, match=rf"client 1 has accuracy {value} with community 0"):
        best_accuracy([[0.5], [value]])


@from_labels
def test_labels_must_be_gapless_integers_with_a_community(rule):
    with pytest.raises(ValueError, match=r"labels skip \[1\]"):
        rule([0, 2])
    with pytest.raises(ValueError, match="client 1 has label -2"):
        rule([0, -2])
    with pytest.raises(ValueError, match="use integers"):
        rule([0.0, 1.0])
    with pytest.raises(ValueError, match=r"shape \(0,\)"):
        rule([])
    with pytest.raises(ValueError, match="all 2 clients have label -1"):
        rule([-1, -1])


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 1.5}, {"beta": -1.0}, {"beta": np.nan}, {"beta": np.inf}])
def test_weighted_nearest_names_an_option_outside_its_range(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        weighted_nearest([[0.1]], **options)


@pytest.mark.parametrize(
    ("vectors", "cores", "labels", "eps", "message"),
    [
        ([], [[0.0]], [0], 1.0, "no vectors"),
        ([[np.nan]], [[0.0]], [0], 1.0, "newcomer 0 holds nan"),
        ([[0.0]], [[np.inf]], [0], 1.0, "core client 0 holds inf"),
        ([[0.0]], [[0.0, 1.0]], [0], 1.0, "newcomers have 1 values, core clients 2"),
        ([[0.0]], [[0.0]], [0, 1], 1.0, r"core_labels have shape \(2,\) for 1 core clients"),
        ([[0.0]], [[0.0]], [-1], 1.0, r"core_labels are \[-1\]"),
        ([[0.0]], [[0.0]], [0.5], 1.0, r"core_labels are \[0.5\]"),
        ([[0.0]], [[0.0]], [0], -1.0, "eps is -1.0"),
        ([[0.0]], [[0.0]], [0], np.nan, "eps is nan"),
    ],
)
def test_nearest_core_names_what_is_wrong(vectors, cores, labels, eps, message):
    with pytest.raises(ValueError, match=message):
        nearest_core(vectors, cores, labels, eps=eps)
