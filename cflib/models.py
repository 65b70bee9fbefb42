"""Networks by name: what they are without TensorFlow, and Keras models and initial weights with it.

A :class:`Network` is a frozen description that can be hashed, compared and written as JSON; TensorFlow loads only
when its arrays are asked for. Weights are lists of arrays in the order of ``keras.Model.get_weights()``, which leaves
out the states of random generators: those are never averaged, sent or measured.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cflib.arrays import FloatArray
from cflib.backend import load_tensorflow
from cflib.layers import quicken

_building = threading.Lock()


@dataclass(frozen=True)
class Network:
    """A network by name; options left out take their defaults, so that equal networks have equal descriptions.

    ``input_shape`` is ``(h, w)`` or ``(h, w, channels)``; every network knows the option ``scale``, by which pixels are
    divided (255; 16 for digits; 1 for unscaled inputs). ``revision`` is not for the caller to set: it parts results of
    a network from those it gave before its kernels changed. An unknown name or option raises ``ValueError``.

    >>> Network("mlp", (8, 8), 10, {"hidden": [32], "scale": 16}).spec
    {'name': 'mlp', 'input_shape': [8, 8, 1], 'classes': 10, 'options': {'hidden': (32,), 'scale': 16.0}}
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int = 10
    options: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()
    revision: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.name not in NETWORKS:
            raise ValueError(f"network {self.name!r} is unknown: choose one of {', '.join(NETWORKS)}")
        shape = tuple(int(size) for size in self.input_shape)
        shape = (*shape, 1) if len(shape) == 2 else shape
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError(f"input shape is {self.input_shape}: use (height, width) or (height, width, channels)")
        if self.classes < 2:
            raise ValueError(f"classes is {self.classes}: a classifier needs at least 2")
        object.__setattr__(self, "input_shape", shape)
        object.__setattr__(self, "revision", REVISIONS.get(self.name, 0))
        object.__setattr__(self, "options", tuple(sorted(_complete(self.name, dict(self.options)).items())))

    @property
    def spec(self) -> dict[str, Any]:
        """The description as plain values, ready for JSON and for content hashes."""
        return {
            "name": self.name,
            "input_shape": list(self.input_shape),
            "classes": self.classes,
            "options": dict(self.options),
        }

    @property
    def scale(self) -> float:
        """The number by which pixels are divided."""
        return float(dict(self.options)["scale"])

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each array."""
        return tuple(tuple(variable.shape) for variable in template(self).weights)

    @property
    def trainable(self) -> tuple[bool, ...]:
        """Which arrays gradients change; the others are batch normalisation's moving statistics."""
        return tuple(bool(variable.trainable) for variable in template(self).weights)

    @property
    def parameters(self) -> int:
        """How many numbers all arrays hold together."""
        return sum(math.prod(shape) for shape in self.shapes)


def build(name: str, *, input_shape: tuple[int, ...], classes: int = 10, **options: Any) -> Any:
    """A new ``keras.Model`` from floating-point images ``(n, h, w, c)`` to logits ``(n, classes)``."""
    return _build(Network(name, input_shape, classes, options))


@functools.lru_cache(maxsize=32)
def template(network: Network) -> Any:
    """The one Keras model of this network in the process: its structure is used, never its values."""
    return _build(network)


def generators(network: Network) -> list[Any]:
    """The states of the network's random generators (dropout), which are variables but no weights."""
    weights = {id(variable) for variable in template(network).weights}
    return [variable for variable in template(network).non_trainable_variables if id(variable) not in weights]


def layers(network: Network) -> dict[str, tuple[int, ...]]:
    """The layers that hold weights, in the order of depth: name -> the places of their arrays in the weights."""
    places = {id(variable): place for place, variable in enumerate(template(network).weights)}
    held = {layer.name: [places[id(v)] for v in layer.weights if id(v) in places] for layer in template(network).layers}
    return {name: tuple(found) for name, found in held.items() if found}


def initial_weights(network: Network, seed: int) -> list[FloatArray]:
    """Initial weights, a function of the network and the seed alone (the same on every machine).

    Keras's defaults: kernels uniform within ``sqrt(6 / (fan_in + fan_out))`` (Glorot), scales and moving variances 1,
    all else 0.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}: use a number >= 0")
    return [_initial(variable, seed, position) for position, variable in enumerate(template(network).weights)]


def _build(network: Network) -> Any:
    _, keras = load_tensorflow()
    options = dict(network.options)
    del options["scale"]
    with _building:  # Keras numbers layers in a global table
        return NETWORKS[network.name](keras, network.input_shape, network.classes, **options)


def _initial(variable: Any, seed: int, position: int) -> FloatArray:
    shape = tuple(variable.shape)
    if len(shape) > 1:
        area = math.prod(shape[:-2])
        limit = math.sqrt(6 / (area * (shape[-2] + shape[-1])))
        rng = np.random.default_rng(np.random.SeedSequence((seed, position)))
        return rng.uniform(-limit, limit, shape).astype(np.float32)
    one = variable.path.endswith(("gamma", "moving_variance"))
    return np.full(shape, 1.0 if one else 0.0, dtype=np.float32)


def _complete(name: str, given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(NETWORKS[name]).parameters.values()
    known = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} | {"scale": 255.0}
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"network {name!r} has no option {unknown[0]!r}: it knows {', '.join(sorted(known))}")
    return {option: _checked(option, given.get(option, default)) for option, default in known.items()}


def _checked(option: str, value: Any) -> Any:
    if option == "hidden":
        value = tuple(int(units) for units in value)
        valid = bool(value) and min(value) > 0
    elif option == "output":
        valid = value in ("logits", "sigmoid")
    else:
        value = float(value)
        valid = 0 <= value < 1 if option == "dropout" else 0 < value < math.inf
    if not valid:
        raise ValueError(f"option {option!r} is {value!r}: {_RANGES[option]}")
    return value


_RANGES = {
    "alpha": "use a width factor > 0",
    "dropout": "use a share from 0 to below 1",
    "hidden": "use at least one layer, each of at least one unit",
    "output": "use 'logits' or 'sigmoid'",
    "scale": "use a divisor > 0",
}


def _mcmahan_cnn(keras: Any, shape: tuple[int, ...], classes: int, *, dropout: float = 0.0) -> Any:
    """McMahan's CNN (001, 003): 1,663,370 parameters for 28x28x1; 001 adds a dropout of 0.1 before the dense layer."""
    convolutions = [*_convolution(keras, 32, 5), *_convolution(keras, 64, 5)]
    return _stack(keras, shape, convolutions, _dropout(keras, dropout), _dense(keras, 512, classes))


def _small_cnn(keras: Any, shape: tuple[int, ...], classes: int) -> Any:
    """Two convolutions and a dense layer: 36 k parameters for 8x8x1, 220 k for 28x28x1, 282 k for 32x32x3."""
    return _stack(keras, shape, _convolution(keras, 32, 3), _convolution(keras, 64, 3), _dense(keras, 64, classes))


def _cnn_312k(keras: Any, shape: tuple[int, ...], classes: int, *, output: str = "logits") -> Any:
    """002's network for clients of two and five classes; published with a sigmoid after the last layer."""
    sizes = ((32, "same"), (64, "valid"), (128, "valid"), (128, "same"))
    convolutions = [layer for filters, padding in sizes for layer in _convolution(keras, filters, 3, padding)]
    last = [keras.layers.Activation("sigmoid")] if output == "sigmoid" else []
    return _stack(keras, shape, convolutions, _dense(keras, 512, classes), last)


def _cnn_25m(keras: Any, shape: tuple[int, ...], classes: int, *, dropout: float = 0.2) -> Any:
    """004's network for MNIST: convolutions without pooling, three hidden dense layers; 25,404,240 parameters."""
    convolutions = [keras.layers.Conv2D(n, 5, padding="same", activation="relu") for n in (16, 32, 32)]
    return _stack(keras, shape, convolutions, _dense(keras, 1000, 250, 100, classes, dropout=dropout))


def _mlp(keras: Any, shape: tuple[int, ...], classes: int, *, hidden: tuple[int, ...] = (64,)) -> Any:
    return _stack(keras, shape, _dense(keras, *hidden, classes))


def _linear(keras: Any, shape: tuple[int, ...], classes: int) -> Any:
    return _stack(keras, shape, _dense(keras, classes))


def _mobilenet(keras: Any, shape: tuple[int, ...], classes: int, *, alpha: float = 1.0, dropout: float = 0.001) -> Any:
    """MobileNet, version 1 (000): 137 arrays."""
    return _application(keras.applications.MobileNet, shape, alpha, classes, dropout=dropout)


def _mobilenet_v2(keras: Any, shape: tuple[int, ...], classes: int, *, alpha: float = 1.0) -> Any:
    """MobileNetV2 (002): 262 arrays, the last of which is the bias that 002 clusters."""
    return _application(keras.applications.MobileNetV2, shape, alpha, classes)


def _resnet34(keras: Any, shape: tuple[int, ...], classes: int) -> Any:
    """ResNet34 for 32x32 (004): a 3x3 stem without pooling, 3-4-6-3 basic blocks, 21,282,122 trainable parameters."""
    layers = keras.layers

    def normalised(x: Any, filters: int, size: int, stride: int = 1) -> Any:
        x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    inputs = layers.Input(shape)
    x = layers.ReLU()(normalised(inputs, 64, 3))
    for filters, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and filters > 64 else 1
            inner = normalised(layers.ReLU()(normalised(x, filters, 3, stride)), filters, 3)
            shortcut = normalised(x, filters, 1, stride) if stride == 2 else x
            x = layers.ReLU()(layers.Add()([inner, shortcut]))
    return keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))


NETWORKS: dict[str, Callable[..., Any]] = {
    "mcmahan_cnn": _mcmahan_cnn,
    "small_cnn": _small_cnn,
    "cnn_312k": _cnn_312k,
    "cnn_25m": _cnn_25m,
    "mobilenet": _mobilenet,
    "mobilenet_v2": _mobilenet_v2,
    "resnet34": _resnet34,
    "mlp": _mlp,
    "linear": _linear,
}
"""The builders by name; their keyword-only parameters are the options."""

REVISIONS = {"mobilenet": 1, "mobilenet_v2": 1}
"""How often a network has come to give other results; enters the key of its runs, and of no other network's."""


def _stack(keras: Any, shape: tuple[int, ...], *parts: list[Any]) -> Any:
    return keras.Sequential([keras.layers.Input(shape), *(layer for part in parts for layer in part)])


def _application(build: Any, shape: tuple[int, ...], alpha: float, classes: int, **options: Any) -> Any:
    return quicken(build(shape, alpha, weights=None, classes=classes, classifier_activation=None, **options))


def _convolution(keras: Any, filters: int, size: int, padding: str = "same") -> list[Any]:
    return [keras.layers.Conv2D(filters, size, padding=padding, activation="relu"), keras.layers.MaxPooling2D(2)]


def _dense(keras: Any, *units: int, dropout: float = 0.0) -> list[Any]:
    hidden = [[keras.layers.Dense(n, activation="relu"), *_dropout(keras, dropout)] for n in units[:-1]]
    return [keras.layers.Flatten(), *(layer for part in hidden for layer in part), keras.layers.Dense(units[-1])]


def _dropout(keras: Any, share: float) -> list[Any]:
    return [keras.layers.Dropout(share)] if share > 0 else []
