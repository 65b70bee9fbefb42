"""TensorFlow and Keras, loaded when first needed, quietly, and with one thread an operation."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RESTART = "restart the kernel and import cflib first"


@functools.lru_cache(maxsize=1)
def load_tensorflow() -> tuple[Any, Any]:
    """TensorFlow and Keras, with one thread an operation, on which bit-for-bit repeatable training rests.

    Raises ``RuntimeError`` if TensorFlow already runs otherwise, which can no longer be changed.
    """
    with _without_startup_log():
        import keras
        import tensorflow as tf
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(f"Keras runs on {keras.backend.backend()}: unset KERAS_BACKEND, {RESTART}")
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError as error:
        if _shares_operations(tf):
            raise RuntimeError(f"TensorFlow already runs several threads an operation: {RESTART}") from error
    return tf, keras


def _shares_operations(tf: Any) -> bool:
    # TensorFlow does not tell how many threads it runs. An operation called eagerly uses the calling thread alone,
    # unless it is shared among several: then nearly all time is spent elsewhere (a share of 0.9, against 0.0).
    values = tf.zeros([1 << 21])
    elsewhere = []
    for _ in range(3):
        process, own = time.process_time(), time.thread_time()
        for _ in range(10):
            tf.exp(values)
        process, own = time.process_time() - process, time.thread_time() - own
        elsewhere.append(1 - own / process)
    return min(elsewhere) > 0.5


@contextmanager
def _without_startup_log() -> Iterator[None]:
    # TensorFlow writes some lines to the error stream before its own log level applies; all others are passed on.
    try:
        saved = os.dup(2)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            captured.seek(0)
            for line in captured:
                if not line.startswith((b"I0000", b"WARNING: All log messages before absl")):
                    os.write(saved, line)
            os.close(saved)
