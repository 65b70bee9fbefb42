from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cflib.backend import load_tensorflow
from cflib.layers import quicken
from cflib.models import Network, initial_weights, template
from cflib.training import Training, trainer


@pytest.fixture(scope="module")
def engines():
    return load_tensorflow()


def one_layer(keras, name, side=2, channels=3, **options):
    inputs = keras.layers.Input((side, side, channels))
    return keras.Model(inputs, getattr(keras.layers, name)(**options)(inputs))


def behaviour(tf, model, images, targets):
    """Outputs in training, gradients of the weights and of the images, other variables afterwards, outputs later."""
    rng = np.random.default_rng(5)
    trainable = [tf.constant(rng.uniform(0.5, 1.5, v.shape), tf.float32) for v in model.trainable_variables]
    others = [tf.constant(rng.uniform(0.5, 1.5, v.shape), tf.float32) for v in model.non_trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch([images, *trainable])
        outputs, kept = model.stateless_call(trainable, others, images, training=True)
        loss = tf.reduce_sum(outputs * targets)
    later, _ = model.stateless_call(trainable, kept, images, training=False)
    return [outputs, *tape.gradient(loss, [images, *trainable]), *kept, later]


LAYERS = [
    ("BatchNormalization", {"momentum": 0.9}),
    ("Conv2D", {"filters": 5, "kernel_size": 1, "use_bias": False}),
    ("Conv2D", {"filters": 5, "kernel_size": 1}),
    *(("DepthwiseConv2D", {"kernel_size": 3, "strides": s, "padding": p}) for s in (1, 2) for p in ("same", "valid")),
]


@pytest.mark.parametrize("side", [3, 4])
@pytest.mark.parametrize(("name", "options"), LAYERS)
def test_a_quick_layer_computes_what_kerass_own_does(engines, name, options, side):
    tf, keras = engines
    if name == "DepthwiseConv2D":
        options = {**options, "use_bias": False}
    slow = one_layer(keras, name, side, **options)
    quick = quicken(slow)
    assert type(quick.layers[1]) is not type(slow.layers[1])
    rng = np.random.default_rng(1)
    images = tf.constant(rng.normal(size=(7, side, side, 3)), tf.float32)
    targets = tf.constant(rng.normal(size=(7, *slow.output_shape[1:])), tf.float32)
    expected, found = (behaviour(tf, model, images, targets) for model in (slow, quick))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-5)


def test_layers_without_a_faster_kernel_stay_kerass_own(engines):
    _, keras = engines
    for name, options, side in [
        ("Conv2D", {"filters": 2, "kernel_size": 3}, 4),
        ("Conv2D", {"filters": 2, "kernel_size": 1, "strides": 2}, 4),
        ("Conv2D", {"filters": 2, "kernel_size": 1, "activation": "relu"}, 4),
        ("DepthwiseConv2D", {"kernel_size": 3, "use_bias": False}, 5),
        ("DepthwiseConv2D", {"kernel_size": 3}, 4),
        ("BatchNormalization", {"scale": False}, 4),
    ]:
        kept = quicken(one_layer(keras, name, side, **options)).layers[1]
        assert type(kept) is getattr(keras.layers, name)


@pytest.mark.parametrize(("name", "theirs"), [("mobilenet", "MobileNet"), ("mobilenet_v2", "MobileNetV2")])
def test_a_mobilenet_predicts_what_kerass_own_predicts_with_the_same_weights(engines, name, theirs):
    _, keras = engines
    network = Network(name, (32, 32, 3), 10, {"alpha": 0.25} if name == "mobilenet" else {"alpha": 0.35})
    alpha = dict(network.options)["alpha"]
    build = getattr(keras.applications, theirs)
    slow = build((32, 32, 3), alpha, weights=None, classes=10, classifier_activation=None)
    quick = template(network)
    assert [v.path for v in quick.weights] == [v.path for v in slow.weights]
    weights = initial_weights(network, 3)
    slow.set_weights(weights)
    quick.set_weights(weights)
    images = np.random.default_rng(0).random((4, 32, 32, 3), dtype=np.float32)
    np.testing.assert_allclose(quick(images, training=False), slow(images, training=False), rtol=1e-3, atol=1e-5)


def test_threads_train_a_mobilenet_to_the_same_bits_as_a_loop():
    network = Network("mobilenet", (32, 32, 3), 10, {"alpha": 0.25})
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 24)
    engine, start = trainer(network, Training("adam", 0.001, batch_size=8)), initial_weights(network, 0)

    def train(client):
        return np.concatenate(
            [a.ravel() for a in engine.train(start, images, labels, seed=0, round=0, client=client).weights]
        )

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(train, range(4)))
    for client in range(4):
        np.testing.assert_array_equal(together[client], train(client))
