"""Aggregation: means, robust rules and mixtures of models."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from cflib import aggregation
from cflib.aggregation import krum, krum_scores, mean, median, mix, trimmed_mean, trimmed_shares, weighted_mean

SHAPES = [(2, 3), (4,), (), (0,)]


def make_models(n, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [[np.asarray(rng.normal(size=shape), dtype=dtype) for shape in SHAPES] for _ in range(n)]


def stacked(models, position):
    return np.stack([model[position] for model in models])


rules = {
    "mean": mean,
    "weighted_mean": lambda models: weighted_mean(models, np.ones(len(models))),
    "median": median,
    "trimmed_mean": lambda models: trimmed_mean(models, share=0.2),
    "krum": lambda models: krum(models, attackers=1),
    "mix": lambda models: mix(models, np.full(len(models), 1 / len(models))),
}
every_rule = pytest.mark.parametrize("rule", rules.values(), ids=rules.keys())


# Invariants


@every_rule
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_result_keeps_shapes_and_type(rule, dtype):
    models = make_models(5, dtype=dtype)
    result = rule(models)
    assert [array.shape for array in result] == SHAPES
    assert {array.dtype for array in result} == {np.dtype(dtype)}


@every_rule
@settings(max_examples=30)
@given(array=hnp.arrays(np.float32, (3,), elements=st.floats(-1e6, 1e6, width=32)), n=st.integers(5, 12))
def test_equal_models_aggregate_to_themselves_exactly(rule, array, n):
    assert np.array_equal(rule([[array]] * n)[0], array)


@every_rule
@settings(max_examples=30)
@given(values=hnp.arrays(np.float64, (7, 4), elements=st.floats(-1e3, 1e3)))
def test_result_lies_between_the_smallest_and_the_largest_client(rule, values):
    (result,) = rule([[row] for row in values])
    assert (result >= values.min(axis=0) - 1e-9).all()
    assert (result <= values.max(axis=0) + 1e-9).all()


@pytest.mark.parametrize("rule", [mean, median, rules["trimmed_mean"], rules["krum"]])
def test_renaming_clients_does_not_change_the_aggregate(rule):
    models = make_models(9)
    order = np.random.default_rng(1).permutation(9)
    for array, renamed in zip(rule(models), rule([models[i] for i in order]), strict=True):
        np.testing.assert_allclose(array, renamed, rtol=1e-6)


@settings(max_examples=30)
@given(scale=st.floats(1e-6, 1e6))
def test_weights_may_be_scaled_without_effect(scale):
    models, weights = make_models(4), np.array([1.0, 2.0, 3.0, 4.0])
    for array, scaled in zip(weighted_mean(models, weights), weighted_mean(models, scale * weights), strict=True):
        np.testing.assert_allclose(array, scaled, rtol=1e-6)


def test_the_same_input_gives_the_same_bits():
    models, weights = make_models(50), np.random.default_rng(2).random(50)
    first, second = weighted_mean(models, weights), weighted_mean(models, weights)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_inputs_are_not_changed():
    models = make_models(6)
    before = [[array.copy() for array in model] for model in models]
    for rule in rules.values():
        rule(models)
    for model, old in zip(models, before, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(model, old, strict=True))


# Hand-computed


def test_mean_of_float32_is_accumulated_in_float64():
    # In float32 the ones would vanish beside 2 ** 25, whatever their number.
    values = [2.0**25, 1.0, 1.0, 1.0, 1.0, -(2.0**25), 0.0, 0.0]
    assert mean([[np.array([x], np.float32)] for x in values])[0][0] == 0.5


def test_weighted_mean_weighs_by_sample_counts():
    models = [[np.array([0.0, 4.0])], [np.array([8.0, 0.0])]]
    assert weighted_mean(models, [600, 200])[0].tolist() == [2.0, 3.0]


def test_a_client_of_weight_zero_does_not_count():
    models = make_models(3)
    for array, expected in zip(weighted_mean(models, [1, 0, 1]), mean([models[0], models[2]]), strict=True):
        assert np.array_equal(array, expected)


def test_median_of_an_even_number_is_the_mean_of_the_middle_two():
    assert median([[np.array([x])] for x in (9.0, 1.0, 2.0, 100.0)])[0].tolist() == [5.5]


def test_median_ignores_a_minority_of_attackers_of_any_size():
    honest, attack = [np.array([1.0, 2.0])], [np.array([1e30, -1e30])]
    assert median([honest] * 6 + [attack] * 4)[0].tolist() == [1.0, 2.0]


def test_trimming_cuts_the_share_from_each_end():
    models = [[np.array([float(x)])] for x in range(10)]
    models[9] = [np.array([1e9])]
    assert trimmed_mean(models, share=0.1)[0].tolist() == [4.5]


def test_trimming_a_share_that_is_not_exact_in_binary_cuts_the_intended_number():
    # 0.29 * 100 is 28.999999999999996; 29 values must go from each end.
    values = np.arange(100.0) ** 2
    expected = values[29:71].mean()
    assert trimmed_mean([[np.array([x])] for x in values], share=0.29)[0][0] == pytest.approx(expected, rel=1e-12)


def test_trimming_never_cuts_every_client():
    assert trimmed_mean([[np.array([1.0])], [np.array([3.0])]], share=np.nextafter(0.5, 0))[0].tolist() == [2.0]


def test_krum_returns_a_model_of_the_crowd_itself():
    models = make_models(9)
    for array in models[4]:
        array += 100
    chosen = krum(models, attackers=2)
    assert any(all(a is b for a, b in zip(chosen, model, strict=True)) for model in models[:4] + models[5:])


def test_krum_of_equal_scores_takes_the_first_client():
    models = [[np.array([1.0])] for _ in range(5)]
    assert krum(models, attackers=1)[0] is models[0][0]


@pytest.mark.parametrize("position", [0, 2])
def test_mixing_by_a_single_share_returns_the_model_itself(position):
    models = make_models(3)
    row = np.zeros(3)
    row[position] = 1.0
    assert all(a is b for a, b in zip(mix(models, row), models[position], strict=True))


def test_mixing_does_not_read_models_without_a_share():
    models = [[np.array([1.0])], [np.array([np.nan])], [np.array([3.0])]]
    assert mix(models, [0.5, 0.0, 0.5])[0].tolist() == [2.0]


def test_integer_arrays_become_real_averages():
    result = mean([[np.array([1, 2])], [np.array([2, 2])]])
    assert result[0].tolist() == [1.5, 2.0]


# Oracles


def slow_krum(models, attackers):
    flat = [np.concatenate([np.ravel(a).astype(float) for a in model]) for model in models]
    scores = []
    for i, own in enumerate(flat):
        others = sorted(float(((own - other) ** 2).sum()) for j, other in enumerate(flat) if j != i)
        scores.append(sum(others[: len(flat) - attackers - 2]))
    return int(np.argmin(scores))


@pytest.mark.parametrize("seed", range(8))
def test_krum_agrees_with_the_definition(seed):
    models = make_models(11, seed)
    assert krum(models, attackers=seed % 5)[0] is models[slow_krum(models, seed % 5)][0]


def test_krum_chooses_the_lowest_score_and_outliers_score_highest():
    models = [[np.array([x, 1.0])] for x in (1.0, 1.1, 1.2, 0.9, 30.0)]
    scores = krum_scores(models, attackers=1)
    assert int(np.argmax(scores)) == 4
    assert krum(models, attackers=1)[0] is models[int(np.argmin(scores))][0]


def test_the_shares_that_trimming_cuts_add_up_and_name_the_extremes():
    models = make_models(10)
    shares = trimmed_shares(models, share=0.2)
    assert shares.sum() == pytest.approx(4)  # two values from each end of every weight
    models[3] = [array + 100 for array in models[3]]
    assert trimmed_shares(models, share=0.2)[3] == 1


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_rules_agree_with_numpy_and_scipy(n):
    models = make_models(n, dtype=np.float64)
    weights = np.arange(1.0, n + 1)
    for position in range(3):
        values = stacked(models, position)
        np.testing.assert_allclose(mean(models)[position], values.mean(axis=0))
        np.testing.assert_allclose(median(models)[position], np.median(values, axis=0))
        expected = np.average(values, axis=0, weights=weights)
        np.testing.assert_allclose(weighted_mean(models, weights)[position], expected)
        np.testing.assert_allclose(mix(models, weights / weights.sum())[position], expected)
        expected = stats.trim_mean(values, 0.25, axis=0)
        np.testing.assert_allclose(trimmed_mean(models, share=0.25)[position], expected)


@pytest.mark.parametrize("rule", [mean, median])
def test_blocks_join_without_a_seam(rule, monkeypatch):
    models = [[np.random.default_rng(i).normal(size=(7, 11))] for i in range(5)]
    whole = rule(models)[0]
    monkeypatch.setattr(aggregation, "BLOCK", 10)
    monkeypatch.setattr(aggregation, "SORTED_BLOCK", 10)
    assert np.array_equal(rule(models)[0], whole)


@every_rule
def test_transposed_arrays_are_read_in_their_logical_order(rule):
    models = [[np.random.default_rng(i).normal(size=(3, 4))] for i in range(5)]
    turned = [[np.asfortranarray(model[0])] for model in models]
    np.testing.assert_allclose(rule(turned)[0], rule(models)[0])


@every_rule
def test_extra_memory_stays_well_below_the_input(rule):
    models = [[np.full(700_000, i, np.float32), np.full(300_000, i, np.float32)] for i in range(20)]
    tracemalloc.start()
    rule(models)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.5 * sum(array.nbytes for model in models for array in model)


# Errors


@every_rule
def test_bad_models_are_named(rule):
    models = make_models(5)
    models[3][1][2] = np.nan
    with pytest.raises(ValueError, match="3, array 1 holds nan"):
        rule(models)
    models = make_models(5)
    models[2] = models[2][:2]
    with pytest.raises(ValueError, match="2 has shapes"):
        rule(models)


def test_a_bad_model_that_is_mixed_is_named_by_its_place_in_the_list():
    models = make_models(4)
    models[2][0][0, 0] = np.inf
    with pytest.raises(ValueError, match="model 2, array 0 holds inf"):
        mix(models, [0, 0, 1, 0])


def test_no_models_are_refused():
    for name, rule in rules.items():
        if name != "mix":
            with pytest.raises(ValueError, match="no models were given"):
                rule([])
    with pytest.raises(ValueError, match="at least one model must count"):
        mix([], [])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], r"shape \(2,\), there are 3 models"),
        ([[1, 2, 3]], r"shape \(1, 3\)"),
        ([1, -2, 3], r"model 1 has weight -2.0"),
        ([1, 2, np.nan], r"model 2 has weight nan"),
        ([0, 0, 0], r"all 3 weights are 0"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    models = make_models(3)
    for rule in (weighted_mean, mix):
        with pytest.raises(ValueError, match=message):
            rule(models, weights)


def test_a_row_that_is_not_convex_is_refused():
    with pytest.raises(ValueError, match=r"add up to 1.5, not 1"):
        mix(make_models(2), [1.0, 0.5])


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0, float("nan")])
def test_trimming_half_or_more_is_refused(share):
    with pytest.raises(ValueError, match=r"below 0\.5"):
        trimmed_mean(make_models(4), share=share)


@pytest.mark.parametrize(("n", "attackers"), [(2, 0), (4, 1), (6, 2), (5, -1)])
def test_krum_says_how_many_models_it_needs(n, attackers):
    with pytest.raises(ValueError, match=f"needs at least {2 * max(attackers, 0) + 3} models"):
        krum(make_models(n), attackers=attackers)


def test_edge_cases_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models = [[np.zeros(3, np.float32)]] * 3
        for rule in (mean, median, rules["trimmed_mean"], lambda m: krum(m, attackers=0)):
            assert rule(models)[0].tolist() == [0, 0, 0]
        assert mean(models[:1])[0].tolist() == [0, 0, 0]
