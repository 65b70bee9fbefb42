"""Compiled local training and batched evaluation.

A client's whole local run is one TensorFlow call: a loop over batches with the weights handed in and out and no state
kept between calls, so that many threads may train at once. What a client learns depends only on its starting weights,
its data and (seed, round, client); operations run on one thread, so it does not depend on who else trains.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from cflib.arrays import FloatArray, IntArray, Weights, flatten, unflatten
from cflib.backend import load_tensorflow
from cflib.metrics import accuracy_of_confusion, macro_f1_of_confusion
from cflib.models import Network, generators, template
from cflib.optimizers import KEPT, updated

EVALUATION_BATCH = 500
_compiling = threading.Lock()  # tracing uses Keras's global tables


@dataclass(frozen=True)
class Training:
    """How a client trains, with a fresh optimizer every time.

    ``momentum`` belongs to the optimizer "momentum"; Adam and Nadam use Keras's constants. The learning rate is
    multiplied by ``decay ** round``. ``steps`` fixes the number of batches an epoch: the data is cut short or passed
    through again, in a new order. With ``batch_size=None`` an epoch is one pass instead, in batches of ceil(n / steps)
    of the client's n samples, so at most ``steps`` of them: what Keras does if only the steps are given. ``l2`` adds
    ``l2 * sum(w ** 2)`` over the kernels to the loss that is descended (not to the one reported). With ``ema`` a moving
    average of the weights, of this momentum, replaces them at the end. Values out of range raise ``ValueError``.
    """

    optimizer: Literal["sgd", "momentum", "adam", "nadam"] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    epochs: int = 1
    batch_size: int | None = 10
    drop_remainder: bool = False
    l2: float = 0.0
    ema: float | None = None
    steps: int | None = None
    decay: float = 1.0

    def __post_init__(self) -> None:
        if self.optimizer not in KEPT:
            raise ValueError(f"optimizer {self.optimizer!r} is unknown: choose one of {', '.join(KEPT)}")
        if self.batch_size is None and self.steps is None:
            raise ValueError("batch_size is None without steps: give one of them, or both")
        values = {name: value for name, value in asdict(self).items() if value is not None}
        for names, valid, remedy in _RANGES:
            for name in names & values.keys():
                if not valid(values[name]):
                    raise ValueError(f"{name} is {values[name]}: {remedy}")


class Trained(NamedTuple):
    """A client's weights after local training, the mean loss a sample met during it, and the number of steps."""

    weights: list[FloatArray]
    loss: float
    steps: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The summed loss and the confusion matrix ``(classes, classes)``, rows the truth, columns the prediction.

    >>> result = Evaluation(3.0, np.array([[1, 1], [0, 2]]))
    >>> result.loss, result.accuracy, round(result.macro_f1, 3), result.per_class.tolist()
    (0.75, 0.75, 0.733, [0.5, 1.0])
    """

    loss_sum: float
    confusion: IntArray

    def __add__(self, other: Evaluation) -> Evaluation:
        """Pool two evaluations, as if the samples had been evaluated together."""
        return Evaluation(self.loss_sum + other.loss_sum, self.confusion + other.confusion)

    @property
    def samples(self) -> int:
        """How many samples were evaluated."""
        return int(self.confusion.sum())

    @property
    def loss(self) -> float:
        """Mean loss a sample."""
        return self.loss_sum / self.samples

    @property
    def accuracy(self) -> float:
        """Share of samples predicted right."""
        return accuracy_of_confusion(self.confusion)

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that occur in the truth or in the predictions, as scikit-learn takes it."""
        return macro_f1_of_confusion(self.confusion)

    @property
    def per_class(self) -> FloatArray:
        """Share of each class predicted right ``(classes,)``; NaN for a class without samples."""
        samples = self.confusion.sum(axis=1)
        return np.where(samples > 0, np.diagonal(self.confusion) / np.maximum(samples, 1), np.nan)


class Trainer:
    """Trains and evaluates one network; safe to share between threads, which share what is compiled."""

    def __init__(self, network: Network, training: Training) -> None:
        self.network, self.training = network, training
        # Only these settings shape the graph: clusters with other rates or epochs share it.
        self._shaping = Training(training.optimizer, momentum=training.momentum, l2=training.l2, ema=training.ema)

    def train(
        self, start: Weights, images: IntArray, labels: IntArray, *, seed: int, round: int, client: int
    ) -> Trained:
        """Train from ``start`` on uint8 images ``(n, h, w)`` or ``(n, h, w, c)`` and labels ``(n,)``.

        Raises ``ValueError`` naming the client if its data does not suit the network or fills no batch.
        """
        images, labels = _check_data(self.network, images, labels, who=f"client {client}")
        origin = np.random.SeedSequence((seed, round, client))
        order, bounds = _batches(self.training, len(labels), origin, client)
        states = np.zeros((len(generators(self.network)), 2), dtype=np.int64)
        states[:, 0] = origin.spawn(1)[0].generate_state(len(states))
        rate = np.float32(self.training.learning_rate * self.training.decay**round)
        with _compiling:
            run = _compiled_run(self.network, self._shaping)
        vector, loss = _call(run, self.network, start, states, images, labels, order, bounds, rate)
        return Trained(unflatten(vector, start), float(loss) / len(order), len(bounds) - 1)

    def evaluate(self, weights: Weights, images: IntArray, labels: IntArray) -> Evaluation:
        """Evaluate without dropout and with the moving statistics of batch normalisation."""
        images, labels = _check_data(self.network, images, labels, who="the evaluation data")
        classes = self.network.classes
        with _compiling:
            predict = _compiled_prediction(self.network)
        loss, confusion = 0.0, np.zeros(classes**2, dtype=np.int64)
        for low in range(0, len(labels), EVALUATION_BATCH):
            pixels, truth = images[low : low + EVALUATION_BATCH], labels[low : low + EVALUATION_BATCH]
            losses, predictions = _call(predict, self.network, weights, pixels, truth)
            loss += float(np.sum(losses, dtype=np.float64))
            confusion += np.bincount(truth * classes + predictions, minlength=len(confusion))
        return Evaluation(loss, confusion.reshape(classes, classes))


@functools.lru_cache(maxsize=256)
def trainer(network: Network, training: Training) -> Trainer:
    """The trainer of these settings, the same one every time."""
    return Trainer(network, training)


@functools.lru_cache(maxsize=64)
def _compiled_run(network: Network, training: Training) -> Any:
    """(weights, generator states, images, labels, order, bounds, rate) -> (weights, summed loss), traced once.

    Weights travel as one vector: one tensor an array would cost more than the training of a small network.
    """
    tf, _ = load_tensorflow()
    ema = training.ema

    def descend(weights: Any, others: Any, slots: Any, pixels: Any, truth: Any, rate: Any, step: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            _, others, losses = _forward(network, weights, others, pixels, truth, training=True)
            loss = tf.reduce_mean(losses)
        # Where the update is linear in the gradient, the rate enters at the gradient's root: one pass over all less.
        factor = rate if training.optimizer in ("sgd", "momentum") else tf.constant(1.0)
        gradients = tape.gradient(loss, weights, output_gradients=factor)
        if training.l2 > 0:
            pairs = zip(gradients, weights, strict=True)
            gradients = [g + (2 * training.l2 * factor) * w if len(w.shape) > 1 else g for g, w in pairs]
        weights, slots = updated(
            tf, training.optimizer, training.momentum, weights, gradients, slots, rate, tf.cast(step + 1, tf.float32)
        )
        return weights, others, slots, tf.reduce_sum(tf.cast(losses, tf.float64))

    # Kept as a function of its own: inside the loop, which is a cycle, oneDNN replaces only some of the operations,
    # and which ones differs from process to process.
    descend = tf.function(descend, autograph=False, experimental_attributes={"_noinline": True})

    def run(vector: Any, states: Any, images: Any, labels: Any, order: Any, bounds: Any, rate: Any) -> Any:
        def body(step: Any, weights: Any, others: Any, slots: Any, average: Any, total: Any) -> Any:
            batch = order[bounds[step] : bounds[step + 1]]
            pixels, truth = tf.gather(images, batch), tf.gather(labels, batch)
            weights, others, slots, loss = descend(weights, others, slots, pixels, truth, rate, step)
            if ema is not None:
                keep = tf.where(step > 0, tf.constant(ema, tf.float32), 0.0)
                average = [keep * a + (1.0 - keep) * w for a, w in zip(average, weights, strict=True)]
            return step + 1, weights, others, slots, average, total + loss

        weights, others = _unpack(network, vector, states)
        slots = [[tf.zeros_like(w) for w in weights] for _ in range(KEPT[training.optimizer])] + [[tf.ones(())]]
        begin = (tf.constant(0), weights, others, slots, [] if ema is None else weights, tf.zeros((), tf.float64))
        last = tf.shape(bounds)[0] - 1
        _, weights, others, _, average, total = tf.while_loop(lambda step, *_: step < last, body, begin)
        return _pack(network, weights if ema is None else average, others), total

    vector, images, labels = _signature(network)
    states, rate = tf.TensorSpec([None, 2], tf.int64), tf.TensorSpec([], tf.float32)
    signature = [vector, states, images, labels, labels, labels, rate]
    return tf.function(run, input_signature=signature, autograph=False).get_concrete_function()


@functools.lru_cache(maxsize=64)
def _compiled_prediction(network: Network) -> Any:
    """(weights, images, labels) -> (losses, predicted classes), traced once."""
    tf, _ = load_tensorflow()

    def predict(vector: Any, images: Any, labels: Any) -> Any:
        weights, others = _unpack(network, vector, tf.zeros([len(generators(network)), 2], tf.int64))
        outputs, _, losses = _forward(network, weights, others, images, labels, training=False)
        return losses, tf.argmax(outputs, axis=-1)

    return tf.function(predict, input_signature=_signature(network), autograph=False).get_concrete_function()


def _forward(network: Network, weights: Any, others: Any, images: Any, labels: Any, *, training: bool) -> Any:
    tf, keras = load_tensorflow()
    pixels = tf.cast(images, tf.float32) / network.scale
    outputs, others = template(network).stateless_call(weights, others, pixels, training=training)
    logits = dict(network.options).get("output") != "sigmoid"
    return outputs, others, keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=logits)


def _signature(network: Network) -> tuple[Any, Any, Any]:
    spec = load_tensorflow()[0].TensorSpec
    return spec([network.parameters], "float32"), spec([None, *network.input_shape], "uint8"), spec([None], "int32")


def _unpack(network: Network, vector: Any, states: Any) -> tuple[list[Any], list[Any]]:
    """Cut a vector into Keras's trainable and other variables; the latter include the generators' states."""
    tf, model = load_tensorflow()[0], template(network)
    parts = tf.split(vector, [math.prod(shape) for shape in network.shapes])
    arrays = {id(v): tf.reshape(part, v.shape) for v, part in zip(model.weights, parts, strict=True)}
    arrays |= {id(v): states[position] for position, v in enumerate(generators(network))}
    return [arrays[id(v)] for v in model.trainable_variables], [arrays[id(v)] for v in model.non_trainable_variables]


def _pack(network: Network, trainable: list[Any], others: list[Any]) -> Any:
    tf, model = load_tensorflow()[0], template(network)
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    arrays = {id(v): array for v, array in zip(variables, [*trainable, *others], strict=True)}
    return tf.concat([tf.reshape(arrays[id(v)], [-1]) for v in model.weights], axis=0)


def _call(function: Any, network: Network, weights: Weights, *arguments: Any) -> list[Any]:
    if (shapes := tuple(np.shape(array) for array in weights)) != network.shapes:
        raise ValueError(f"weights have shapes {shapes}, {network.name} has {network.shapes}: use its own weights")
    vector = flatten(weights).astype(np.float32, copy=False)
    constant = load_tensorflow()[0].constant
    return [result.numpy() for result in function(*map(constant, (vector, *arguments)))]


def _batches(training: Training, n: int, origin: np.random.SeedSequence, client: int) -> tuple[IntArray, IntArray]:
    """The samples in the order in which they are met, and where each batch begins and the last one ends."""
    size, steps = training.batch_size, training.steps
    if size is None:
        size, steps = math.ceil(n / (steps or 1)), None  # one pass
    full = n // size if training.drop_remainder else math.ceil(n / size)
    if full == 0:
        raise ValueError(f"client {client} has {n} samples, less than a batch of {size}: keep the remainder")
    rng = np.random.default_rng(origin)
    orders, lengths = [], []
    for _ in range(training.epochs):
        missing = steps or full
        while missing > 0:
            taken = min(missing, full)
            orders.append(rng.permutation(n)[: taken * size])
            lengths += [size] * (taken - 1) + [len(orders[-1]) - (taken - 1) * size]
            missing -= taken
    return np.concatenate(orders).astype(np.int32), np.cumsum([0, *lengths]).astype(np.int32)


def _check_data(network: Network, images: IntArray, labels: IntArray, *, who: str) -> tuple[IntArray, IntArray]:
    images, labels = np.asarray(images), np.asarray(labels)
    if len(labels) == 0:
        raise ValueError(f"{who} has no samples: leave it out")
    if images.dtype != np.uint8:
        raise ValueError(f"{who} has images of type {images.dtype}: use uint8; the network's 'scale' divides them")
    images = images[..., None] if images.ndim == 3 else images
    if images.shape != (*labels.shape, *network.input_shape):
        expected = f"(n, {', '.join(map(str, network.input_shape))}) and (n,)"
        raise ValueError(f"{who} has images {images.shape} and labels {labels.shape}: shapes must be {expected}")
    low, high = labels.min(), labels.max()
    if not np.issubdtype(labels.dtype, np.integer) or low < 0 or high >= network.classes:
        raise ValueError(f"{who} has {labels.dtype} labels {low} to {high}: use integers 0 to {network.classes - 1}")
    return images, labels.astype(np.int32)


_RANGES: list[tuple[set[str], Callable[[Any], bool], str]] = [
    ({"learning_rate", "decay"}, lambda x: 0 < x < math.inf, "use a number > 0"),
    ({"epochs", "batch_size", "steps"}, lambda x: x >= 1 and x == int(x), "use a whole number >= 1"),
    ({"momentum", "ema"}, lambda x: 0 <= x < 1, "use a number from 0 to below 1"),
    ({"l2"}, lambda x: 0 <= x < math.inf, "use a number >= 0"),
]
