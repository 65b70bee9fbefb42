"""Metrics: clustering scores, F1s, intervals and detection."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from cflib import metrics
from cflib.arrays import renumber
from cflib.metrics import Interval, confidence_interval, detection, paired_interval, score_partition

SCORES = ["adjusted_rand", "adjusted_mutual_information", "homogeneity", "completeness", "purity", "majority_purity"]
every_score = pytest.mark.parametrize("score", [getattr(metrics, name) for name in SCORES], ids=SCORES)
partitions = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 3), min_size=n, max_size=n).map(renumber)] * 2)
)


def plane_distances(n, seed=0):
    points = np.random.default_rng(seed).normal(size=(n, 2))
    return np.linalg.norm(points[:, None] - points, axis=-1)


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Clusters against true groups


@every_score
@settings(max_examples=40)
@given(pair=partitions)
def test_scores_are_finite_bounded_and_one_for_equal_partitions(score, pair):
    truth, labels = pair
    assert -1 <= score(truth, labels) <= 1
    assert score(truth, truth) == pytest.approx(1)


@every_score
@settings(max_examples=30)
@given(pair=partitions, seed=st.integers(0, 99))
def test_scores_depend_neither_on_names_nor_on_the_order_of_clients(score, pair, seed):
    truth, labels = pair
    order = np.random.default_rng(seed).permutation(len(truth))
    renamed = labels.max() - labels
    assert score(truth[order], renamed[order]) == pytest.approx(score(truth, labels), abs=1e-12)


@settings(max_examples=40)
@given(pair=partitions)
def test_scores_agree_with_scikit_learn_and_with_each_other(pair):
    truth, labels = pair
    assert metrics.adjusted_rand(truth, labels) == pytest.approx(sk.adjusted_rand_score(truth, labels))
    pairs = list(itertools.combinations(zip(truth, labels, strict=True), 2))
    alike = [(one[0] == two[0]) == (one[1] == two[1]) for one, two in pairs]
    assert metrics.plain_rand(truth, labels) == pytest.approx(np.mean(alike) if alike else 1)
    assert metrics.adjusted_mutual_information(truth, labels) == pytest.approx(
        sk.adjusted_mutual_info_score(truth, labels)
    )
    assert metrics.homogeneity(truth, labels) == pytest.approx(metrics.completeness(labels, truth))
    table = sk.cluster.contingency_matrix(truth, labels)
    assert metrics.majority_purity(truth, labels) == pytest.approx(table.max(axis=0).sum() / table.sum())
    assert metrics.purity(truth, labels) <= metrics.majority_purity(truth, labels)


def test_purity_counts_clients_and_not_clusters():
    # Cluster 0 is mixed (5 clients), cluster 1 pure (3), cluster 2 a singleton.
    truth = [0, 0, 0, 0, 1, 1, 1, 1, 2]
    labels = [0, 0, 0, 0, 0, 1, 1, 1, 2]
    assert metrics.purity(truth, labels) == pytest.approx(4 / 9)
    assert metrics.majority_purity(truth, labels) == pytest.approx(8 / 9)


def test_singletons_are_pure_and_homogeneous_and_one_cluster_is_complete():
    truth = np.repeat([0, 1, 2], 5)
    alone, together = np.arange(15), np.zeros(15, dtype=int)
    assert (metrics.purity(truth, alone), metrics.homogeneity(truth, alone)) == pytest.approx((1, 1))
    assert (metrics.purity(truth, together), metrics.completeness(truth, together)) == pytest.approx((0, 1))
    assert (metrics.homogeneity(truth, together), metrics.adjusted_rand(truth, together)) == pytest.approx((0, 0))


def test_published_figures_of_paper_004_follow_from_their_partitions():
    truth = np.repeat([0, 1, 2], 5)
    # Fashion-MNIST, Briggs: 20 rounds of one cluster, then 30 of five clusters with one client of each group.
    spread = np.tile(np.arange(5), 3)
    assert 0.6 * metrics.adjusted_rand(truth, spread) == pytest.approx(-0.141176, abs=1e-6)
    assert 0.6 * metrics.adjusted_mutual_information(truth, spread) == pytest.approx(-0.231618, abs=1e-6)
    # MNIST, Sattler: the first split separates one group from the other two.
    assert metrics.adjusted_rand(truth, (truth > 0).astype(int)) == pytest.approx(0.5333, abs=1e-4)
    # CIFAR-10, Briggs: singletons from round 20 of 50; the published "completeness" of 0.6 is homogeneity.
    assert 0.6 * metrics.homogeneity(truth, np.arange(15)) == pytest.approx(0.6)


def test_the_truth_of_a_sampled_subset_may_skip_groups():
    assert metrics.adjusted_rand([4, 4, 9, 9], [0, 0, 1, 1]) == 1.0


def test_score_partition_gives_every_score():
    truth, labels, distances = [0, 0, 1, 1, 1], [0, 0, 0, 1, 1], plane_distances(5)
    scores = score_partition(truth, labels, distances=distances)
    assert {name: scores.pop(name) for name in SCORES} == {
        name: getattr(metrics, name)(truth, labels) for name in SCORES
    }
    assert scores.pop("silhouette") == metrics.silhouette(distances, labels)
    assert scores == {"clusters": 2.0, "allotted": 1.0}
    assert "silhouette" not in score_partition(truth, labels)


def test_score_partition_leaves_out_clients_without_a_cluster_and_says_so():
    truth, labels, distances = np.array([0, 1, 0, 2, 2]), np.array([0, -1, 0, 1, 1]), plane_distances(5)
    scores = score_partition(truth, labels, distances=distances)
    kept = labels >= 0
    assert scores["allotted"] == 0.8
    assert scores["adjusted_rand"] == 1.0
    assert scores["silhouette"] == metrics.silhouette(distances[np.ix_(kept, kept)], labels[kept])


# Silhouettes


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [2, 3, 7])
def test_silhouette_agrees_with_scikit_learn(seed, k):
    distances = plane_distances(12, seed)
    labels = renumber(np.random.default_rng(seed).integers(0, k, 12))
    expected = sk.silhouette_score(distances, labels, metric="precomputed")
    assert metrics.silhouette(distances, labels) == pytest.approx(expected)


def test_silhouette_is_zero_for_one_cluster_singletons_and_coinciding_clients():
    distances = plane_distances(6)
    assert metrics.silhouette(distances, [0] * 6) == 0
    assert metrics.silhouette(distances, np.arange(6)) == 0
    assert metrics.silhouette([[0.0]], [0]) == 0
    assert metrics.silhouette(np.zeros((4, 4)), [0, 0, 1, 1]) == 0


def test_published_silhouette_worked_by_hand():
    # Clients on a line at 0, 2, 10 and 30; clusters {0, 2}, {10}, {30} with centroids 1, 10 and 30.
    place, centroid = np.array([0.0, 2.0, 10.0, 30.0]), np.array([1.0, 10.0, 30.0])
    distances = np.abs(place[:, None] - place)
    between = np.abs(centroid[:, None] - centroid)
    expected = np.mean([(10 - 1) / 10, (8 - 1) / 8, 1.0, 1.0])
    assert metrics.silhouette_as_published(distances, between, [0, 0, 1, 2]) == pytest.approx(expected, abs=1e-6)


def test_published_silhouette_follows_the_centroids_and_not_the_distances():
    place = np.array([0.0, 2.0, 10.0, 30.0])
    distances = np.abs(place[:, None] - place)
    between = np.array([[0, 9, 1], [9, 0, 9], [1, 9, 0]])
    near, far = metrics.silhouette_as_published(distances, between, [0, 0, 1, 2]), (30 - 1) / 30
    assert near == pytest.approx(np.mean([far, (28 - 1) / 28, 1, 1]), abs=1e-6)


def test_singletons_raise_the_published_silhouette_to_one_and_the_standard_one_to_nothing():
    distances = plane_distances(6)
    assert metrics.silhouette_as_published(distances, distances, np.arange(6)) == pytest.approx(1, abs=1e-4)
    assert metrics.silhouette(distances, np.arange(6)) == 0
    assert metrics.silhouette_as_published(distances, [[0.0]], [0] * 6) == 0
    assert metrics.silhouette_as_published(np.zeros((2, 2)), np.zeros((2, 2)), [0, 1]) == 0


# Classification


@settings(max_examples=40)
@given(data=st.integers(1, 30).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2)))
def test_macro_f1_agrees_with_scikit_learn_and_its_confusion_form(data):
    truth, predictions = data
    expected = sk.f1_score(truth, predictions, average="macro", zero_division=0)
    confusion = sk.confusion_matrix(truth, predictions, labels=range(5))
    assert metrics.macro_f1(truth, predictions) == pytest.approx(expected)
    assert metrics.macro_f1_of_confusion(confusion) == pytest.approx(expected)
    assert metrics.accuracy_of_confusion(confusion) == pytest.approx(sk.accuracy_score(truth, predictions))
    named = sk.f1_score(truth, predictions, labels=range(5), average="macro", zero_division=0)
    assert metrics.macro_f1(truth, predictions, labels=range(5)) == pytest.approx(named)


def test_a_prediction_outside_the_clients_classes_costs_a_class():
    assert metrics.macro_f1([0, 0, 1, 1], [0, 0, 1, 1]) == 1.0
    assert metrics.macro_f1([0, 0, 1, 1], [0, 0, 1, 7]) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert metrics.macro_f1([0, 0, 1, 1], [0, 0, 1, 7], labels=[0, 1]) == pytest.approx((1 + 2 / 3) / 2)


def test_personal_f1_is_the_mean_over_clients_and_rounds():
    perfect, half = np.diag([5, 5]), np.array([[5, 0], [5, 0]])
    expected = (1 + 1 / 3) / 2
    assert metrics.personal_f1([perfect, half]) == pytest.approx(expected)
    assert metrics.personal_f1([[perfect, half], [half, perfect]]) == pytest.approx(expected)
    assert metrics.general_f1([perfect, half]) == pytest.approx(expected)


def test_general_f1_refuses_matrices_of_different_test_sets():
    with pytest.raises(ValueError, match="row 1 was tested on other data"):
        metrics.general_f1([np.diag([5, 5]), np.diag([4, 6])])


def test_learning_gap_is_absolute_and_averages_first():
    # Paper 004's archive, MNIST, 15 clients, overlapping balanced, no clustering: GF1 exceeds PF1, DIST is 0.1344.
    assert metrics.learning_gap(0.5969, 0.7312) == pytest.approx(0.1344, abs=2e-4)
    assert metrics.learning_gap(0.5, 0.2) == metrics.learning_gap(0.2, 0.5) == pytest.approx(0.3)
    assert metrics.learning_gap([0.1, 0.9], [0.9, 0.1]) == 0


# Spread and detection


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_interval_agrees_with_scipy(level):
    values = np.random.default_rng(0).normal(size=7)
    interval = confidence_interval(values, level=level)
    expected = stats.ttest_1samp(values, 0).confidence_interval(level)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert (interval.mean, interval.n) == (pytest.approx(values.mean()), 7)


def test_one_value_leaves_the_mean_unbounded_and_equal_values_leave_no_width():
    assert confidence_interval([3.0]) == Interval(3.0, -np.inf, np.inf, 1)
    assert confidence_interval([2.0, 2.0, 2.0]) == Interval(2.0, 2.0, 2.0, 3)


def test_paired_interval_is_narrow_where_seeds_move_both_alike():
    seeds = np.array([0.1, 0.5, 0.9, 0.3])
    interval = paired_interval(seeds + 0.02, seeds)
    assert (interval.low, interval.mean, interval.high) == pytest.approx((0.02, 0.02, 0.02))
    assert paired_interval(seeds, seeds + 0.02).mean == pytest.approx(-0.02)


@pytest.mark.parametrize(
    ("flagged", "attackers", "expected"),
    [
        ([1, 2, 3, 4], [3, 4, 5], (0.5, 2 / 3)),
        ({3}, np.array([3, 4]), (1.0, 0.5)),
        (np.array([True, False, True]), [0], (0.5, 1.0)),
        ([False, True], [True, False], (0.0, 0.0)),
        ([], [], (1.0, 1.0)),
        ([], [1], (0.0, 0.0)),
        ([1], [], (0.0, 0.0)),
        (np.zeros(4, dtype=bool), [], (1.0, 1.0)),
    ],
)
def test_detection_compares_ids_and_masks(flagged, attackers, expected):
    assert detection(flagged, attackers) == pytest.approx(expected)


def test_detection_agrees_with_scikit_learn():
    rng = np.random.default_rng(3)
    flagged, attackers = rng.random(40) < 0.3, rng.random(40) < 0.4
    expected = sk.precision_score(attackers, flagged), sk.recall_score(attackers, flagged)
    assert detection(flagged, attackers) == pytest.approx(expected)
    assert detection(np.flatnonzero(flagged), attackers) == pytest.approx(expected)


# Errors


@every_score
def test_scores_refuse_bad_labels(score):
    with pytest.raises(ValueError, match="client 1 has label -1"):
        score([0, 0, 1], [0, -1, 1])
    with pytest.raises(ValueError, match=r"labels skip \[1\]"):
        score([0, 0, 1], [0, 2, 2])
    with pytest.raises(ValueError, match=r"client 0 has true group -1.*use the silhouette"):
        score([-1, -1, -1], [0, 0, 1])
    with pytest.raises(ValueError, match="one group a client"):
        score([0, 1], [0, 0, 1])
    with pytest.raises(ValueError, match="one group a client"):
        score([0.0, 1.0, 1.0], [0, 0, 1])


def test_score_partition_refuses_what_cannot_be_scored():
    with pytest.raises(ValueError, match="none of the 3 clients is allotted"):
        score_partition([0, 0, 1], [-1, -1, -1])
    with pytest.raises(ValueError, match="client 0 has true group -1"):
        score_partition([-1, -1], [0, 1])
    with pytest.raises(ValueError, match="distances of 4 clients and labels of 3"):
        score_partition([0, 0, 1], [0, 0, -1], distances=plane_distances(4))


def test_silhouettes_refuse_similarities_and_wrong_sizes():
    with pytest.raises(ValueError, match="similarity matrix"):
        metrics.silhouette(np.eye(3), [0, 0, 1])
    with pytest.raises(ValueError, match="distances of 3 clients and labels of 2"):
        metrics.silhouette(plane_distances(3), [0, 1])
    with pytest.raises(ValueError, match=r"there are 2 clusters: pass \(2, 2\)"):
        metrics.silhouette_as_published(plane_distances(3), plane_distances(3), [0, 0, 1])
    with pytest.raises(ValueError, match="from centroid 1 to 0 is nan"):
        metrics.silhouette_as_published(plane_distances(2), [[0, 1], [np.nan, 0]], [0, 1])


def test_f1_refuses_what_it_cannot_count():
    with pytest.raises(ValueError, match="one class a sample"):
        metrics.macro_f1([0, 1], [0])
    with pytest.raises(ValueError, match="one class a sample"):
        metrics.macro_f1([], [])
    with pytest.raises(ValueError, match="name no class"):
        metrics.macro_f1([0], [0], labels=[])
    with pytest.raises(ValueError, match=r"expected \(classes, classes\)"):
        metrics.macro_f1_of_confusion([np.eye(2), np.eye(2)])
    with pytest.raises(ValueError, match=r"expected \(clients, classes, classes\)"):
        metrics.personal_f1(np.eye(2))
    with pytest.raises(ValueError, match="row 1 has no test samples"):
        metrics.personal_f1([np.eye(2), np.zeros((2, 2))])
    with pytest.raises(ValueError, match=r"row 0 counts -1.0 samples of class 0 as 1"):
        metrics.accuracy_of_confusion([[1, -1], [0, 1]])


def test_intervals_and_detection_refuse_bad_values():
    with pytest.raises(ValueError, match=r"level is 95"):
        confidence_interval([1, 2], level=95)
    with pytest.raises(ValueError, match="pass at least one"):
        confidence_interval([])
    with pytest.raises(ValueError, match="leave out runs without a result"):
        metrics.learning_gap(0.5, [0.5, np.nan])
    with pytest.raises(ValueError, match="3 values cannot be paired with 2"):
        paired_interval([1, 2, 3], [1, 2])
    for clients in ([-1], [0.5], [[1, 2]]):
        with pytest.raises(ValueError, match="pass ids"):
            detection(clients, [1])


def test_importing_the_module_does_not_import_scikit_learn_or_scipy():
    code = "import sys, cflib.metrics; print(any(m in sys.modules for m in ('sklearn', 'scipy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_bimodality_is_that_of_known_shapes_and_ignores_scale():
    uniform = np.linspace(0, 1, 20001)
    assert metrics.bimodality(uniform) == pytest.approx(5 / 9, abs=1e-3)
    assert metrics.bimodality(np.random.default_rng(0).normal(size=20000)) == pytest.approx(1 / 3, abs=0.02)
    assert metrics.bimodality([0, 0, 0, 1, 1, 1]) == pytest.approx(1)
    assert metrics.bimodality(7 * uniform**2 - 3) == pytest.approx(metrics.bimodality(uniform**2))
    for scale in (1e-90, 1e90):  # raw similarities of MobileNets are that large
        assert metrics.bimodality(scale * uniform**2) == pytest.approx(metrics.bimodality(uniform**2))
    assert metrics.bimodality([2, 2, 2]) == 0
