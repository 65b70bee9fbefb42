"""What clients and the server hold."""

import numpy as np
import pytest

from cflib import datasets, partition
from cflib.federation import Federation


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits")


def split(digits):
    return partition.label_swap(
        digits.train_labels, n_clients=5, rng=np.random.default_rng(0), test_labels=digits.test_labels
    )


def test_limits_leave_training_data_alone_and_cut_the_test_sets(digits):
    whole, limited = Federation(digits, split(digits)), Federation(digits, split(digits), 40, 10)
    assert len(whole.server()[1]) == len(digits.test_labels)
    assert len(limited.server()[1]) == 40
    for client in range(5):
        all_of_it, part = whole.client(client), limited.client(client)
        assert np.array_equal(all_of_it.train_images, part.train_images)
        assert len(part.test_labels) == 10
        kept = {image.tobytes() for image in part.test_images}
        assert kept <= {image.tobytes() for image in all_of_it.test_images}


def test_a_limit_beyond_what_there_is_changes_nothing(digits):
    whole, wide = Federation(digits, split(digits)), Federation(digits, split(digits), 10**6, 10**6)
    assert np.array_equal(whole.server()[1], wide.server()[1])
    assert np.array_equal(whole.client(3).test_labels, wide.client(3).test_labels)


def test_every_limit_changes_the_checksum(digits):
    sums = {Federation(digits, split(digits), *limits).checksum for limits in ((None, None), (40, None), (None, 40))}
    assert len(sums) == 3


def test_an_empty_test_set_is_refused(digits):
    with pytest.raises(ValueError, match="client_samples is 0: keep at least one image"):
        Federation(digits, split(digits), client_samples=0)
