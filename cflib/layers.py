"""Faster kernels for layers of Keras's MobileNets: the same functions, for small images on a processor.

Keras normalises a batch in a dozen passes over it, where TensorFlow has one fused operation; a convolution of 1x1 is a
matrix product; and where an image has shrunk to a few pixels, the gradient of a depthwise kernel is a small product a
channel. Results differ from Keras's in the last bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cflib.arrays import FloatArray
from cflib.backend import load_tensorflow

SMALL = 4  # pixels along the side up to which the gradient of a depthwise kernel is taken as a product


def quicken(model: Any) -> Any:
    """Return a Keras model of the same layers, names and weights with faster kernels where there are any."""
    tf, keras = load_tensorflow()

    class Normalisation(keras.layers.BatchNormalization):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
            fused, given = tf.compat.v1.nn.fused_batch_norm, (inputs, self.gamma, self.beta)
            if not training:
                moments = (self.moving_mean, self.moving_variance)
                return fused(*given, *moments, epsilon=self.epsilon, is_training=False)[0]
            outputs, mean, variance = fused(*given, epsilon=self.epsilon)[:3]
            n = tf.cast(tf.size(inputs) // tf.size(mean), tf.float32)
            for kept, new in ((self.moving_mean, mean), (self.moving_variance, variance * ((n - 1) / n))):
                kept.assign(kept * self.momentum + new * (1 - self.momentum))  # Keras keeps the biased variance
            return outputs

    class Pointwise(keras.layers.Conv2D):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
            products = tf.matmul(rows, tf.convert_to_tensor(self.kernel)[0, 0])
            outputs = tf.reshape(products, [-1, *inputs.shape[1:3], self.filters])
            return tf.nn.bias_add(outputs, self.bias) if self.use_bias else outputs

    class SmallDepthwise(keras.layers.DepthwiseConv2D):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            kernel = tf.convert_to_tensor(self.kernel)
            return _small_depthwise(inputs, kernel, self.strides[0], self.padding.upper())

    linear = keras.activations.linear

    def replaced(layer: Any) -> Any:
        kind, config = type(layer), layer.get_config()
        if kind is keras.layers.BatchNormalization and layer.center and layer.scale:
            kind = Normalisation
        elif kind is keras.layers.Conv2D and layer.kernel_size == layer.strides == (1, 1):
            kind = Pointwise if layer.activation is linear and layer.groups == 1 else kind
        elif kind is keras.layers.DepthwiseConv2D and max(layer.input.shape[1:3]) <= SMALL:
            plain = layer.activation is linear and not layer.use_bias and layer.depth_multiplier == 1
            kind = SmallDepthwise if plain and layer.dilation_rate == (1, 1) else kind
        return kind.from_config(config)

    return keras.models.clone_model(model, clone_function=replaced)


def _small_depthwise(inputs: Any, kernel: Any, stride: int, padding: str) -> Any:
    """Depthwise convolution whose kernel gradient joins every input place to every output place, channel by channel."""
    tf, _ = load_tensorflow()
    height, width, channels = inputs.shape[1:]
    options = {"strides": [1, stride, stride, 1], "padding": padding}

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def convolve(inputs: Any, kernel: Any) -> Any:
        outputs = tf.nn.depthwise_conv2d(inputs, kernel, **options)
        places = outputs.shape[1] * outputs.shape[2]
        rows = _taps(height, kernel.shape[0], stride, outputs.shape[1], padding)
        columns = _taps(width, kernel.shape[1], stride, outputs.shape[2], padding)
        taps = np.einsum("iyp,jxq->ijyxpq", rows, columns).reshape(kernel.shape[0] * kernel.shape[1], -1)

        def gradient(upstream: Any) -> Any:
            backward = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                input_sizes=tf.shape(inputs), filter=kernel, out_backprop=upstream, **options
            )
            before = tf.transpose(tf.reshape(inputs, [-1, height * width, channels]), [2, 1, 0])
            after = tf.transpose(tf.reshape(upstream, [-1, places, channels]), [2, 0, 1])
            joint = tf.reshape(tf.matmul(before, after), [channels, -1])
            return backward, tf.reshape(tf.matmul(tf.constant(taps), joint, transpose_b=True), kernel.shape)

        return outputs, gradient

    return convolve(inputs, kernel)


def _taps(size: int, window: int, stride: int, outputs: int, padding: str) -> FloatArray:
    """Along one axis: which tap of the window joins an input place to an output place ``(window, size, outputs)``.

    >>> _taps(2, 3, 1, 2, "SAME")[1].tolist()  # the middle one joins each place to itself
    [[1.0, 0.0], [0.0, 1.0]]
    """
    missing = max((outputs - 1) * stride + window - size, 0) if padding == "SAME" else 0
    tap, place, output = np.ogrid[:window, :size, :outputs]
    joined: FloatArray = (place == output * stride + tap - missing // 2).astype(np.float32)
    return joined
