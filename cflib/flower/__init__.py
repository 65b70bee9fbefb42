"""The same methods on Flower: a runtime for its grid, the app that ``flwr run`` starts, a strategy, a deployment.

Flower loads when one of these is first touched.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["app", "certificates", "deployment", "runtime", "strategy"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"cflib.flower.{name}")
    raise AttributeError(f"module 'cflib.flower' has no attribute {name!r}")
