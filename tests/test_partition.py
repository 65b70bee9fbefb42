"""Partitions: who holds which samples."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflib import partition
from cflib.dealing import Partition, transform_images, transform_labels
from cflib.partition import VEHICLES_AND_ANIMALS

MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)


def labels_of(sizes, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def rng(seed=0):
    return np.random.default_rng(seed)


LABELS, TESTS = labels_of([300] * 10), labels_of([60] * 10, 1)
SPLITS = {
    "iid": (partition.iid, {}),
    "quantity_skew": (partition.quantity_skew, {"alpha": 0.5}),
    "label_swap": (partition.label_swap, {}),
    "rotation": (partition.rotation, {}),
    "majority_class": (partition.majority_class, {"share": 0.7}),
    "paired_majority": (partition.paired_majority, {}),
    "class_subsets": (partition.class_subsets, {"classes": 5}),
    "dirichlet": (partition.dirichlet, {"alpha": 0.5}),
    "cluster_classes": (partition.cluster_classes, {"overlap": False, "balance": True}),
}
every_split = pytest.mark.parametrize("name", SPLITS)


def split(name, seed=0, labels=LABELS, n_clients=15, **options):
    function, defaults = SPLITS[name]
    return function(labels, n_clients=n_clients, rng=rng(seed), **{**defaults, **options})


def apart(parts):
    joined = np.concatenate(parts)
    return joined.size == np.unique(joined).size


# Invariants


@every_split
def test_clients_have_sorted_unique_samples_within_the_sets(name):
    for tests in (None, TESTS):
        made = split(name, test_labels=tests)
        assert made.test_from == ("train" if tests is None else "test")
        assert made.name == name
        assert made.parameters["n_clients"] == len(made.train) == len(made.test) == made.truth.size == 15
        for part, size in ((made.train, LABELS.size), (made.test, (LABELS if tests is None else tests).size)):
            for indices in part:
                assert np.array_equal(indices, np.unique(indices))
                assert 0 <= indices[0] <= indices[-1] < size


@every_split
def test_no_sample_is_trained_on_and_tested_with(name):
    made = split(name)
    assert np.intersect1d(np.concatenate(made.train), np.concatenate(made.test)).size == 0


@pytest.mark.parametrize("name", [name for name in SPLITS if name != "cluster_classes"])
@settings(max_examples=12)
@given(n_clients=st.integers(5, 20), seed=st.integers(0, 50))
def test_clients_share_no_samples(name, n_clients, seed):
    made = split(name, seed, n_clients=n_clients, test_labels=TESTS)
    assert apart(made.train)
    assert apart(made.test)
    assert apart([*(held := split(name, seed, n_clients=n_clients)).train, *held.test])


@every_split
def test_equal_generators_give_equal_checksums_and_others_do_not(name):
    assert split(name, 3).checksum == split(name, 3).checksum != split(name, 4).checksum


@pytest.mark.parametrize("name", ["iid", "quantity_skew", "label_swap", "rotation", "class_subsets", "dirichlet"])
def test_no_sample_is_left_over_unless_asked(name):
    labels = labels_of([31, 47, 52, 40, 33, 38, 41, 36, 44, 49])
    made = split(name, labels=labels, n_clients=7)
    used = np.concatenate([*made.train, *made.test])
    assert np.array_equal(np.sort(used), np.arange(labels.size))


@pytest.mark.parametrize("name", ["majority_class", "paired_majority", "class_subsets", "dirichlet"])
def test_test_samples_follow_the_class_shares_of_the_training_samples(name):
    labels, tests = labels_of(MNIST), labels_of(MNIST_TEST, 1)
    made = split(name, labels=labels, n_clients=10, test_labels=tests)
    train, test = made.class_counts(labels), made.class_counts(tests, part="test")
    ratio = test.sum() / train.sum()
    # Each count is rounded down: at most one sample less than the exact share, none more.
    assert (test >= np.floor(train * ratio) - 1).all()
    assert (test <= np.ceil(train * ratio * 1.05)).all()


def test_the_checksum_sees_indices_transforms_truth_and_where_tests_are_from():
    made = split("rotation")
    moved = (np.append(made.train[0], made.train[1][0]), made.train[1][1:], *made.train[2:])
    changes = {
        "train": moved,
        "truth": made.truth + 1,
        "transforms": (("rotate", 3), *made.transforms[1:]),
        "test_from": "test",
    }
    sums = {dataclasses.replace(made, **{key: value}).checksum for key, value in changes.items()}
    assert len(sums | {made.checksum}) == 5
    assert dataclasses.replace(made, name="renamed").checksum == made.checksum


# The papers' splits


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_every_client_has_5000_images_of_cifar_at_every_share(share):
    labels = labels_of([5000] * 10)
    made = split("majority_class", labels=labels, n_clients=10, share=share, test_labels=labels_of([1000] * 10))
    counts = made.class_counts(labels)
    assert (counts.sum(axis=1) == 5000).all()
    assert (counts.sum(axis=0) == 5000).all()
    assert (np.diagonal(counts) == round(share * 5000)).all()
    others = counts[~np.eye(10, dtype=bool)]
    assert others.max() - others.min() <= 1


def test_majority_groups_are_vehicles_and_animals():
    made = split("majority_class", n_clients=12, groups=VEHICLES_AND_ANIMALS)
    assert made.truth.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert split("majority_class", n_clients=12).truth.tolist() == [*range(10), 0, 1]


def test_majority_clients_may_be_small():
    made = split("majority_class", n_clients=10, samples=100, test_labels=TESTS)
    assert {part.size for part in made.train} == {100}
    assert made.class_counts(LABELS)[3, 3] == 70


def test_mnist_pairs_share_two_classes_at_30_percent():
    labels = labels_of(MNIST)
    made = split("paired_majority", labels=labels, n_clients=10, samples=5400, test_labels=labels_of(MNIST_TEST))
    counts = made.class_counts(labels)
    assert made.truth.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    for client, row in enumerate(counts):
        main = [client // 2 * 2, client // 2 * 2 + 1]
        assert (row[main] == 1620).all()
        assert (np.delete(row, main) == 270).all()


def test_the_scarcest_class_of_mnist_bounds_the_pairs():
    labels = labels_of(MNIST)
    made = split("paired_majority", labels=labels, n_clients=10, test_labels=labels_of(MNIST_TEST))
    assert 5400 < made.train[0].size <= 5421
    with pytest.raises(ValueError, match=r"class 5 has 5421 samples, not 55\d\d: lower samples"):
        split("paired_majority", labels=labels, n_clients=10, samples=5500)


def test_pairs_beyond_the_classes_start_again_in_the_same_groups():
    made = split("paired_majority", n_clients=14)
    assert made.truth.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 0, 1, 1]
    counts = made.class_counts(LABELS) + made.class_counts(LABELS, part="test")
    assert np.array_equal(counts[0], counts[10])


@pytest.mark.parametrize(("classes", "each"), [(2, 2500), (5, 1000)])
def test_groups_hold_halves_of_two_or_fifths_of_five_classes(classes, each):
    labels = labels_of([5000] * 10)
    made = split("class_subsets", labels=labels, n_clients=10, classes=classes, test_labels=labels_of([1000] * 10))
    counts = made.class_counts(labels)
    for client, row in enumerate(counts):
        first = client * (10 // classes) // 10 * classes
        assert (row[first : first + classes] == each).all()
        assert row.sum() == 5000
    assert np.bincount(made.truth).tolist() == [classes] * (10 // classes)
    assert {part.size for part in made.test} == {1000}


def test_subsets_of_given_size_are_spread_over_the_classes():
    made = split("class_subsets", n_clients=4, classes=5, samples=102, test_labels=TESTS)
    assert made.class_counts(LABELS)[0].tolist() == [21, 21, 20, 20, 20, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["label_swap", "rotation"])
def test_paper_003_has_100_clients_of_600_and_100_samples_in_equal_groups(name):
    made = split(name, labels=labels_of([6000] * 10), n_clients=100, test_labels=labels_of([1000] * 10))
    assert {part.size for part in made.train} == {600}
    assert {part.size for part in made.test} == {100}
    groups = {"label_swap": 5, "rotation": 4}[name]
    assert np.array_equal(made.truth, np.repeat(np.arange(groups), 100 // groups))


def test_swapping_clients_see_two_classes_exchanged():
    made = split("label_swap", n_clients=10)
    assert made.transforms == tuple(("swap", 2 * (i // 2), 2 * (i // 2) + 1) for i in range(10))
    plain = np.bincount(LABELS[made.train[2]], minlength=10)
    seen = made.class_counts(LABELS)[2]
    assert seen.tolist() == plain[[0, 1, 3, 2, 4, 5, 6, 7, 8, 9]].tolist()


def test_rotating_clients_turn_images_and_not_labels():
    made = split("rotation", n_clients=4)
    assert made.transforms == (("rotate", 0), ("rotate", 1), ("rotate", 2), ("rotate", 3))
    image = np.arange(4.0).reshape(1, 2, 2)
    assert transform_images(image, ("rotate", 1)).tolist() == [[[1, 3], [0, 2]]]
    assert transform_images(image[..., None], ("rotate", 2))[..., 0].tolist() == [[[3, 2], [1, 0]]]
    assert np.array_equal(transform_images(image, ("rotate", 0)), image)
    assert transform_labels([0, 1], ("rotate", 1)).tolist() == [0, 1]


def test_other_transforms_leave_images_and_labels_alone():
    image = np.zeros((1, 2, 2))
    assert transform_images(image, None) is image
    assert transform_images(image, ("swap", 0, 1)) is image
    assert transform_labels([0, 1, 2], None).tolist() == [0, 1, 2]
    assert transform_labels([0, 1, 2], ("swap", 2, 0)).tolist() == [2, 1, 0]


@pytest.mark.parametrize("alpha", [0.05, 0.5, 100.0])
def test_dirichlet_clients_have_enough_samples_and_no_true_groups(alpha):
    made = split("dirichlet", n_clients=8, alpha=alpha, min_size=20, test_labels=TESTS)
    assert min(part.size for part in made.train) >= 20
    assert (made.truth == -1).all()


def test_a_dirichlet_client_with_its_equal_part_gets_no_more():
    made = split("dirichlet", n_clients=5, alpha=0.3, test_labels=TESTS)
    counts = made.class_counts(LABELS)
    before = np.cumsum(counts, axis=1) - counts
    full = before >= LABELS.size / 5
    assert full.any()
    assert (counts[full] == 0).all()


@pytest.mark.parametrize("seed", range(10))
def test_shares_that_vanish_in_floating_point_still_deal_every_sample(seed):
    made = split("dirichlet", seed, n_clients=4, alpha=0.001, min_size=1, test_labels=TESTS)
    assert np.array_equal(np.sort(np.concatenate(made.train)), np.arange(LABELS.size))


def test_a_small_alpha_concentrates_classes_and_a_large_one_spreads_them():
    def largest_share(alpha):
        counts = split("dirichlet", n_clients=10, alpha=alpha, test_labels=TESTS).class_counts(LABELS)
        return (counts.max(axis=1) / counts.sum(axis=1)).mean()

    assert largest_share(0.1) > 0.4 > 0.2 > largest_share(1000.0)


def test_skewed_quantities_keep_the_class_shares():
    labels = labels_of([3000] * 10)
    made = split("quantity_skew", labels=labels, n_clients=6, test_labels=TESTS)
    sizes = np.array([part.size for part in made.train])
    assert sizes.sum() == labels.size
    assert sizes.min() >= 10
    assert sizes.max() > 2 * sizes.min()
    big = made.class_counts(labels)[sizes.argmax()]
    assert np.abs(big / big.sum() - 0.1).max() < 0.03
    assert (made.truth == 0).all()


CLUSTERS = {
    False: [{0, 1, 2, 3}, {4, 5, 6}, {7, 8, 9}],
    True: [{0, 1, 2, 3, 8, 9}, {4, 5, 6, 7, 8, 9}, {0, 1, 2, 3, 4, 5}],
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize(
    ("n_clients", "equal", "unequal"), [(15, [5, 5, 5], [3, 7, 5]), (30, [10, 10, 10], [7, 14, 9])]
)
def test_clusters_of_paper_004_have_its_classes_and_sizes(overlap, balance, as_published, n_clients, equal, unequal):
    labels, tests = labels_of([600] * 10), labels_of([100] * 10)
    options = {"overlap": overlap, "balance": balance, "as_published": as_published}
    made = partition.cluster_classes(labels, n_clients=n_clients, rng=rng(), test_labels=tests, **options)
    assert np.bincount(made.truth).tolist() == (equal if balance else unequal)
    assert made.test_from == ("train" if as_published else "test")
    for client, cluster in enumerate(made.truth):
        held = labels if as_published else tests
        assert set(labels[made.train[client]]) <= CLUSTERS[overlap][cluster]
        assert set(held[made.test[client]]) <= CLUSTERS[overlap][cluster]
    if balance:
        assert set(labels[made.train[0]]) == CLUSTERS[overlap][0]


def test_published_mnist_clients_have_about_3690_samples_split_70_to_30():
    labels = labels_of(MNIST)
    made = split("cluster_classes", labels=labels, n_clients=15, as_published=True)
    sizes = np.array([[a.size, b.size] for a, b in zip(made.train, made.test, strict=True)])
    # 4000 draws from the 24754 samples of classes 0 to 3 leave 24754 (1 - exp(-4000 / 24754)) = 3693 different ones.
    assert sizes[made.truth == 0].sum(axis=1).mean() == pytest.approx(3693, abs=20)
    np.testing.assert_allclose(sizes[:, 0] / sizes.sum(axis=1), 0.7, atol=0.001)


def test_only_the_published_draw_tests_with_samples_others_train_on():
    published = split("cluster_classes", as_published=True)
    corrected = split("cluster_classes")
    leaks = [
        np.intersect1d(np.concatenate(made.train), np.concatenate(made.test)).size for made in (published, corrected)
    ]
    assert leaks[0] > 0
    assert leaks[1] == 0
    assert not apart(corrected.train)


def test_clients_of_paper_004_draw_as_many_samples_as_asked():
    made = split("cluster_classes", labels=labels_of([3000] * 10), n_clients=15, samples=100, test_labels=TESTS)
    assert {part.size for part in made.train} <= set(range(65, 71))
    assert {part.size for part in made.test} <= set(range(25, 31))


def test_clients_of_an_imbalanced_cluster_share_their_class_weights():
    labels = labels_of([3000] * 10)
    made = split("cluster_classes", labels=labels, balance=False, test_labels=TESTS)
    shares = made.class_counts(labels) / made.class_counts(labels).sum(axis=1, keepdims=True)
    inside = np.abs(shares[made.truth == 1] - shares[made.truth == 1].mean(axis=0)).max()
    assert inside < 0.06
    assert shares[0][:4].max() - shares[0][:4].min() > 0.06


@pytest.mark.parametrize("n_clients", [3, 4, 7, 20, 100])
def test_other_numbers_of_clients_keep_every_cluster_occupied(n_clients):
    labels = labels_of([2000] * 10)
    for balance in (False, True):
        made = split("cluster_classes", labels=labels, n_clients=n_clients, balance=balance)
        assert np.bincount(made.truth).min() >= 1
        assert made.truth.size == n_clients


# Odd sizes and errors


def test_a_client_too_small_for_its_share_still_gets_one_test_sample():
    labels, tests = labels_of([200] * 10), labels_of([8] * 10)
    made = split("quantity_skew", labels=labels, n_clients=20, alpha=0.2, test_labels=tests)
    assert min(part.size for part in made.test) == 1


def test_one_client_holds_everything():
    for name in ("iid", "quantity_skew", "dirichlet"):
        made = split(name, n_clients=1, test_labels=TESTS)
        assert made.train[0].size == LABELS.size
        assert made.test[0].size == TESTS.size


@every_split
def test_nonsense_is_refused_by_name(name):
    with pytest.raises(ValueError, match="n_clients is 0, expected from 1"):
        split(name, n_clients=0)
    with pytest.raises(ValueError, match=r"labels are float64\(2,\)"):
        split(name, labels=[0.5, 1.0])
    with pytest.raises(ValueError, match="pass one class a sample"):
        split(name, labels=[0, -1])
    with pytest.raises(ValueError, match="class 9 is not in both"):
        split(name, test_labels=labels_of([50] * 9))


@pytest.mark.parametrize(
    "name", ["iid", "label_swap", "rotation", "majority_class", "paired_majority", "class_subsets"]
)
def test_more_samples_than_there_are_are_refused(name):
    with pytest.raises(ValueError, match=r"(class \d|the data set) has \d+ samples, not \d+: lower samples"):
        split(name, samples=400)
    with pytest.raises(ValueError, match="samples is 0, expected from 1"):
        split(name, samples=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("majority_class", {"share": 1.1}, "share is 1.1"),
        ("majority_class", {"share": -0.1}, "share is -0.1"),
        ("majority_class", {"groups": [0, 1]}, "groups name 2 classes, there are 10"),
        ("paired_majority", {"share": 0.6}, r"share is 0.6 for 2 of 10 classes: expected 0 to 0.5"),
        ("paired_majority", {"labels": labels_of([50] * 5)}, "a divisor"),
        ("class_subsets", {"classes": 3}, "classes is 3, expected a divisor of the 10"),
        ("class_subsets", {"classes": 2, "n_clients": 4}, "5 groups of 4 clients: expected from 1 to 4"),
        ("label_swap", {"groups": 6}, "6 groups of 15 clients: expected from 1 to 5"),
        ("rotation", {"groups": 5}, "5 groups of 15 clients: expected from 1 to 4"),
        ("dirichlet", {"alpha": 0.0}, "alpha is 0.0, expected from 0.001"),
        ("dirichlet", {"min_size": 201}, "min_size is 201, expected from 1 to 200"),
        ("dirichlet", {"min_size": 200, "alpha": 0.1}, "1000 draws left a client below 200 samples: raise alpha"),
        ("quantity_skew", {"alpha": -1.0}, "alpha is -1.0"),
        ("cluster_classes", {"n_clients": 2}, "2 clients and 10 classes"),
        ("cluster_classes", {"labels": labels_of([50] * 9)}, "15 clients and 9 classes"),
        ("iid", {"samples": 1}, "client 0 has 0 training, 1 test samples"),
    ],
)
def test_impossible_settings_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        split(name, **options)


def test_unknown_transforms_are_refused():
    for change in (("mirror", 1), ("swap", 1), ("rotate", 1, 2)):
        for function in (transform_images, transform_labels):
            with pytest.raises(ValueError, match="is unknown"):
                function(np.zeros((1, 2, 2), dtype=int), change)


def test_a_partition_refuses_clients_without_samples():
    train, test = (np.arange(2), np.arange(2)), (np.arange(1), np.arange(0))
    with pytest.raises(ValueError, match="client 1 has 2 training, 0 test samples"):
        Partition("own", {}, train, test, np.zeros(2, dtype=int), (None, None), "test")
