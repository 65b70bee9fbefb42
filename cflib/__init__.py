"""Clustered federated learning: distances, clustering, attribution, metrics, and every published method as a row.

Importing this package is cheap: submodules load when first touched (PEP 562), so neither TensorFlow, Flower,
papermill nor scikit-learn is imported before it is needed.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

__version__ = "0.1.0"

# One thread an operation makes training bit-for-bit repeatable whatever the number of workers; clients run in
# parallel instead. Set in the environment before TensorFlow loads, so that worker processes inherit it.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
# TensorFlow leaves oneDNN off on some processors, where it would halve the time of a convolution.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

__all__ = [
    "aggregation",
    "arrays",
    "attacks",
    "attribution",
    "claims",
    "clustering",
    "datasets",
    "distances",
    "experiment",
    "federation",
    "flower",
    "methods",
    "metrics",
    "models",
    "partition",
    "plots",
    "records",
    "runs",
    "simulation",
    "studies",
    "training",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"cflib.{name}")
    raise AttributeError(f"module 'cflib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
