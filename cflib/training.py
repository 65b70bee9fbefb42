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
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from cflib.arrays import FloatArray, IntArray, Weights
from cflib.models import Network, load_tensorflow, template

EVALUATION_BATCH = 500
_compiling = threading.RLock()


@dataclass(frozen=True)
class Training:
    """How a client trains, with a fresh optimizer every time.

    ``momentum`` belongs to the optimizer "momentum"; Adam and Nadam use Keras's constants. The learning rate is
    multiplied by ``decay ** round``. ``steps`` fixes the number of batches an epoch: the data is cut short or passed
    through again, in a new order. ``l2`` adds ``l2 * sum(w ** 2)`` over the kernels to the loss that is descended (not
    to the one reported). With ``ema`` a moving average of the weights, of this momentum, replaces them at the end.
    Values out of range raise ``ValueError``.
    """

    optimizer: Literal["sgd", "momentum", "adam", "nadam"] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    epochs: int = 1
    batch_size: int = 10
    drop_remainder: bool = False
    l2: float = 0.0
    ema: float | None = None
    steps: int | None = None
    decay: float = 1.0

    def __post_init__(self) -> None:
        if self.optimizer not in _OPTIMIZERS:
            raise ValueError(f"optimizer {self.optimizer!r} is unknown: choose one of {', '.join(_OPTIMIZERS)}")
        for name in ("learning_rate", "decay"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: use a number > 0")
        for name in ("epochs", "batch_size", "steps"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"{name} is {count}: use a number >= 1")
        for name in ("momentum", "ema"):
            if (share := getattr(self, name)) is not None and not 0 <= share < 1:
                raise ValueError(f"{name} is {share}: use a number from 0 to below 1")
        if not 0 <= self.l2 < math.inf:
            raise ValueError(f"l2 is {self.l2}: use a number >= 0")


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
        return int(np.trace(self.confusion)) / self.samples

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that occur in the truth or in the predictions, as scikit-learn takes it."""
        occurrences = self.confusion.sum(axis=0) + self.confusion.sum(axis=1)
        there = occurrences > 0
        return float(np.mean(2 * np.diagonal(self.confusion)[there] / occurrences[there]))

    @property
    def per_class(self) -> FloatArray:
        """Share of each class predicted right ``(classes,)``; NaN for a class without samples."""
        samples = self.confusion.sum(axis=1)
        return np.where(samples > 0, np.diagonal(self.confusion) / np.maximum(samples, 1), np.nan)


class Trainer:
    """Trains and evaluates one network; safe to share between threads. Use :func:`trainer` to get one."""

    def __init__(self, network: Network, training: Training) -> None:
        self.network, self.training = network, training
        with _compiling:
            self._layout = _layout(network)
            self._run = _training_function(network, training.optimizer, training.momentum, training.l2, training.ema)
            self._predict = _prediction_function(network)

    def train(
        self, start: Weights, images: IntArray, labels: IntArray, *, seed: int, round: int, client: int
    ) -> Trained:
        """Train from ``start`` on uint8 images ``(n, h, w)`` or ``(n, h, w, c)`` and labels ``(n,)``.

        Raises ``ValueError`` naming the client if its data does not suit the network or fills no batch.
        """
        images, labels = _check_data(self.network, images, labels, who=f"client {client}")
        origin = np.random.SeedSequence((seed, round, client))
        order, bounds = _batches(self.training, len(labels), origin, client)
        rate = np.float32(self.training.learning_rate * self.training.decay**round)
        trainable, others = self._layout.split(start, origin)
        trainable, others, loss = self._run(trainable, others, images, labels, order, bounds, rate)
        return Trained(self._layout.join(trainable, others), float(loss) / len(order), len(bounds) - 1)

    def evaluate(self, weights: Weights, images: IntArray, labels: IntArray) -> Evaluation:
        """Evaluate without dropout and with the moving statistics of batch normalisation."""
        tf, _ = load_tensorflow()
        images, labels = _check_data(self.network, images, labels, who="the evaluation data")
        trainable, others = ([tf.constant(array) for array in part] for part in self._layout.split(weights))
        loss, confusion = 0.0, np.zeros(self.network.classes**2, dtype=np.int64)
        for low in range(0, len(labels), EVALUATION_BATCH):
            truth = labels[low : low + EVALUATION_BATCH]
            losses, predictions = self._predict(trainable, others, images[low : low + EVALUATION_BATCH], truth)
            loss += float(np.sum(losses.numpy(), dtype=np.float64))
            pairs = truth.astype(np.int64) * self.network.classes + predictions.numpy()
            confusion += np.bincount(pairs, minlength=len(confusion))
        return Evaluation(loss, confusion.reshape(self.network.classes, self.network.classes))


def trainer(network: Network, training: Training) -> Trainer:
    """The process's trainer for these settings: compiled functions are shared and never traced twice."""
    with _compiling:
        return _trainer(network, training)


@functools.lru_cache(maxsize=64)
def _trainer(network: Network, training: Training) -> Trainer:
    return Trainer(network, training)


@dataclass(frozen=True)
class _Layout:
    """Where the arrays of a model stand among Keras's trainable and other variables."""

    shapes: tuple[tuple[int, ...], ...]
    trainable: tuple[int, ...]
    others: tuple[int | None, ...]
    """Positions in the model; None for the state of a random generator."""

    def split(self, weights: Weights, origin: np.random.SeedSequence | None = None) -> tuple[list[Any], list[Any]]:
        """The trainable and the other arrays; ``origin`` decides the random generators' states (dropout)."""
        shapes = tuple(np.shape(array) for array in weights)
        if shapes != self.shapes:
            raise ValueError(f"weights have shapes {shapes}, the network has {self.shapes}: use its own weights")
        arrays = [np.asarray(array, dtype=np.float32) for array in weights]
        words = iter([0] * len(self.others) if origin is None else origin.generate_state(len(self.others) + 1)[1:])
        states = [np.array([next(words), 0], dtype=np.int64) if i is None else arrays[i] for i in self.others]
        return [arrays[i] for i in self.trainable], states

    def join(self, trainable: list[Any], others: list[Any]) -> list[FloatArray]:
        """The model's arrays in order, without the random generators' states."""
        places = {**dict(zip(self.trainable, trainable, strict=True)), **dict(zip(self.others, others, strict=True))}
        return [places[i].numpy() for i in range(len(self.shapes))]


def _layout(network: Network) -> _Layout:
    model = template(network)
    positions = {id(variable): position for position, variable in enumerate(model.weights)}
    return _Layout(
        network.shapes,
        tuple(positions[id(variable)] for variable in model.trainable_variables),
        tuple(positions.get(id(variable)) for variable in model.non_trainable_variables),
    )


@functools.lru_cache(maxsize=64)
def _training_function(network: Network, optimizer: str, momentum: float, l2: float, ema: float | None) -> Any:
    """Compile a local run: (trainable, others, images, labels, order, bounds, rate) -> (trainable, others, loss)."""
    tf, keras = load_tensorflow()
    model = template(network)
    n_slots, scaled, update = _OPTIMIZERS[optimizer]
    sigmoid = dict(network.options).get("output") == "sigmoid"

    def descend(
        weights: list[Any], others: list[Any], slots: Any, images: Any, labels: Any, batch: Any, rate: Any, step: Any
    ) -> Any:
        pixels = tf.cast(tf.gather(images, batch), tf.float32) / network.scale
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs, others = model.stateless_call(weights, others, pixels, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(
                tf.gather(labels, batch), outputs, from_logits=not sigmoid
            )
            loss = tf.reduce_mean(losses)
        # Where the update is linear in the gradient, the rate is put in at its root: one pass over the weights less.
        factor = rate if scaled else tf.constant(1.0)
        gradients = tape.gradient(loss, weights, output_gradients=factor)
        if l2 > 0:
            gradients = [
                g + (2 * l2 * factor) * w if len(w.shape) > 1 else g for g, w in zip(gradients, weights, strict=True)
            ]
        weights, slots = update(tf, weights, gradients, slots, rate, momentum, tf.cast(step + 1, tf.float32))
        return weights, others, slots, tf.reduce_sum(tf.cast(losses, tf.float64))

    # Kept as a function of its own: inside the loop, which is a cycle, oneDNN replaces only some of the operations,
    # and which ones may differ from process to process.
    descend = tf.function(descend, jit_compile=False, experimental_attributes={"_noinline": True})

    def run(trainable: Any, others: Any, images: Any, labels: Any, order: Any, bounds: Any, rate: Any) -> Any:
        def body(step: Any, weights: Any, others: Any, slots: Any, average: Any, total: Any) -> Any:
            batch = order[bounds[step] : bounds[step + 1]]
            weights, others, slots, loss = descend(weights, others, slots, images, labels, batch, rate, step)
            if ema is not None:
                keep = tf.where(step > 0, tf.constant(ema, tf.float32), 0.0)
                average = [keep * a + (1.0 - keep) * w for a, w in zip(average, weights, strict=True)]
            return step + 1, weights, others, slots, average, total + loss

        slots = [[tf.zeros_like(w) for w in trainable] for _ in range(n_slots)] + [[tf.ones(())]]
        begin = (tf.constant(0), trainable, others, slots, [] if ema is None else trainable, tf.zeros((), tf.float64))
        last = tf.shape(bounds)[0] - 1
        _, trainable, others, _, average, total = tf.while_loop(
            lambda step, *_: step < last, body, begin, parallel_iterations=1
        )
        return trainable if ema is None else average, others, total

    signature = [*_signature(tf, network), tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int32)]
    return tf.function(run, input_signature=[*signature, tf.TensorSpec([], tf.float32)], jit_compile=False)


@functools.lru_cache(maxsize=64)
def _prediction_function(network: Network) -> Any:
    """Compile (trainable, others, images, labels) -> (losses, predicted classes)."""
    tf, keras = load_tensorflow()
    model = template(network)
    sigmoid = dict(network.options).get("output") == "sigmoid"

    def predict(trainable: Any, others: Any, images: Any, labels: Any) -> Any:
        outputs, _ = model.stateless_call(
            trainable, others, tf.cast(images, tf.float32) / network.scale, training=False
        )
        losses = keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=not sigmoid)
        return losses, tf.argmax(outputs, axis=-1)

    return tf.function(predict, input_signature=_signature(tf, network), jit_compile=False)


def _signature(tf: Any, network: Network) -> list[Any]:
    model = template(network)
    return [
        [tf.TensorSpec(variable.shape, variable.dtype) for variable in model.trainable_variables],
        [tf.TensorSpec(variable.shape, variable.dtype) for variable in model.non_trainable_variables],
        tf.TensorSpec([None, *network.input_shape], tf.uint8),
        tf.TensorSpec([None], tf.int32),
    ]


def _batches(training: Training, n: int, origin: np.random.SeedSequence, client: int) -> tuple[IntArray, IntArray]:
    """The samples in the order in which they are met, and where each batch begins and the last one ends."""
    size = training.batch_size
    full = n // size if training.drop_remainder else math.ceil(n / size)
    if full == 0:
        raise ValueError(
            f"client {client} has {n} samples, fewer than a batch of {size}: use a smaller batch or keep the remainder"
        )
    rng = np.random.default_rng(origin)
    orders, lengths = [], []
    for _ in range(training.epochs):
        missing = training.steps or full
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
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[1:] != network.input_shape or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{who} has images of shape {images.shape} and labels of shape {labels.shape}, expected "
            f"(n, {', '.join(map(str, network.input_shape))}) and (n,)"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= network.classes:
        raise ValueError(
            f"{who} has labels from {labels.min()} to {labels.max()} ({labels.dtype}), expected integers from 0 to "
            f"{network.classes - 1}"
        )
    return images, labels.astype(np.int32)


Update = Callable[..., tuple[list[Any], list[list[Any]]]]


def _sgd(tf: Any, weights: Any, gradients: Any, slots: Any, rate: Any, momentum: float, step: Any) -> Any:
    return [w - g for w, g in zip(weights, gradients, strict=True)], slots


def _momentum(tf: Any, weights: Any, gradients: Any, slots: Any, rate: Any, momentum: float, step: Any) -> Any:
    velocities = [momentum * v - g for v, g in zip(slots[0], gradients, strict=True)]
    return [w + v for w, v in zip(weights, velocities, strict=True)], [velocities, slots[1]]


def _adam(tf: Any, weights: Any, gradients: Any, slots: Any, rate: Any, momentum: float, step: Any) -> Any:
    means, squares = _moments(tf, gradients, slots)
    rate = rate * tf.sqrt(1.0 - 0.999**step) / (1.0 - 0.9**step)
    moved = [w - m * rate / (tf.sqrt(s) + 1e-7) for w, m, s in zip(weights, means, squares, strict=True)]
    return moved, [means, squares, slots[2]]


def _nadam(tf: Any, weights: Any, gradients: Any, slots: Any, rate: Any, momentum: float, step: Any) -> Any:
    means, squares = _moments(tf, gradients, slots)
    now, later = (0.9 * (1.0 - 0.5 * 0.96 ** (step + ahead)) for ahead in (0.0, 1.0))
    product = slots[2][0] * now
    ahead, here, size = later / (1.0 - product * later), (1.0 - now) / (1.0 - product), 1.0 - 0.999**step
    moved = [
        w - rate * (ahead * m + here * g) / (tf.sqrt(s / size) + 1e-7)
        for w, g, m, s in zip(weights, gradients, means, squares, strict=True)
    ]
    return moved, [means, squares, [product]]


def _moments(tf: Any, gradients: Any, slots: Any) -> tuple[list[Any], list[Any]]:
    means = [m + (g - m) * (1 - 0.9) for m, g in zip(slots[0], gradients, strict=True)]
    squares = [s + (tf.square(g) - s) * (1 - 0.999) for s, g in zip(slots[1], gradients, strict=True)]
    return means, squares


_OPTIMIZERS: dict[str, tuple[int, bool, Update]] = {
    "sgd": (0, True, _sgd),
    "momentum": (1, True, _momentum),
    "adam": (2, False, _adam),
    "nadam": (2, False, _nadam),
}
"""Arrays kept a weight, whether gradients come multiplied by the learning rate, and the update (Keras's formulas)."""
