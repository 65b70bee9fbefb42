"""The data of paper 002 as its code prepares them: pooled, in part mislabelled, cut short."""

from __future__ import annotations

import numpy as np
import pytest

from cflib import datasets
from cflib.federation import Federation
from cflib.studies.published import pooled, pooled_classes


def split(data, **changes):
    options = {"n_clients": 10, "classes": 5, "rng": np.random.default_rng(0), "tests": len(data.test_labels)}
    return pooled_classes(pooled(data).train_labels, **{**options, "taken": 50, **changes})


def test_the_pooled_test_part_has_test_labels_and_training_images():
    data = datasets.load("digits")
    wrong, right = pooled(data), pooled(data, mislabelled=False)
    train, tests = len(data.train_labels), len(data.test_labels)
    for one, images in ((wrong, data.train_images[:tests]), (right, data.test_images)):
        assert np.array_equal(one.train_labels[train:], data.test_labels)
        assert np.array_equal(one.train_images[train:], images)
        assert np.array_equal(one.train_images[:train], data.train_images)
    assert len({data.checksum, wrong.checksum, right.checksum}) == 3


@pytest.mark.parametrize(("classes", "truth"), [(5, [0] * 5 + [1] * 5), (2, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])])
def test_a_client_trains_on_four_fifths_of_what_it_takes_and_is_tested_on_the_rest_of_its_classes(classes, truth):
    data = datasets.load("digits")
    made = split(data, classes=classes)
    assert made.truth.tolist() == truth
    assert {len(part) for part in made.train} == {40}
    everything = np.concatenate([*made.train, *made.test])
    assert len(everything) == len(np.unique(everything))
    federation = Federation(pooled(data), made)
    for client, group in enumerate(truth):
        held = federation.client(client)
        expected = set(range(group * classes, (group + 1) * classes))
        assert set(held.test_labels) == expected >= set(held.train_labels)
        assert max(made.test[client]) >= len(data.train_labels)  # some of the mislabelled part


def test_impossible_published_splits_are_refused():
    data = datasets.load("digits")
    with pytest.raises(ValueError, match="classes is 3: the published splits have 2 or 5"):
        split(data, classes=3)
    with pytest.raises(ValueError, match="taken is 2100, client 0 has"):
        split(data, taken=2100)
