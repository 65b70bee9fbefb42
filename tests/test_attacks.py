"""Attacks: what malicious clients send."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from cflib.aggregation import mean, weighted_mean
from cflib.attacks import (
    alie,
    force_aggregate,
    force_mean,
    gaussian_noise,
    ipm,
    label_flip,
    minus_grad,
    random_weights,
    zero_update,
)

vectors = hnp.arrays(np.float32, st.integers(1, 20), elements=st.floats(-100, 100, width=32))


def rng(seed=0):
    return np.random.default_rng(seed)


solo = {
    "minus_grad": minus_grad,
    "zero_update": zero_update,
    "gaussian_noise": lambda update: gaussian_noise(update, scale=0.1, rng=rng()),
    "random_weights": lambda update: random_weights(update, rng=rng()),
}
every_solo = pytest.mark.parametrize("attack", solo.values(), ids=solo.keys())
known = {
    "alie": lambda updates: alie(updates, z=1.0),
    "ipm": ipm,
    "force_aggregate": lambda updates: force_aggregate(updates[0], updates, np.ones(len(updates) + 1)),
}
every_known = pytest.mark.parametrize("attack", known.values(), ids=known.keys())


# Invariants


@every_solo
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_attacks_keep_shape_and_type_and_leave_the_true_update_alone(attack, dtype):
    update = rng(1).normal(size=7).astype(dtype)
    before = update.copy()
    sent = attack(update)
    assert (sent.shape, sent.dtype) == ((7,), np.dtype(dtype))
    assert np.array_equal(update, before)
    assert not np.array_equal(sent, update)


@every_known
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_informed_attacks_keep_shape_and_type(attack, dtype):
    updates = rng(1).normal(size=(5, 7)).astype(dtype)
    before = updates.copy()
    sent = attack(updates)
    assert (sent.shape, sent.dtype) == ((7,), np.dtype(dtype))
    assert np.array_equal(updates, before)
    np.testing.assert_allclose(attack(list(updates)), sent)


@given(update=vectors)
def test_two_minus_grads_cancel(update):
    assert np.array_equal(minus_grad(minus_grad(update)), update)
    assert (zero_update(update) == 0).all()


@given(update=vectors, seed=st.integers(0, 1000))
def test_random_weights_are_as_long_as_the_update(update, seed):
    sent = random_weights(update, rng=rng(seed))
    lengths = [np.linalg.norm(vector.astype(np.float64)) for vector in (sent, update)]
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-5, abs=1e-30)


@settings(max_examples=50)
@given(
    updates=hnp.arrays(np.float64, (4, 3), elements=st.floats(-10, 10)),
    target=hnp.arrays(np.float64, 3, elements=st.floats(-10, 10)),
    weights=hnp.arrays(np.float64, 5, elements=st.floats(0.1, 10)),
    attacker=st.integers(-5, 4),
)
def test_the_forced_weighted_mean_is_the_target(updates, target, weights, attacker):
    sent = force_aggregate(target, updates, weights, attacker=attacker)
    everyone = list(updates)
    everyone.insert(attacker % 5, sent)
    (result,) = weighted_mean([[update] for update in everyone], weights)
    np.testing.assert_allclose(result, target, atol=1e-9)


@given(labels=st.lists(st.integers(0, 9), min_size=1))
def test_flipping_labels_twice_restores_them(labels):
    assert label_flip(label_flip(labels)).tolist() == labels


def test_equal_generators_give_equal_noise():
    update = np.ones(5)
    for attack in (lambda g: gaussian_noise(update, scale=2.0, rng=g), lambda g: random_weights(update, rng=g)):
        assert np.array_equal(attack(rng(4)), attack(rng(4)))
        assert not np.array_equal(attack(rng(4)), attack(rng(5)))


# Hand-computed


def test_equation_3_worked_by_hand():
    # Shares 1/4, 1/4, 1/2: (10 - 0.25 * 1 - 0.25 * 3) / 0.5 = 18.
    assert force_aggregate([10.0], [np.array([1.0]), np.array([3.0])], [100, 100, 200]).tolist() == [18.0]
    assert force_aggregate([10.0], np.array([[1.0], [3.0]]), [2, 1, 1], attacker=0).tolist() == [18.0]


def test_alie_shifts_the_mean_by_z_standard_deviations_of_each_weight():
    updates = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
    std = np.sqrt(8 / 3)
    np.testing.assert_allclose(alie(updates, z=1.5), [2 - 1.5 * std, 1.0])


def test_alie_hides_behind_the_supporters_it_needs():
    # 50 clients, 24 attackers: 50 // 2 + 1 - 24 = 2 of the 26 honest ones must lie farther out than the attack.
    updates = rng(2).normal(size=(26, 4))
    z = stats.norm.ppf(24 / 26)
    np.testing.assert_allclose(alie(updates, attackers=24), updates.mean(axis=0) - z * updates.std(axis=0))


def test_alie_sends_the_mean_where_nobody_covers_a_shift():
    updates = rng(2).normal(size=(3, 4))
    np.testing.assert_allclose(alie(updates, attackers=1), updates.mean(axis=0))
    np.testing.assert_allclose(alie(updates[:1]), updates[0])


def test_manipulation_turns_the_aggregate_against_the_mean():
    honest = rng(3).normal(size=(4, 6)) + 1.0
    sent = ipm(honest, scale=6.0)
    (result,) = mean([[update] for update in [*honest, sent]])
    assert result @ honest.mean(axis=0) < 0


def test_noise_has_the_standard_deviation_asked_for():
    sent = gaussian_noise(np.full(20_000, 3.0), scale=0.5, rng=rng(6))
    assert (sent.mean(), sent.std()) == pytest.approx((3.0, 0.5), abs=0.02)
    assert gaussian_noise([3.0], scale=0, rng=rng()).tolist() == [3.0]
    assert np.isinf(gaussian_noise(np.ones(3, np.float32), scale=np.inf, rng=rng())).all()


def test_a_mapping_changes_only_the_classes_it_names():
    assert label_flip(np.array([[0, 1], [2, 1]]), classes=3, mapping={1: 0}).tolist() == [[0, 0], [2, 0]]
    assert label_flip([0, 1, 2], classes=3).tolist() == [2, 1, 0]


# Errors


@every_solo
def test_updates_that_are_not_flat_or_finite_are_refused(attack):
    with pytest.raises(ValueError, match="attacker 0 holds nan"):
        attack([1.0, np.nan])
    with pytest.raises(ValueError, match="use equal flat vectors"):
        attack(np.ones((2, 2)))


@every_known
def test_informed_attacks_name_the_client_with_a_bad_update(attack):
    with pytest.raises(ValueError, match="client 1 holds inf"):
        attack([np.ones(2), np.array([1.0, np.inf])])
    with pytest.raises(ValueError, match="client 1 has shape"):
        attack([np.ones(2), np.ones(3)])


@pytest.mark.parametrize("labels", [[10], [-1, 2]])
def test_labels_outside_the_classes_are_refused(labels):
    with pytest.raises(ValueError, match=f"label {labels[0]} is not among the classes"):
        label_flip(labels)


def test_bad_flips_are_refused():
    with pytest.raises(ValueError, match="label 12 is not among"):
        label_flip([1], mapping={1: 12})
    with pytest.raises(ValueError, match="use integers"):
        label_flip([0.5])


@pytest.mark.parametrize("attackers", [0, 6, 9])
def test_alie_has_no_rule_for_a_majority_of_attackers(attackers):
    with pytest.raises(ValueError, match=r"minority.*pass z"):
        alie(np.ones((4, 2)), attackers=attackers)


def test_scales_out_of_range_are_refused():
    for scale in (-1.0, np.nan):
        with pytest.raises(ValueError, match="scale is"):
            gaussian_noise([1.0], scale=scale, rng=rng())
    for scale in (0.0, -1.0, np.inf):
        with pytest.raises(ValueError, match="scale is"):
            ipm([np.ones(2)], scale=scale)


def test_a_mean_that_cannot_be_forced_is_refused():
    with pytest.raises(ValueError, match="pass 3 weights"):
        force_mean(np.ones((2, 1)), [1, 1])
    with pytest.raises(ValueError, match="the others' are all 0"):
        force_mean(np.ones((2, 1)), [0, 0, 1])


@pytest.mark.parametrize(
    ("target", "weights", "attacker", "message"),
    [
        ([1.0, 1.0], [1, 1], -1, "pass 3 weights"),
        ([1.0, 1.0], [1, 1, 1], 3, "attacker is 3, there are weights of 3"),
        ([1.0, 1.0], [1, 1, 0], -1, "the attacker's must be above 0"),
        ([1.0, 1.0], [1, -1, 1], -1, "not one may be negative"),
        ([1.0], [1, 1, 1], -1, "target has 1 weights, the updates have 2"),
    ],
)
def test_what_cannot_be_forced_is_refused(target, weights, attacker, message):
    with pytest.raises(ValueError, match=message):
        force_aggregate(target, np.ones((2, 2)), weights, attacker=attacker)
