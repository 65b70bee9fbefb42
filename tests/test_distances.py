"""Distances and similarities: exact small cases, slow references, invariants, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist

from cflib import arrays as guards
from cflib import distances as d

SHAPES = [(3, 4), (4,), (4, 2), (2,)]


def random_models(n: int, seed: int = 0, *, spread: float = 1.0) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    centre = [rng.normal(size=shape) for shape in SHAPES]
    return [[c + spread * rng.normal(size=c.shape) for c in centre] for _ in range(n)]


updates = arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(-1e3, 1e3, width=32))


def test_trusted_distance_is_the_product_of_relative_changes():
    a = [np.array([[3.0, 4.0]]), np.array([2.0])]
    b = [np.array([[3.0, 3.0]]), np.array([1.0])]
    assert d.trusted_distance(a, b) == pytest.approx((1 + 1 / 5) * (1 + 1 / 2) - 1, rel=1e-7)
    assert d.trusted_distance(b, a) == pytest.approx((1 + 1 / np.sqrt(18)) * (1 + 1) - 1, rel=1e-7)


def test_trusted_distances_take_the_lower_client_as_reference_and_mirror_it():
    models = random_models(5)
    matrix = d.trusted_distances(models)
    for i in range(5):
        for j in range(5):
            expected = d.trusted_distance(models[min(i, j)], models[max(i, j)]) if i != j else 0
            assert matrix[i, j] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6, 1e-10])
def test_vectorised_trusted_distances_agree_with_the_readable_form_for_nearly_equal_models(spread):
    models = random_models(6, spread=spread)
    matrix = d.trusted_distances(models)
    slow = [[d.trusted_distance(models[min(i, j)], models[max(i, j)]) for j in range(6)] for i in range(6)]
    np.testing.assert_allclose(matrix, np.array(slow) * (1 - np.eye(6)), rtol=1e-6)


def test_two_tight_groups_far_apart_keep_their_digits():
    near, far = random_models(3, spread=1e-9), random_models(3, seed=1, spread=1e-9)
    models = near + [[1e3 + array for array in model] for model in far]
    matrix = d.trusted_distances(models)
    for i, j in [(0, 1), (3, 5), (0, 4)]:
        assert matrix[i, j] == pytest.approx(d.trusted_distance(models[i], models[j]), rel=1e-6)


def test_float32_models_are_measured_in_float64():
    models = [[array.astype(np.float32) for array in model] for model in random_models(4, spread=1e-4)]
    matrix = d.trusted_distances(models)
    assert matrix[1, 2] == pytest.approx(d.trusted_distance(models[1], models[2]), rel=1e-6)


def test_137_arrays_that_each_double_do_not_overflow():
    a = [np.ones(3)] * 137
    b = [-np.ones(3)] * 137
    assert d.trusted_distance(a, b) == pytest.approx(3.0**137, rel=1e-5)
    assert np.isfinite(d.trusted_distances([a, b])).all()


def test_arrays_that_are_zero_in_the_reference_give_a_finite_distance_and_zero_if_both_are():
    fresh, trained = [np.zeros(3)], [np.full(3, 0.1)]
    assert d.trusted_distance(fresh, fresh) == 0
    assert d.trusted_distance(fresh, trained) == pytest.approx(np.sqrt(0.03) / 1e-8, rel=1e-6)
    many = d.trusted_distances([fresh * 137, trained * 137])
    assert np.isfinite(many).all()
    assert many[0, 1] > 1e300


def test_kernels_only_ignores_one_dimensional_arrays():
    models = random_models(3)
    moved = [[array + 5 if array.ndim == 1 else array for array in model] for model in models]
    np.testing.assert_allclose(
        d.trusted_distances(models, arrays="kernels"), d.trusted_distances(moved, arrays="kernels")
    )
    assert not np.allclose(d.trusted_distances(models), d.trusted_distances(moved))


@pytest.mark.parametrize("spread", [1.0, 1e-7])
def test_cross_trusted_distances_use_the_clients_norm(spread):
    clients, communities = random_models(4, spread=spread), random_models(2, spread=spread)
    matrix = d.cross_trusted_distances(clients, communities)
    assert matrix.shape == (4, 2)
    for i in range(4):
        for j in range(2):
            assert matrix[i, j] == pytest.approx(d.trusted_distance(clients[i], communities[j]), rel=1e-6, abs=1e-12)


@given(updates)
def test_cosine_distances_are_symmetric_within_0_and_2_and_zero_on_the_diagonal(vectors):
    matrix = d.cosine_distances(vectors)
    guards.check_distances(matrix)
    assert matrix.max() <= 2


@given(updates, st.floats(0.1, 10))
def test_scaling_updates_does_not_change_their_cosines(vectors, factor):
    np.testing.assert_allclose(d.cosine_similarities(vectors), d.cosine_similarities(vectors * factor), atol=1e-9)


def test_cosines_agree_with_scipy_and_lists_of_vectors_with_arrays():
    vectors = np.random.default_rng(0).normal(size=(7, 70_000)).astype(np.float32)
    expected = cdist(vectors.astype(float), vectors.astype(float), "cosine")
    np.testing.assert_allclose(d.cosine_distances(vectors), expected, atol=1e-12)
    np.testing.assert_array_equal(d.cosine_distances(list(vectors)), d.cosine_distances(vectors))


def test_a_zero_update_is_orthogonal_to_all_others_and_equal_to_itself():
    assert d.cosine_similarities(np.array([[0.0, 0.0], [1.0, 0.0]])).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, np.inf])
def test_minkowski_distances_agree_with_scipy(p):
    vectors = np.random.default_rng(1).normal(size=(6, 11))
    kind = {"metric": "chebyshev"} if np.isinf(p) else {"metric": "minkowski", "p": p}
    np.testing.assert_allclose(d.minkowski_distances(vectors, p=p), cdist(vectors, vectors, **kind), atol=1e-12)


@given(updates, st.randoms(use_true_random=False))
@settings(max_examples=50)
@pytest.mark.parametrize("function", [d.cosine_distances, d.minkowski_distances, d.shifted_cosine])
def test_renaming_clients_permutes_the_matrix(function, vectors, random):
    order = list(range(len(vectors)))
    random.shuffle(order)
    np.testing.assert_allclose(function(vectors[order]), function(vectors)[np.ix_(order, order)], atol=1e-6)


def test_shifted_cosine_has_two_on_the_diagonal():
    matrix = d.shifted_cosine(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]))
    assert matrix.tolist() == [[2, 0, 1], [0, 2, 1], [1, 1, 2]]


def test_updating_reported_rows_equals_computing_the_whole_matrix():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(8, 50))
    before = d.shifted_cosine(vectors)
    vectors[[1, 5]] = rng.normal(size=(2, 50))
    before[1] = before[:, 1] = np.nan  # a client that reports for the first time
    np.testing.assert_allclose(d.update_shifted_cosine(before, vectors, [1, 5]), d.shifted_cosine(vectors), atol=1e-12)
    np.testing.assert_array_equal(
        d.update_shifted_cosine(d.shifted_cosine(vectors), vectors, []), d.shifted_cosine(vectors)
    )


def test_to_similarity_follows_equation_three():
    distances = np.array([[0, 1, 3], [1, 0, 2], [3, 2, 0]])
    np.testing.assert_allclose(d.to_similarity(distances), [[1, 1, 0], [1, 1, 0.125], [0, 0.125, 1]])


@pytest.mark.parametrize("n", [1, 2, 4])
def test_equal_distances_give_similarities_of_one(n):
    assert (d.to_similarity(np.ones((n, n)) - np.eye(n)) == 1).all()


@given(updates, st.floats(1e-3, 1e3), st.floats(0, 1e3))
def test_similarities_do_not_depend_on_the_scale_or_offset_of_distances(vectors, scale, offset):
    distances = d.minkowski_distances(vectors)
    moved = (distances * scale + offset) * (1 - np.eye(len(distances)))
    np.testing.assert_allclose(d.to_similarity(moved), d.to_similarity(distances), atol=1e-4)


def test_temperature_is_one_when_all_are_opposed_and_zero_when_all_agree_or_one_is_alone():
    opposed = 2 * (1 - np.eye(15))
    assert d.clustering_temperature(opposed) == pytest.approx(1)
    assert d.clustering_temperature(opposed, p=1) == pytest.approx(1)
    assert d.clustering_temperature(np.zeros((5, 5))) == 0
    assert d.clustering_temperature([[0.0]]) == 0


@given(updates, st.sampled_from([1, 2, 3]))
def test_temperature_is_the_norm_over_its_bound_and_within_0_and_1(vectors, p):
    distances = d.cosine_distances(vectors)
    n = len(distances)
    temperature = d.clustering_temperature(distances, p=p)
    assert 0 <= temperature <= 1 + 1e-12
    if n > 1:
        assert temperature == pytest.approx((distances**p).sum() ** (1 / p) / (n * (n - 1) * 2**p) ** (1 / p))


def test_nan_weights_are_refused_by_client_and_array():
    models = random_models(3)
    models[2][1][0] = np.nan
    with pytest.raises(ValueError, match="client 2, array 1 holds nan"):
        d.trusted_distances(models)
    with pytest.raises(ValueError, match="client 1 holds inf"):
        d.cosine_distances(np.array([[1.0], [np.inf]]))


def test_large_but_finite_weights_are_accepted():
    assert np.isfinite(d.cosine_distances(np.full((2, 4), 1e150))).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: d.trusted_distances([]), "no models"),
        (lambda: d.trusted_distances([[]]), "no arrays"),
        (lambda: d.trusted_distances([[np.ones(2)], [np.ones(3)]]), "client 1 has shapes"),
        (lambda: d.trusted_distances([[np.ones(2)]] * 2, arrays="biases"), "arrays is 'biases'"),
        (lambda: d.trusted_distances([[np.ones(2)]] * 2, arrays="kernels"), "no array of two"),
        (lambda: d.cross_trusted_distances([[np.ones(2)]], [[np.ones(3)]]), "different shapes"),
        (lambda: d.cosine_distances(np.ones(3)), "have shape"),
        (lambda: d.cosine_distances([]), "no vectors"),
        (lambda: d.cosine_distances([np.ones(2), np.ones(3)]), "client 1 has shape"),
        (lambda: d.minkowski_distances(np.ones((2, 2)), p=0.5), "p is 0.5"),
        (lambda: d.clustering_temperature([[0, 3], [3, 0]]), "is 3.0 > 2"),
        (lambda: d.clustering_temperature([[0, 1], [1, 0]], p=np.inf), "p is inf"),
        (lambda: d.to_similarity([[0, 1], [1, 0]], power=0), "power is 0"),
        (lambda: d.to_similarity([[1, 0.5], [0.5, 1]]), "is this a similarity matrix"),
        (lambda: d.to_similarity([[0, -1], [-1, 0]]), "is this a similarity matrix"),
        (lambda: d.to_similarity([[0, 1], [2, 0]]), "not symmetric"),
        (lambda: d.to_similarity([[0, 1, 1]]), "expected \\(clients, clients\\)"),
        (lambda: d.to_similarity([[0, np.nan], [np.nan, 0]]), "clients 0 and 1 are nan"),
        (lambda: d.update_shifted_cosine(np.ones((2, 2)), np.ones((3, 2)), [0]), "updates of 3 clients"),
        (lambda: d.update_shifted_cosine(np.ones((2, 2)), np.ones((2, 2)), [2]), "not all among 0..1"),
    ],
)
def test_bad_input_is_refused_with_its_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_cosine_distances_of_models_are_those_of_their_flat_vectors():
    rng = np.random.default_rng(0)
    models = [[rng.normal(size=(2, 3)), rng.normal(size=3)] for _ in range(5)]
    flat = np.stack([np.concatenate([array.ravel() for array in model]) for model in models])
    np.testing.assert_allclose(d.model_cosine_distances(models), d.cosine_distances(flat), atol=1e-12)
    cross = d.cross_model_cosine_distances(models[:3], models[3:])
    np.testing.assert_allclose(cross, d.cosine_distances(flat)[:3, 3:], atol=1e-12)
