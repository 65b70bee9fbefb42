import json
import math

import numpy as np
import pytest

from cflib.keys import canonical
from cflib.models import Network, build, generators, initial_weights, template


@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters", "arrays"),
    [
        ("mcmahan_cnn", (28, 28), {}, 1_663_370, 8),
        ("mcmahan_cnn", (28, 28), {"dropout": 0.1}, 1_663_370, 8),
        ("cnn_312k", (32, 32, 3), {"output": "sigmoid"}, 312_010, 12),
        ("cnn_25m", (28, 28), {}, 25_404_240, 14),
        ("mobilenet", (32, 32, 3), {}, 3_239_114, 137),
        ("mobilenet_v2", (32, 32, 3), {}, 2_270_794, 262),
        ("resnet34", (32, 32, 3), {}, 21_299_146, 182),
        ("small_cnn", (8, 8), {}, 35_914, 8),
        ("small_cnn", (28, 28), {}, 220_234, 8),
        ("small_cnn", (32, 32, 3), {}, 282_250, 8),
        ("mlp", (28, 28), {"hidden": (200,)}, 159_010, 4),
        ("linear", (8, 8), {}, 650, 2),
    ],
)
def test_networks_have_the_published_number_of_parameters_and_arrays(name, shape, options, parameters, arrays):
    network = Network(name, shape, 10, options)
    assert (network.parameters, len(network.shapes), len(network.trainable)) == (parameters, arrays, arrays)


def test_resnet34_has_the_trainable_parameters_of_the_cifar_variant_and_untrained_statistics():
    network = Network("resnet34", (32, 32, 3))
    sizes = np.array([math.prod(shape) for shape in network.shapes])
    assert sizes[np.array(network.trainable)].sum() == 21_282_122
    assert network.trainable.count(False) == 2 * 36


def test_results_of_a_network_from_before_its_kernels_changed_have_other_keys():
    assert canonical(Network("mobilenet", (32, 32, 3)))["revision"] == 1
    assert "revision" not in canonical(Network("mlp", (8, 8)))


def test_the_last_array_of_mobilenet_v2_is_the_bias_that_002_clusters():
    assert Network("mobilenet_v2", (32, 32, 3)).shapes[261] == (10,)


def test_alpha_narrows_mobilenet():
    narrow = Network("mobilenet", (32, 32, 3), 10, {"alpha": 0.25})
    assert (narrow.parameters, len(narrow.shapes)) == (221_114, 137)


@pytest.mark.parametrize("name", ["linear", "mlp", "small_cnn", "mcmahan_cnn"])
def test_models_map_images_to_one_logit_a_class(name):
    model = build(name, input_shape=(8, 8), classes=3)
    logits = np.asarray(model(np.ones((2, 8, 8, 1), np.float32) * 50))
    assert logits.shape == (2, 3)
    assert not np.allclose(logits.sum(axis=1), 1)


def test_the_published_sigmoid_is_an_option_of_002s_network():
    published = build("cnn_312k", input_shape=(32, 32, 3), output="sigmoid")
    plain = build("cnn_312k", input_shape=(32, 32, 3))
    plain.set_weights(published.get_weights())
    images = np.random.default_rng(0).random((2, 32, 32, 3), np.float32) * 9
    assert np.allclose(published(images), 1 / (1 + np.exp(-np.asarray(plain(images)))), atol=1e-6)


def test_dropout_states_are_generators_and_no_weights():
    network = Network("cnn_25m", (8, 8))
    assert len(generators(network)) == 3
    assert [tuple(w.shape) for w in template(network).get_weights()] == list(network.shapes)
    assert not any("seed" in v.path for v in template(network).weights)


def test_equal_networks_have_equal_descriptions_however_they_are_written():
    short = Network("mlp", (8, 8), options={"scale": 16})
    full = Network("mlp", (8, 8, 1), 10, (("hidden", [64]), ("scale", 16.0)))
    assert short == full
    assert hash(short) == hash(full)
    assert json.loads(json.dumps(short.spec)) == {
        "name": "mlp",
        "input_shape": [8, 8, 1],
        "classes": 10,
        "options": {"hidden": [64], "scale": 16.0},
    }
    assert Network(**short.spec) == short
    assert short.scale == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vgg", (8, 8)), "network 'vgg' is unknown: choose one of mcmahan_cnn, "),
        (("linear", (8,)), r"input shape is \(8,\): use \(height, width\)"),
        (("linear", (8, 0)), "input shape is"),
        (("linear", (8, 8), 1), "classes is 1: a classifier needs at least 2"),
        (("mlp", (8, 8), 10, {"alpha": 1}), "'mlp' has no option 'alpha': it knows hidden, scale"),
        (("mlp", (8, 8), 10, {"hidden": []}), r"option 'hidden' is \(\): use at least one layer"),
        (("mlp", (8, 8), 10, {"hidden": [3, 0]}), "use at least one layer, each of at least one unit"),
        (("mlp", (8, 8), 10, {"scale": 0}), "option 'scale' is 0.0: use a divisor > 0"),
        (("mobilenet", (32, 32, 3), 10, {"alpha": -1}), "option 'alpha' is -1.0"),
        (("mcmahan_cnn", (28, 28), 10, {"dropout": 1}), "option 'dropout' is 1.0: use a share from 0 to below 1"),
        (("cnn_312k", (32, 32, 3), 10, {"output": "softmax"}), "use 'logits' or 'sigmoid'"),
    ],
)
def test_a_wrong_description_is_refused_with_its_remedy(arguments, message):
    with pytest.raises(ValueError, match=message):
        Network(*arguments)


def test_initial_weights_depend_on_network_and_seed_alone():
    network = Network("small_cnn", (8, 8))
    first, again, other = (initial_weights(network, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert tuple(a.shape for a in first) == network.shapes
    assert {a.dtype for a in first} == {np.dtype(np.float32)}
    with pytest.raises(ValueError, match="seed is -1: use a number >= 0"):
        initial_weights(network, -1)


def test_initial_weights_are_distributed_as_kerass_own():
    network = Network("mobilenet", (32, 32, 3), 10, {"alpha": 0.25})
    for ours, theirs in zip(initial_weights(network, 0), template(network).get_weights(), strict=True):
        if ours.ndim == 1:
            assert np.array_equal(ours, theirs)
        else:
            assert abs(np.abs(ours).max() / np.abs(theirs).max() - 1) < 0.2
            assert abs(ours.std() / theirs.std() - 1) < 0.25
            assert abs(ours.mean()) < 4 * ours.std() / math.sqrt(ours.size)
