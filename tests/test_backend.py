import os
import subprocess
import sys
from pathlib import Path

import pytest

import cflib
from cflib import backend
from cflib.backend import load_tensorflow

ROOT = Path(cflib.__file__).resolve().parent.parent


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "COV"))}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


def test_describing_a_network_does_not_import_tensorflow():
    code = "import sys, cflib.models as m, cflib.training; m.Network('resnet34', (32, 32, 3)).spec; print(*sys.modules)"
    modules = run_python(code).stdout.split()
    assert "cflib.training" in modules
    assert not {"tensorflow", "keras"} & set(modules)


def test_tensorflow_started_with_several_threads_before_cflib_is_refused():
    code = (
        "import tensorflow as tf; tf.config.threading.set_intra_op_parallelism_threads(2); tf.zeros(1)\n"
        "from cflib.models import build\n"
        "build('linear', input_shape=(2, 2))"
    )
    assert (
        "RuntimeError: TensorFlow already runs several threads an operation: restart the kernel and import cflib "
        in (run_python(code).stderr)
    )


def test_keras_models_built_after_importing_cflib_are_welcome_and_nothing_is_printed():
    code = (
        "import cflib.models as m, cflib.backend as b; b.load_tensorflow.cache_clear()\n"
        "with b._without_startup_log(): import tensorflow as tf, keras\n"
        "keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2)])\n"
        "m.build('linear', input_shape=(2, 2)); print('built', b._shares_operations(tf))"
    )
    finished = run_python(code)
    assert finished.stdout == "built False\n"
    assert finished.stderr == ""


def test_a_running_tensorflow_is_refused_only_if_it_shares_operations(monkeypatch):
    tf, keras = load_tensorflow()

    def refuse(threads):
        raise RuntimeError("cannot be modified after initialization")

    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", refuse)
    monkeypatch.setattr(backend, "_shares_operations", lambda tf: False)
    assert load_tensorflow.__wrapped__() == (tf, keras)
    monkeypatch.setattr(backend, "_shares_operations", lambda tf: True)
    with pytest.raises(RuntimeError, match="restart the kernel and import cflib first"):
        load_tensorflow.__wrapped__()


def test_operations_are_not_shared_here():
    assert not backend._shares_operations(load_tensorflow()[0])


def test_another_keras_backend_is_refused(monkeypatch):
    _, keras = load_tensorflow()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="Keras runs on jax: unset KERAS_BACKEND"):
        load_tensorflow.__wrapped__()


def test_only_the_startup_lines_of_tensorflow_are_hidden(capfd):
    with backend._without_startup_log():
        os.write(2, b"WARNING: All log messages before absl::InitializeLog()\nI0000 00:00 stub\nE0000 broken\nmine\n")
    assert capfd.readouterr().err == "E0000 broken\nmine\n"


def test_a_closed_error_stream_is_left_alone(monkeypatch):
    def closed(descriptor):
        raise OSError

    monkeypatch.setattr(os, "dup", closed)
    with backend._without_startup_log():
        pass
