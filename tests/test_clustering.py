"""Clustering: Louvain as two libraries run it, agreement, density and linkage methods, splits."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings

import community
import networkx as nx
import numpy as np
import pytest
import sklearn.cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cflib import clustering
from cflib.arrays import renumber
from cflib.clustering import (
    RESOLUTIONS,
    affinity_propagation,
    agglomerative,
    agreement,
    agreement_matrix,
    bipartition,
    dbscan,
    hdbscan,
    kmeans,
    louvain,
    mean_shift,
    optics,
    split_cluster,
)
from cflib.distances import to_similarity

BACKENDS = ["networkx", "python-louvain"]
both_backends = pytest.mark.parametrize("backend", BACKENDS)
seeds = st.integers(0, 10_000)


def between(vectors):
    vectors = np.asarray(vectors, dtype=float)
    return np.linalg.norm(vectors[:, None] - vectors, axis=-1)


METHODS = {
    "louvain, networkx": lambda x: louvain(to_similarity(between(x))),
    "louvain, python-louvain": lambda x: louvain(to_similarity(between(x)), backend="python-louvain"),
    "agreement": lambda x: agreement(to_similarity(between(x))),
    "dbscan": lambda x: dbscan(x, eps=2.0),
    "optics": lambda x: optics(x, min_samples=min(5, max(2, len(x) - 1))),
    "kmeans": lambda x: kmeans(x, n_clusters=3),
    "mean_shift": mean_shift,
    "hdbscan": lambda x: hdbscan(between(x), min_cluster_size=3),
    "affinity_propagation": lambda x: affinity_propagation(-between(x)),
    "agglomerative": lambda x: agglomerative(between(x), threshold=5.0),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
every_noisy_method = pytest.mark.parametrize(
    "method",
    [
        lambda x, **noise: dbscan(x, eps=0.5, **noise),
        lambda x, **noise: optics(x, **noise),
        lambda x, **noise: hdbscan(between(x), min_cluster_size=2, **noise),
    ],
    ids=["dbscan", "optics", "hdbscan"],
)


TRUTH = np.arange(24) % 3


def three_groups():
    """Twenty-four clients in three well separated groups of eight: 0, 1, 2, 0, 1, 2, ..."""
    centres = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 25.0]])
    return centres[TRUTH] + np.random.default_rng(7).uniform(-0.5, 0.5, size=(24, 2))


def random_affinity(n, rng, *, density=1.0):
    upper = np.triu(rng.random((n, n)) * (rng.random((n, n)) < density), 1)
    return upper + upper.T + np.eye(n)


def library_louvain(affinity, *, resolution, backend, self_loops, seed):
    weights = np.maximum(affinity, 0)
    graph = nx.from_numpy_array(weights if self_loops else weights * (1 - np.eye(len(weights))))
    if backend == "networkx":
        sets = nx.community.louvain_communities(graph, resolution=resolution, seed=seed)
        found = {client: label for label, members in enumerate(sets) for client in members}
    else:
        found = community.best_partition(graph, resolution=resolution, random_state=seed)
    return renumber([found[client] for client in range(len(weights))])


def together(labels):
    return np.asarray(labels)[:, None] == np.asarray(labels)


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Every method


@every_method
def test_clear_groups_are_found_and_numbered_in_order_of_first_client(method):
    labels = method(three_groups())
    assert labels.dtype == np.int64
    assert labels.tolist() == TRUTH.tolist()


@every_method
@settings(max_examples=5)
@given(order=st.permutations(range(24)))
def test_renaming_clients_permutes_the_labels(method, order):
    assert np.array_equal(method(three_groups()[order]), renumber(TRUTH[order]))


@every_method
@pytest.mark.parametrize("n", [1, 2, 3, 10])
@pytest.mark.parametrize("equal", [True, False])
def test_few_or_equal_clients_give_labels_without_gaps_or_warnings(method, n, equal):
    vectors = np.ones((n, 3)) if equal else np.random.default_rng(n).normal(size=(n, 3))
    labels = method(vectors)
    assert np.array_equal(labels, renumber(labels))
    assert labels.shape == (n,)
    assert labels.min() == 0


@every_method
def test_pairs_of_equal_clients_raise_no_warning_and_stay_together(method):
    labels = method(np.repeat(three_groups()[:6], 2, axis=0))
    assert np.array_equal(labels[::2], labels[1::2])


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"hdbscan"}))
def test_equal_clients_share_one_cluster(name):
    # HDBSCAN, which never finds a single cluster, has its own test below.
    assert METHODS[name](np.full((10, 4), 0.1)).tolist() == [0] * 10


@every_method
def test_a_method_leaves_its_input_alone(method):
    vectors = three_groups()
    method(vectors)
    assert np.array_equal(vectors, three_groups())


def test_importing_the_module_loads_no_heavy_library():
    heavy = "{'sklearn', 'networkx', 'community', 'scipy', 'tensorflow'}"
    code = f"import sys, cflib.clustering, cflib.attribution; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Louvain


@both_backends
@settings(max_examples=60)
@given(seed=seeds, n=st.integers(1, 40), resolution=st.sampled_from([0.3, *RESOLUTIONS, 2.5]), loops=st.booleans())
def test_louvain_is_the_partition_the_library_finds(backend, seed, n, resolution, loops):
    rng = np.random.default_rng(seed)
    affinity = random_affinity(n, rng, density=rng.choice([0.1, 0.4, 1.0]))
    options = {"resolution": resolution, "backend": backend, "self_loops": loops, "seed": seed % 5}
    assert np.array_equal(louvain(affinity, **options), library_louvain(affinity, **options))


@both_backends
@pytest.mark.parametrize(("n", "density"), [(120, 1.0), (200, 0.03)])
def test_louvain_is_the_partition_the_library_finds_on_large_graphs(backend, n, density):
    affinity = random_affinity(n, np.random.default_rng(6), density=density)
    for resolution in (0.6, 1.0, 1.4):
        options = {"resolution": resolution, "backend": backend, "self_loops": False, "seed": 0}
        assert np.array_equal(louvain(affinity, **options), library_louvain(affinity, **options))


@both_backends
@pytest.mark.parametrize("graph", [nx.petersen_graph(), nx.ladder_graph(6), nx.grid_2d_graph(4, 5)])
def test_ties_between_equal_weights_fall_as_in_the_library(backend, graph):
    affinity = nx.to_numpy_array(graph) + np.eye(len(graph))
    for seed in range(5):
        options = {"resolution": 1.0, "backend": backend, "self_loops": False, "seed": seed}
        assert np.array_equal(louvain(affinity, **options), library_louvain(affinity, **options))


def test_the_libraries_disagree_below_resolution_one_on_the_karate_club():
    karate = nx.to_numpy_array(nx.karate_club_graph())
    counts = {
        backend: [int(louvain(karate, resolution=r, backend=backend).max()) + 1 for r in (0.3, 0.5, 1.0, 1.5, 2.0)]
        for backend in BACKENDS
    }
    # networkx: more communities as the resolution grows; python-louvain: a U, its stop test ends the search below 1.
    assert counts == {"networkx": [2, 2, 4, 5, 7], "python-louvain": [8, 5, 4, 5, 7]}


@pytest.mark.parametrize("seed", [0, 1, 2, 123])
def test_equally_good_moves_do_not_loop_for_ever(seed):
    # networkx 3.6.1 never returns from this graph with seed 123 (its issue 8739).
    edges = [(0, 1), (0, 2), (0, 5), (0, 6), (1, 2), (1, 4), (2, 3), (2, 5), (2, 6), (3, 4)]
    graph = nx.Graph(edges)
    labels = louvain(nx.to_numpy_array(graph, nodelist=range(7)), seed=seed)
    found = nx.community.modularity(graph, [set(np.flatnonzero(labels == label)) for label in range(labels.max() + 1)])
    best = nx.community.modularity(graph, [{0, 2, 5, 6}, {1, 3, 4}])
    assert found == pytest.approx(best)


@both_backends
@pytest.mark.parametrize("weight", [0.1, 1.0, 1.9, 2.0])
def test_ten_equal_clients_are_alone_with_self_loops_and_together_without(backend, weight):
    affinity = np.full((10, 10), weight)
    np.fill_diagonal(affinity, 2.0)
    assert louvain(affinity, backend=backend, self_loops=True).tolist() == list(range(10))
    assert louvain(affinity, backend=backend).tolist() == [0] * 10


@both_backends
@settings(max_examples=25)
@given(seed=seeds, n=st.integers(3, 20), resolution=st.sampled_from([0.6, 1.0, 1.4]))
def test_raw_and_normalised_similarities_give_the_same_communities(backend, seed, n, resolution):
    distances = between(np.random.default_rng(seed).normal(size=(n, 3)))
    raw = (distances.max() - distances) ** 3
    options = {"resolution": resolution, "backend": backend}
    assert np.array_equal(louvain(raw, **options), louvain(to_similarity(distances), **options))


@both_backends
@pytest.mark.parametrize("scale", [1e-290, 1e-12, 1e12, 1e290])
@pytest.mark.parametrize("loops", [True, False])
def test_very_small_and_very_large_affinities_give_the_same_communities(backend, scale, loops):
    affinity = random_affinity(15, np.random.default_rng(3))
    options = {"backend": backend, "self_loops": loops}
    assert np.array_equal(louvain(scale * affinity, **options), louvain(affinity, **options))


@both_backends
def test_edges_that_are_not_positive_are_dropped(backend):
    negative = np.array([[1.0, 0.8, -0.9, -0.2], [0.8, 1, -0.3, -1], [-0.9, -0.3, 1, 0.7], [-0.2, -1, 0.7, 1]])
    assert louvain(negative, backend=backend).tolist() == [0, 0, 1, 1]
    assert np.array_equal(louvain(np.maximum(negative, 0), backend=backend), louvain(negative, backend=backend))


@both_backends
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("affinity", [np.eye(4), np.zeros((4, 4)), 2 * np.eye(4) - 1, -np.eye(4)])
def test_a_graph_without_edges_leaves_every_client_alone(backend, loops, affinity):
    assert louvain(affinity, backend=backend, self_loops=loops).tolist() == [0, 1, 2, 3]


@both_backends
def test_the_seed_decides(backend):
    affinity = random_affinity(40, np.random.default_rng(0))
    found = [louvain(affinity, backend=backend, seed=seed).tolist() for seed in (0, 0, 1, 2, 3)]
    assert found[0] == found[1]
    assert any(other != found[0] for other in found[2:])


def test_an_edge_that_rounding_left_on_one_side_only_has_its_mean():
    almost = np.array([[1.0, 1e-9], [-1e-9, 1.0]])
    assert louvain(almost).tolist() == louvain(almost.T).tolist() == [0, 1]
    almost = np.array([[1.0, 3e-9], [-1e-9, 1.0]])
    assert louvain(almost).tolist() == louvain(almost.T).tolist() == [0, 0]


def test_a_graph_with_a_zero_diagonal_is_taken_for_a_graph():
    two_pairs = [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
    assert louvain(two_pairs, self_loops=True).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("cluster", [louvain, agreement_matrix, agreement])
@pytest.mark.parametrize("vectors", [three_groups(), np.repeat(three_groups(), 2, axis=0), [[0.0], [1.0]]])
def test_louvain_refuses_a_distance_matrix(cluster, vectors):
    with pytest.raises(ValueError, match=r"client \d+ has affinity 0 to itself .* is this a distance matrix"):
        cluster(between(vectors))


@pytest.mark.parametrize("cluster", [louvain, agreement_matrix, agreement])
def test_louvain_refuses_what_is_no_symmetric_finite_matrix(cluster):
    with pytest.raises(ValueError, match="not symmetric"):
        cluster([[1.0, 0.5], [0.1, 1.0]])
    with pytest.raises(ValueError, match="between clients 0 and 1 are nan"):
        cluster([[1.0, np.nan], [np.nan, 1.0]])
    with pytest.raises(ValueError, match=r"shape \(1, 2\)"):
        cluster([[1.0, 0.5]])
    with pytest.raises(ValueError, match=r"shape \(0, 0\)"):
        cluster(np.zeros((0, 0)))
    with pytest.raises(ValueError, match="backend is 'igraph'"):
        cluster(np.eye(2), backend="igraph")


@pytest.mark.parametrize("resolution", [0.0, -1.0, np.nan, np.inf])
def test_a_resolution_must_be_positive(resolution):
    with pytest.raises(ValueError, match=f"resolution is {resolution}"):
        louvain(np.eye(2), resolution=resolution)
    with pytest.raises(ValueError, match=f"resolution is {resolution}"):
        agreement_matrix(np.eye(2), resolutions=[1.0, resolution])


# Agreement


def test_the_resolutions_are_the_21_values_from_a_half_to_three_halves():
    assert (
        *(0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
        *(1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5),
    ) == RESOLUTIONS


@both_backends
@settings(max_examples=10)
@given(seed=seeds, n=st.integers(1, 25))
def test_the_agreement_matrix_counts_common_communities(backend, seed, n):
    affinity = random_affinity(n, np.random.default_rng(seed))
    counts = agreement_matrix(affinity, backend=backend, seed=1)
    slow = sum(together(louvain(affinity, resolution=r, backend=backend, seed=1)).astype(int) for r in RESOLUTIONS)
    assert counts.dtype == np.int64
    assert np.array_equal(counts, slow)
    assert (np.diagonal(counts) == 21).all()


def of_counts(counts, monkeypatch, *, runs, **options):
    """Agreement as it follows from given counts."""
    monkeypatch.setattr(clustering, "agreement_matrix", lambda *_, **__: np.array(counts))
    return agreement(np.eye(len(counts)), resolutions=[1.0] * runs, **options).tolist()


def test_agreement_keeps_13_of_21_and_drops_12(monkeypatch):
    assert of_counts([[21, 13, 12], [13, 21, 0], [12, 0, 21]], monkeypatch, runs=21) == [0, 0, 1]


@pytest.mark.parametrize(("threshold", "runs", "needed"), [(0.6, 20, 12), (0.28, 25, 7), (0.56, 25, 14), (1.0, 21, 21)])
def test_agreement_at_exactly_the_threshold_is_kept(threshold, runs, needed, monkeypatch):
    options = {"runs": runs, "threshold": threshold}
    assert of_counts([[runs, needed], [needed, runs]], monkeypatch, **options) == [0, 0]
    assert of_counts([[runs, needed - 1], [needed - 1, runs]], monkeypatch, **options) == [0, 1]


def test_agreement_joins_clients_linked_through_others(monkeypatch):
    assert of_counts([[5, 0, 4], [0, 5, 4], [4, 4, 5]], monkeypatch, runs=5) == [0, 0, 0]


def test_agreement_differs_from_one_partition_where_resolutions_disagree():
    # Four pairs in two couples: a couple holds together at 17 of the 21 resolutions and splits at the highest.
    truth = np.repeat(np.arange(4), 2)
    affinity = 0.1 + 0.25 * together(truth // 2) + 0.65 * together(truth)
    assert louvain(affinity, resolution=1.5).tolist() == truth.tolist()
    assert agreement(affinity, threshold=1.0).tolist() == truth.tolist()
    assert agreement(affinity).tolist() == (truth // 2).tolist()


@pytest.mark.parametrize("threshold", [-0.1, 1.1, np.nan])
def test_agreement_refuses_a_threshold_outside_zero_to_one(threshold):
    with pytest.raises(ValueError, match=f"threshold is {threshold}"):
        agreement(np.eye(3), threshold=threshold)


def test_agreement_refuses_no_resolutions():
    with pytest.raises(ValueError, match="no resolutions"):
        agreement(np.eye(3), resolutions=[])


@pytest.mark.parametrize("backend", ["networkx", pytest.param("python-louvain", marks=pytest.mark.slow)])
def test_the_agreement_of_500_clients_takes_less_than_30_seconds(backend):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 20)) + rng.normal(size=(5, 20))[np.arange(500) % 5] / 2
    affinity = to_similarity(between(vectors))
    start = time.process_time()  # one thread does the work; a wall clock would count other processes as well
    agreement_matrix(affinity, backend=backend)
    assert time.process_time() - start < 30


# Noise


def test_each_noise_client_is_alone_or_all_are_together_or_kept():
    vectors = [[0.0], [50.0], [0.1], [9.0], [-50.0], [9.1]]
    assert dbscan(vectors, eps=1.0).tolist() == [0, 1, 0, 2, 3, 2]
    assert dbscan(vectors, eps=1.0, noise="own").tolist() == [0, 1, 0, 2, 3, 2]
    assert dbscan(vectors, eps=1.0, noise="together").tolist() == [0, 1, 0, 2, 1, 2]
    assert dbscan(vectors, eps=1.0, noise="keep").tolist() == [0, -1, 0, 1, -1, 1]


@every_noisy_method
def test_a_noise_policy_moves_only_noise(method):
    vectors = np.random.default_rng(4).normal(size=(20, 2))
    keep = method(vectors, noise="keep")
    lost = np.flatnonzero(keep == -1)
    assert 2 <= len(lost) < 18
    own, shared = keep.copy(), keep.copy()
    own[lost], shared[lost] = 100 + np.arange(len(lost)), 100
    assert np.array_equal(method(vectors, noise="own"), renumber(own))
    assert np.array_equal(method(vectors), renumber(own))
    assert np.array_equal(method(vectors, noise="together"), renumber(shared))
    with pytest.raises(ValueError, match="noise is 'drop'"):
        method(vectors, noise="drop")


@pytest.mark.parametrize(("noise", "labels"), [("own", [0, 1]), ("together", [0, 0]), ("keep", [-1, -1])])
def test_too_few_clients_for_a_density_are_all_noise(noise, labels):
    two = [[0.0], [1.0]]
    assert dbscan(two, eps=5.0, min_samples=3, noise=noise).tolist() == labels
    assert optics(two, min_samples=3, noise=noise).tolist() == labels
    assert hdbscan(between(two), min_cluster_size=3, noise=noise).tolist() == labels


@pytest.mark.parametrize("distance", [0.0, 0.5])
def test_hdbscan_calls_a_single_even_group_noise(distance):
    equal = distance * (1 - np.eye(8))
    assert hdbscan(equal, min_cluster_size=2, noise="keep").tolist() == [-1] * 8
    assert hdbscan(equal, min_cluster_size=2, noise="together").tolist() == [0] * 8


# Density and linkage methods against scikit-learn and scipy


@settings(max_examples=4)
@given(seed=seeds, n=st.integers(7, 20))
def test_vector_methods_find_what_scikit_learn_finds(seed, n):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 2)) + 3 * rng.integers(0, 3, size=(n, 1))
    cluster = sklearn.cluster
    expected = {
        "dbscan": (dbscan(vectors, eps=0.7, noise="keep"), cluster.DBSCAN(eps=0.7, min_samples=2)),
        "optics": (optics(vectors, noise="keep"), cluster.OPTICS(min_samples=2)),
        "mean_shift": (mean_shift(vectors), cluster.MeanShift()),
        "kmeans": (kmeans(vectors, n_clusters=4, seed=3), cluster.KMeans(4, n_init=10, random_state=3)),
    }
    for name, (ours, theirs) in expected.items():
        assert np.array_equal(ours, renumber(theirs.fit(vectors).labels_)), name


@settings(max_examples=25)
@given(seed=seeds, n=st.integers(5, 30))
def test_matrix_methods_find_what_scikit_learn_and_scipy_find(seed, n):
    distances = between(np.random.default_rng(seed).normal(size=(n, 3)))
    similar = sklearn.cluster.AffinityPropagation(affinity="precomputed", random_state=2)
    dense = sklearn.cluster.HDBSCAN(min_cluster_size=3, metric="precomputed", copy=True)
    assert np.array_equal(hdbscan(distances, min_cluster_size=3, noise="keep"), renumber(dense.fit(distances).labels_))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exemplars = renumber(np.maximum(similar.fit(-distances).labels_, 0))
    assert np.array_equal(affinity_propagation(-distances, seed=2), exemplars)
    for linkage in ("average", "complete", "single"):
        tree = hierarchy.linkage(squareform(distances, checks=False), linkage)
        cut = renumber(hierarchy.fcluster(tree, 1.2, "distance"))
        assert np.array_equal(agglomerative(distances, threshold=1.2, linkage=linkage), cut)
    halves = hierarchy.fcluster(hierarchy.linkage(squareform(distances, checks=False), "complete"), 2, "maxclust")
    assert np.array_equal(bipartition(distances), renumber(halves))


def test_kmeans_gives_at_most_one_cluster_a_distinct_client():
    assert kmeans([[0.0], [1.0]], n_clusters=3).tolist() == [0, 1]
    assert kmeans([[0.0], [1.0], [0.0], [1.0]], n_clusters=3).tolist() == [0, 1, 0, 1]


def test_mean_shift_does_not_depend_on_the_origin():
    rng = np.random.default_rng(0)
    vectors = 1e-2 * rng.normal(size=(3, 20))[TRUTH] + 1e-4 * rng.uniform(size=(24, 20))
    assert np.array_equal(mean_shift(vectors), TRUTH)
    assert np.array_equal(mean_shift(vectors + 1e4), TRUTH)


def test_optics_takes_pairs_of_equal_clients_for_clusters():
    pairs = np.repeat([[0.0, 0.0], [5.0, 5.0], [9.0, 0.0]], 2, axis=0)
    assert optics(pairs).tolist() == [0, 0, 1, 1, 2, 2]


def test_mean_shift_joins_only_equal_clients_below_seven():
    assert mean_shift([[0.0, 1.0], [0.1, 1.0], [0.0, 1.0], [5.0, 1.0]]).tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_affinity_propagation_keeps_equally_similar_clients_together(n):
    similarities = np.full((n, n), 0.3) + 0.7 * np.eye(n)
    assert affinity_propagation(similarities).tolist() == [0] * n


def test_affinity_propagation_keeps_clients_without_an_exemplar_together():
    distances = between([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [2.0, 1.0]])
    with pytest.warns(sklearn.exceptions.ConvergenceWarning):
        stuck = sklearn.cluster.AffinityPropagation(affinity="precomputed", random_state=0).fit(-distances).labels_
    assert stuck.tolist() == [-1] * 5
    assert affinity_propagation(-distances).tolist() == [0] * 5


def test_agglomerative_merges_strictly_below_its_threshold():
    distances = between([[0.0], [1.0], [4.0]])
    assert agglomerative(distances, threshold=1.0).tolist() == [0, 1, 2]
    assert agglomerative(distances, threshold=1.01).tolist() == [0, 0, 1]
    assert agglomerative(distances, threshold=3.5).tolist() == [0, 0, 1]
    assert agglomerative(distances, threshold=3.51).tolist() == [0, 0, 0]
    assert agglomerative(distances, threshold=3.5, linkage="single").tolist() == [0, 0, 0]


def test_the_published_sign_errors_are_reproduced_on_request():
    distances = between(three_groups()) / 50
    similarities = 1 - distances
    authors = sklearn.cluster.AffinityPropagation(affinity="precomputed", random_state=0).fit(distances)
    wrong = affinity_propagation(distances, as_published=True)
    assert np.array_equal(wrong, renumber(authors.labels_))
    assert not np.array_equal(wrong, affinity_propagation(similarities))
    authors = sklearn.cluster.AgglomerativeClustering(
        n_clusters=None, distance_threshold=0.45, metric="precomputed", linkage="average"
    ).fit(similarities)
    wrong = agglomerative(similarities, threshold=0.45, as_published=True)
    assert np.array_equal(wrong, renumber(authors.labels_))
    assert not np.array_equal(wrong, agglomerative(distances, threshold=0.45))


def test_as_published_takes_negative_cosines_as_the_authors_do():
    cosines = [[1.0, -0.9, 0.8], [-0.9, 1.0, -0.5], [0.8, -0.5, 1.0]]
    assert agglomerative(cosines, threshold=0.05, as_published=True).tolist() == [0, 0, 1]


# Splits


def test_a_bipartition_puts_the_first_client_on_side_zero():
    assert bipartition(between([[9.0], [0.0], [8.0], [1.0]])).tolist() == [0, 1, 0, 1]
    assert bipartition([[0.0]]).tolist() == [0]
    assert bipartition([[0.0, 1.0], [1.0, 0.0]]).tolist() == [0, 1]
    assert bipartition(np.zeros((2, 2))).tolist() == [0, 1]


def test_a_bipartition_uses_complete_linkage():
    # Average linkage would cut off the last client alone.
    line = between([[0.0], [1.0], [2.1], [3.3], [4.6]])
    assert bipartition(line).tolist() == [0, 0, 1, 1, 1]


def test_split_returns_federation_wide_client_ids():
    members = np.array([5, 6, 7, 8])
    left, right = split_cluster(np.zeros((9, 9)), members, lambda d: np.array([0, 0, 1, 1]))
    assert (left.tolist(), right.tolist()) == ([5, 6], [7, 8])


def test_splits_of_splits_return_federation_wide_client_ids():
    # Groups {0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7} on a line: three splits must recover them by the clients' own ids.
    distances = between(np.array([[0.0], [10.0], [100.0], [130.0]])[np.arange(10) % 4])
    low, high = split_cluster(distances, np.arange(10), bipartition)
    assert (low.tolist(), high.tolist()) == ([0, 1, 4, 5, 8, 9], [2, 3, 6, 7])
    assert [half.tolist() for half in split_cluster(distances, low, bipartition)] == [[0, 4, 8], [1, 5, 9]]
    assert [half.tolist() for half in split_cluster(distances, high, bipartition)] == [[2, 6], [3, 7]]


def test_a_split_of_one_client_leaves_the_other_half_empty():
    left, right = split_cluster(np.zeros((4, 4)), [2], bipartition)
    assert (left.tolist(), right.tolist()) == ([2], [])


@pytest.mark.parametrize(
    ("members", "side", "message"),
    [
        ([1, 9], [0, 1], "client 9 is repeated or not in 0..3"),
        ([-1, 2], [0, 1], "client -1 is repeated or not in 0..3"),
        ([1, 1], [0, 1], "client 1 is repeated"),
        ([], [], "members are"),
        ([[1, 2]], [0, 1], "members are"),
        ([True, False], [0, 1], "members are"),
        ([1, 2], [0, 2], r"gave \[0, 2\] for members \[1, 2\]"),
        ([1, 2], [0], r"gave \[0\] for members \[1, 2\]"),
    ],
)
def test_a_split_refuses_to_lose_clients(members, side, message):
    with pytest.raises(ValueError, match=message):
        split_cluster(np.zeros((4, 4)), members, lambda d: np.array(side))


# Distances and similarities are never confused

ON_DISTANCES = {
    "hdbscan": lambda d: hdbscan(d, min_cluster_size=2),
    "agglomerative": lambda d: agglomerative(d, threshold=0.5),
    "bipartition": bipartition,
    "split_cluster": lambda d: split_cluster(d, [0, 1], bipartition),
    "affinity_propagation as published": lambda d: affinity_propagation(d, as_published=True),
}
ON_SIMILARITIES = {
    "affinity_propagation": affinity_propagation,
    "agglomerative as published": lambda s: agglomerative(s, threshold=0.5, as_published=True),
}


@pytest.mark.parametrize("method", ON_DISTANCES.values(), ids=ON_DISTANCES)
def test_similarities_are_refused_where_distances_belong(method):
    for similarities in (to_similarity(between(three_groups())), -between(three_groups())):
        with pytest.raises(ValueError, match=r"client.* is this a similarity matrix"):
            method(similarities)


@pytest.mark.parametrize("method", ON_SIMILARITIES.values(), ids=ON_SIMILARITIES)
def test_distances_are_refused_where_similarities_belong(method):
    with pytest.raises(ValueError, match=r"client 0 is more similar to 1 .* is this a distance matrix"):
        method(between(three_groups()))


@pytest.mark.parametrize("method", [*ON_DISTANCES.values(), *ON_SIMILARITIES.values()])
def test_matrices_must_be_square_symmetric_and_finite(method):
    with pytest.raises(ValueError, match="not symmetric"):
        method([[0.0, 1.0], [2.0, 0.0]])
    with pytest.raises(ValueError, match="between clients 0 and 1 are inf"):
        method([[0.0, np.inf], [np.inf, 0.0]])
    with pytest.raises(ValueError, match="shape"):
        method([0.0, 1.0])


@pytest.mark.parametrize("method", [METHODS[name] for name in ("dbscan", "optics", "kmeans", "mean_shift")])
def test_vectors_must_be_finite_and_of_one_length(method):
    with pytest.raises(ValueError, match="client 1 holds nan"):
        method([[0.0, 1.0], [np.nan, 0.0]])
    with pytest.raises(ValueError, match="client 1 has shape"):
        method([[0.0, 1.0], [1.0]])
    with pytest.raises(ValueError, match="no vectors"):
        method([])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dbscan([[0.0]], eps=0.0), "eps is 0.0"),
        (lambda: dbscan([[0.0]], eps=np.nan), "eps is nan"),
        (lambda: dbscan([[0.0]], eps=np.inf), "eps is inf"),
        (lambda: dbscan([[0.0]], eps=1.0, min_samples=0), "min_samples is 0, .* at least 1"),
        (lambda: optics([[0.0]], min_samples=1), "min_samples is 1, .* at least 2"),
        (lambda: optics([[0.0]], min_samples=2.5), "min_samples is 2.5, expected a whole number"),
        (lambda: kmeans([[0.0]], n_clusters=0), "n_clusters is 0"),
        (lambda: hdbscan([[0.0]], min_cluster_size=1), "min_cluster_size is 1, .* at least 2"),
        (lambda: agglomerative([[0.0]], threshold=-1.0), "threshold is -1.0"),
        (lambda: agglomerative([[0.0]], threshold=np.nan), "threshold is nan"),
        (lambda: agglomerative([[0.0]], threshold=np.inf), "threshold is inf"),
        (lambda: agglomerative([[0.0]], threshold=1.0, linkage="ward"), "linkage is 'ward'"),
    ],
)
def test_options_outside_their_range_are_refused_by_name_and_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
