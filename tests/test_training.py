import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cflib
from cflib import models
from cflib.backend import load_tensorflow
from cflib.models import Network, build, generators, initial_weights, template
from cflib.training import Evaluation, Trainer, Training, _batches, trainer

LINEAR = Network("linear", (4, 3), 3)
MLP = Network("mlp", (4, 3), 3, {"hidden": (5,)})
ROOT = Path(cflib.__file__).resolve().parent.parent


def samples(n, shape=(4, 3), classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.integers(0, classes, n)


def digest(weights):
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in weights)).hexdigest()


def met(n, *, seed=1, round=0, client=0):
    return np.random.default_rng(np.random.SeedSequence((seed, round, client))).permutation(n)


def descend(weights, images, labels, batches, rate):
    """Softmax regression by plain gradient descent, in float64."""
    kernel, bias = (array.astype(np.float64) for array in weights)
    losses = []
    for batch in batches:
        x = images[batch].reshape(len(batch), -1) / 255
        scores = np.exp(x @ kernel + bias)
        shares = scores / scores.sum(axis=1, keepdims=True)
        losses += (-np.log(shares[np.arange(len(batch)), labels[batch]])).tolist()
        error = (shares - np.eye(3)[labels[batch]]) / len(batch)
        kernel, bias = kernel - rate * x.T @ error, bias - rate * error.sum(axis=0)
    return [kernel, bias], float(np.mean(losses))


@pytest.fixture
def tiny(monkeypatch):
    """A network with everything that has a state: convolution, pooling, batch normalisation, dropout."""

    def tiny_network(keras, shape, classes, *, dropout=0.3):
        layers = keras.layers
        return keras.Sequential(
            [
                layers.Input(shape),
                layers.Conv2D(4, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(2),
                layers.BatchNormalization(momentum=0.9),
                layers.Flatten(),
                *([layers.Dropout(dropout)] if dropout else []),
                layers.Dense(classes),
            ]
        )

    monkeypatch.setitem(models.NETWORKS, "tiny", tiny_network)
    return Network("tiny", (8, 8), 3)


def test_one_step_of_softmax_regression_equals_the_formula():
    images, labels = samples(7)
    start = initial_weights(LINEAR, 0)
    training = Training(learning_rate=0.5, batch_size=7)
    weights, loss, steps = trainer(LINEAR, training).train(start, images, labels, seed=1, round=0, client=0)
    expected, expected_loss = descend(start, images, labels, [np.arange(7)], 0.5)
    assert steps == 1
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, [10, 10, 5]),
        ({"drop_remainder": True}, [10, 10]),
        ({"steps": 2}, [10, 10]),
        ({"epochs": 2}, [10, 10, 5, 10, 10, 5]),
        ({"steps": 5}, [10, 10, 5, 10, 10]),
        ({"steps": 4, "drop_remainder": True}, [10, 10, 10, 10]),
        ({"batch_size": 40}, [25]),
        ({"batch_size": None, "steps": 3}, [9, 9, 7]),
        ({"batch_size": None, "steps": 10, "epochs": 2}, [3, 3, 3, 3, 3, 3, 3, 3, 1] * 2),
        ({"batch_size": None, "steps": 40}, [1] * 25),
    ],
)
def test_batches_follow_the_settings(settings, sizes):
    images, labels = samples(25)
    start = initial_weights(LINEAR, 0)
    training = Training(learning_rate=0.5, **settings)
    result = trainer(LINEAR, training).train(start, images, labels, seed=1, round=3, client=2)
    order, _ = _batches(training, 25, np.random.SeedSequence((1, 3, 2)), 2)
    batches = np.split(order, np.cumsum(sizes)[:-1])
    assert [len(batch) for batch in batches] == sizes
    assert np.array_equal(order[:20], met(25, round=3, client=2)[:20])
    expected, loss = descend(start, images, labels, batches, 0.5)
    assert result.steps == len(sizes)
    assert result.loss == pytest.approx(loss, rel=1e-5)
    for ours, theirs in zip(result.weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(("n", "size", "batches"), [(5000, 162, 31), (6490, 210, 31), (1135, 37, 31), (20, 1, 20)])
def test_without_a_batch_size_every_client_passes_once_an_epoch_through_its_own_samples(n, size, batches):
    order, bounds = _batches(Training(epochs=2, batch_size=None, steps=31), n, np.random.SeedSequence(0), 0)
    last = n - (batches - 1) * size
    assert np.diff(bounds).tolist() == [*[size] * (batches - 1), last] * 2
    assert sorted(order[:n]) == sorted(order[n:]) == list(range(n))
    if n == 5000:
        given_size = Training(epochs=2, batch_size=162, steps=31)
        assert np.array_equal(order, _batches(given_size, n, np.random.SeedSequence(0), 0)[0])


@given(
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 3),
    st.none() | st.integers(1, 9),
    st.booleans(),
)
def test_batches_are_cut_from_permutations(n, size, epochs, steps, drop):
    training = Training(batch_size=size, epochs=epochs, steps=steps, drop_remainder=drop and n >= size)
    order, bounds = _batches(training, n, np.random.SeedSequence(0), 0)
    lengths = np.diff(bounds)
    full = n // size if training.drop_remainder else -(-n // size)
    assert bounds[0] == 0
    assert bounds[-1] == len(order)
    assert len(lengths) == epochs * (steps or full)
    assert lengths.min() >= 1
    assert lengths.max() <= size
    one_pass = order[: bounds[min(full, steps or full)]]
    assert len(set(one_pass.tolist())) == len(one_pass)
    assert set(order.tolist()) <= set(range(n))


def test_the_learning_rate_decays_with_the_round():
    images, labels = samples(8)
    start = initial_weights(LINEAR, 0)
    decayed = trainer(LINEAR, Training(learning_rate=0.4, batch_size=8, decay=0.5))
    plain = trainer(LINEAR, Training(learning_rate=0.1, batch_size=8))
    arguments = {"seed": 1, "round": 2, "client": 0}
    ours = decayed.train(start, images, labels, **arguments).weights
    assert digest(ours) == digest(plain.train(start, images, labels, **arguments).weights)


def keras_fit(network, start, images, labels, order, batch_size, optimizer, *, l2=0.0, from_logits=True):
    _, keras = load_tensorflow()
    options = {name: value for name, value in network.options if name != "scale"}
    model = build(network.name, input_shape=network.input_shape, classes=network.classes, **options)
    model.set_weights(start)
    for layer in model.layers:
        if l2 and hasattr(layer, "kernel"):
            layer.kernel.regularizer = keras.regularizers.L2(l2)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits))
    pixels = (images[order] / network.scale).astype(np.float32).reshape(-1, *network.input_shape)
    history = model.fit(pixels, labels[order], batch_size=batch_size, shuffle=False, verbose=0)
    return model.get_weights(), history.history["loss"][0]


@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({"optimizer": "sgd"}, lambda o: o.SGD(0.05)),
        ({"optimizer": "momentum", "momentum": 0.8, "l2": 0.01}, lambda o: o.SGD(0.05, momentum=0.8)),
        ({"optimizer": "adam", "l2": 0.01}, lambda o: o.Adam(0.05)),
        ({"optimizer": "nadam", "ema": 0.7}, lambda o: o.Nadam(0.05, use_ema=True, ema_momentum=0.7)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_optimizers_l2_and_ema_equal_kerass_fit(settings, make):
    _, keras = load_tensorflow()
    images, labels = samples(57)
    start = initial_weights(MLP, 0)
    training = Training(learning_rate=0.05, batch_size=5, **settings)
    ours = trainer(MLP, training).train(start, images, labels, seed=1, round=0, client=0).weights
    theirs, _ = keras_fit(MLP, start, images, labels, met(57), 5, make(keras.optimizers), l2=settings.get("l2", 0.0))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_batch_normalisation_and_its_moving_statistics_equal_kerass_fit(tiny):
    _, keras = load_tensorflow()
    network = Network("tiny", (8, 8), 3, {"dropout": 0})
    images, labels = samples(30, (8, 8))
    start = initial_weights(network, 0)
    engine = trainer(network, Training(learning_rate=0.1))
    ours = engine.train(start, images, labels, seed=1, round=0, client=0)
    theirs, loss = keras_fit(network, start, images, labels, met(30), 10, keras.optimizers.SGD(0.1))
    assert ours.loss == pytest.approx(loss, rel=1e-4)
    for a, b in zip(ours.weights, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_published_sigmoid_trains_as_keras_does_that_is_on_the_logits_behind_it():
    _, keras = load_tensorflow()
    network, plain = (Network("cnn_312k", (32, 32, 3), 4, {"output": o, "scale": 32}) for o in ("sigmoid", "logits"))
    images, labels = samples(12, (32, 32, 3), 4)
    start = initial_weights(network, 0)
    training = Training(learning_rate=0.05, batch_size=6)
    arguments = {"seed": 1, "round": 0, "client": 0}
    ours = trainer(network, training).train(start, images, labels, **arguments)
    theirs, loss = keras_fit(network, start, images, labels, met(12), 6, keras.optimizers.SGD(0.05), from_logits=False)
    assert ours.loss == pytest.approx(loss, rel=1e-4)
    for a, b in zip(ours.weights, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    same = trainer(plain, training).evaluate(start, images, labels)
    assert trainer(network, training).evaluate(start, images, labels).loss == pytest.approx(same.loss, rel=1e-5)


def test_l2_pulls_kernels_but_not_biases_towards_zero():
    images, labels = np.zeros((10, 4, 3), np.uint8), np.arange(10) % 3
    start = [array + 1 for array in initial_weights(LINEAR, 0)]
    plain, pulled = (
        trainer(LINEAR, Training(learning_rate=0.1, l2=l2)).train(start, images, labels, seed=0, round=0, client=0)
        for l2 in (0.0, 0.5)
    )
    np.testing.assert_allclose(pulled.weights[0], 0.9 * start[0], rtol=1e-6)
    assert np.array_equal(plain.weights[0], start[0])
    assert np.array_equal(plain.weights[1], pulled.weights[1])


def test_the_average_of_a_single_step_is_that_step():
    images, labels = samples(10)
    start = initial_weights(LINEAR, 0)
    results = [
        trainer(LINEAR, Training(ema=ema)).train(start, images, labels, seed=0, round=0, client=0)
        for ema in (None, 0.9)
    ]
    np.testing.assert_allclose(results[0].weights[0], results[1].weights[0], atol=1e-7)


def test_dropout_is_on_in_training_and_off_in_evaluation():
    dropping, plain = (Network("mcmahan_cnn", (8, 8), 3, {"dropout": share}) for share in (0.5, 0.0))
    images, labels = samples(20, (8, 8))
    start = initial_weights(plain, 0)
    assert all(np.array_equal(a, b) for a, b in zip(start, initial_weights(dropping, 0), strict=True))
    training = Training(learning_rate=0.05)
    arguments = {"seed": 1, "round": 0, "client": 0}
    with_dropout = trainer(dropping, training).train(start, images, labels, **arguments)
    assert digest(with_dropout.weights) != digest(trainer(plain, training).train(start, images, labels, **arguments)[0])
    evaluations = [trainer(network, training).evaluate(start, images, labels) for network in (dropping, plain)]
    assert evaluations[0].loss_sum == evaluations[1].loss_sum


def test_dropout_depends_on_seed_round_and_client_alone():
    network = Network("mcmahan_cnn", (8, 8), 3, {"dropout": 0.5})
    image = samples(1, (8, 8))[0]
    images, labels = np.repeat(image, 10, axis=0), np.zeros(10, dtype=int)  # equal samples: their order does not matter
    engine = trainer(network, Training())
    start = initial_weights(network, 0)
    runs = [(1, 0, 0), (1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]
    results = [digest(engine.train(start, images, labels, seed=s, round=r, client=c).weights) for s, r, c in runs]
    assert results[0] == results[1]
    assert len(set(results)) == 4


def test_moving_statistics_move_in_training_and_are_used_in_evaluation(tiny):
    images, labels = samples(40, (8, 8))
    start = initial_weights(tiny, 0)
    engine = trainer(tiny, Training())
    statistics = [i for i, trainable in enumerate(tiny.trainable) if not trainable]
    after = engine.train(start, images, labels, seed=1, round=0, client=0).weights
    assert len(statistics) == 2
    assert len(generators(tiny)) == 1
    assert all(not np.allclose(after[i], start[i]) for i in statistics)
    replaced = [start[i] if i in statistics else array for i, array in enumerate(after)]
    assert engine.evaluate(after, images, labels).loss != engine.evaluate(replaced, images, labels).loss


def test_training_leaves_the_starting_weights_and_the_data_alone():
    images, labels = samples(20)
    start = initial_weights(MLP, 0)
    before = digest([*start, images, labels])
    weights = trainer(MLP, Training()).train(start, images, labels, seed=1, round=0, client=0).weights
    assert digest([*start, images, labels]) == before
    assert digest(weights) != digest(start)
    assert [array.dtype for array in weights] == [np.float32] * 4


@pytest.mark.parametrize("workers", [2, 4])
def test_a_thread_pool_gives_bit_for_bit_what_a_loop_gives(tiny, workers):
    engine = trainer(tiny, Training("nadam", batch_size=4, epochs=2))
    start = initial_weights(tiny, 0)
    clients = [samples(10 + 3 * client, (8, 8), seed=client) for client in range(8)]

    def train(client):
        return digest(engine.train(start, *clients[client], seed=1, round=0, client=client).weights)

    alone = [train(client) for client in range(8)]
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(3):
            assert list(pool.map(train, range(8))) == alone


def test_another_process_gives_bit_for_bit_the_same():
    code = (
        "from tests.test_training import *\n"
        "network = Network('small_cnn', (8, 8))\n"
        "images, labels = samples(64, (8, 8), 10)\n"
        "start = initial_weights(network, 5)\n"
        "engine = trainer(network, Training('momentum', learning_rate=0.05, epochs=2))\n"
        "answer = digest(engine.train(start, images, labels, seed=1, round=0, client=0).weights)\n"
    )
    here: dict[str, str] = {}
    exec(code.replace("from tests.test_training import *", ""), {**globals()}, here)
    arguments = [sys.executable, "-c", code + "print(answer)"]
    there = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert there.stdout.split() == [here["answer"]]


def test_nothing_is_traced_again_for_other_sizes_rounds_rates_or_epochs(monkeypatch):
    network = Network("mlp", (4, 3), 3, {"hidden": (7,)})
    traces = []
    original = template(network).stateless_call
    monkeypatch.setattr(
        template(network), "stateless_call", lambda *a, **k: (traces.append(k["training"]), original(*a, **k))[1]
    )
    start = initial_weights(network, 0)
    for n, settings in ((5, {}), (13, {}), (20, {"learning_rate": 0.3}), (21, {"epochs": 2}), (9, {"steps": 3})):
        engine = trainer(network, Training(**settings))
        for round in range(2):
            engine.train(start, *samples(n), seed=1, round=round, client=n)
            engine.evaluate(start, *samples(n))
    assert traces == [True, False]


def test_the_same_settings_give_the_same_trainer():
    assert trainer(MLP, Training()) is trainer(Network("mlp", (4, 3), 3, {"hidden": [5]}), Training())


def test_an_mlp_learns_the_digits():
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target
    network = Network("mlp", (8, 8), 10, {"scale": 16})
    engine = trainer(network, Training(learning_rate=0.2, epochs=8))
    start = initial_weights(network, 0)
    trained = engine.train(start, images[:1300], labels[:1300], seed=0, round=0, client=0)
    before, after = (engine.evaluate(w, images[1300:], labels[1300:]) for w in (start, trained.weights))
    assert before.accuracy < 0.3
    assert after.accuracy > 0.9
    assert trained.loss < before.loss


def test_evaluation_in_batches_equals_the_formula():
    from sklearn.metrics import accuracy_score, f1_score, log_loss

    images, labels = samples(1203)
    weights = initial_weights(LINEAR, 3)
    result = Trainer(LINEAR, Training()).evaluate(weights, images, labels)
    scores = np.exp(images.reshape(1203, -1) / 255 @ weights[0] + weights[1])
    predictions = scores.argmax(axis=1)
    assert result.samples == 1203
    assert result.confusion.dtype == np.int64
    assert result.loss == pytest.approx(log_loss(labels, scores / scores.sum(axis=1, keepdims=True)), rel=1e-5)
    assert result.accuracy == pytest.approx(accuracy_score(labels, predictions))
    assert result.macro_f1 == pytest.approx(f1_score(labels, predictions, average="macro"))
    parts = [
        Trainer(LINEAR, Training()).evaluate(weights, images[s], labels[s]) for s in (slice(700), slice(700, None))
    ]
    pooled = parts[0] + parts[1]
    assert np.array_equal(pooled.confusion, result.confusion)
    assert pooled.loss == pytest.approx(result.loss)


def test_macro_f1_counts_predicted_classes_and_leaves_out_unseen_ones():
    confusion = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]])
    result = Evaluation(0.0, confusion)
    assert result.macro_f1 == pytest.approx((2 / 3 + 0 + 1) / 3)
    np.testing.assert_array_equal(result.per_class, [0.5, np.nan, 1.0, np.nan])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(0, int), "images": np.zeros((0, 4, 3), np.uint8)}, "client 7 has no samples"),
        ({"images": np.zeros((6, 4, 3))}, "client 7 has images of type float64: use uint8"),
        ({"images": np.zeros((6, 3, 4), np.uint8)}, r"client 7 has images \(6, 3, 4, 1\).*must be \(n, 4, 3, 1\)"),
        ({"labels": np.zeros(5, int)}, r"client 7 has images .* and labels \(5,\)"),
        ({"labels": np.array([0, 1, 2, 3, 0, 0])}, "client 7 has int64 labels 0 to 3: use integers 0 to 2"),
        ({"labels": np.array([0, 1, 2, -1, 0, 0])}, "client 7 has int64 labels -1 to 2"),
        ({"labels": np.zeros(6)}, "client 7 has float64 labels"),
        ({"start": [np.zeros((3, 3)), np.zeros(3)]}, r"weights have shapes .* linear has .*: use its own weights"),
    ],
)
def test_unsuitable_data_is_refused_naming_the_client(change, message):
    images, labels = samples(6)
    arguments = {"start": initial_weights(LINEAR, 0), "images": images, "labels": labels} | change
    with pytest.raises(ValueError, match=message):
        trainer(LINEAR, Training()).train(**arguments, seed=0, round=0, client=7)


def test_a_client_that_fills_no_batch_is_refused_only_if_the_remainder_is_dropped():
    images, labels = samples(6)
    start = initial_weights(LINEAR, 0)
    assert trainer(LINEAR, Training()).train(start, images, labels, seed=0, round=0, client=7).steps == 1
    with pytest.raises(ValueError, match="client 7 has 6 samples, less than a batch of 10: keep the remainder"):
        trainer(LINEAR, Training(drop_remainder=True)).train(start, images, labels, seed=0, round=0, client=7)


def test_evaluation_data_is_checked():
    with pytest.raises(ValueError, match="the evaluation data has no samples"):
        trainer(LINEAR, Training()).evaluate(initial_weights(LINEAR, 0), *samples(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "rmsprop"}, "optimizer 'rmsprop' is unknown: choose one of sgd, momentum, adam, nadam"),
        ({"learning_rate": 0}, "learning_rate is 0: use a number > 0"),
        ({"decay": float("nan")}, "decay is nan"),
        ({"epochs": 0}, "epochs is 0: use a whole number >= 1"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"steps": 0}, "steps is 0"),
        ({"batch_size": None}, "batch_size is None without steps: give one of them, or both"),
        ({"momentum": 1}, "momentum is 1: use a number from 0 to below 1"),
        ({"ema": -0.1}, "ema is -0.1"),
        ({"l2": -1}, "l2 is -1: use a number >= 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Training(**settings)
