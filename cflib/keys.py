"""A content address for everything that determines a result: equal inputs, equal key, in any process and on any day.

A function enters by its qualified name and its bound keywords; one from outside ``cflib`` by its source as well, so
that an edited notebook function is a new key, and so do the functions, values and modules of one's own that it uses. A
lambda has no stable name: such a run works but is not kept.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import json
import sysconfig
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

RESULTS_VERSION = 1
"""Raised whenever the same inputs give other results; a golden run on digits tells when."""


class NoStableNameError(ValueError):
    """Something in the specification cannot be named in a way that another process would understand."""


def key(specification: Any) -> str:
    """Return the content address of a specification: 20 hexadecimal digits.

    >>> key({"rounds": 3, "seed": 0}) == key({"seed": 0, "rounds": 3})
    True
    """
    text = json.dumps([RESULTS_VERSION, canonical(specification)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def canonical(value: Any) -> Any:
    """Return the same thing in terms of JSON; fields of a dataclass that hold their default are left out.

    So is a field with ``metadata={"determines": False}``, such as a name for people.
    """
    if hasattr(value, "checksum"):
        return {"checksum": value.checksum}
    if isinstance(value, partial):
        if value.args:
            raise NoStableNameError(f"{value} binds positional arguments: bind keywords, they name what they set")
        return {**canonical(value.func), "with": canonical(value.keywords)}
    if callable(value):
        return _function(value)
    if is_dataclass(value):
        return {"is": type(value).__qualname__, **{f: canonical(v) for f, v in _changed(value).items()}}
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((canonical(v) for v in value), key=json.dumps)
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"array": digest, "shape": list(value.shape), "type": str(value.dtype)}
    if isinstance(value, np.generic):
        return canonical(value.item())
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1 and 1.0 set the same thing
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NoStableNameError(f"{value!r} of type {type(value).__name__} has no stable name: use plain data or functions")


def _changed(value: Any) -> dict[str, Any]:
    changed = {}
    for one in fields(value):
        if not one.metadata.get("determines", True):
            continue
        held = getattr(value, one.name)
        default = one.default if one.default is not MISSING else None
        if one.default_factory is not MISSING:
            default = one.default_factory()
        if (one.default is MISSING and one.default_factory is MISSING) or not _same(held, default):
            changed[one.name] = held
    return changed


def _same(held: Any, default: Any) -> bool:
    return held is default or canonical(held) == canonical(default)


def _function(function: Any, seen: frozenset[int] = frozenset()) -> dict[str, Any]:
    """Name a function; one from outside ``cflib`` with its source, its defaults and what it uses from around it."""
    if not inspect.isfunction(function):
        raise NoStableNameError(f"{function!r} is no plain function: define one with def at the top level")
    name = f"{function.__module__}.{function.__qualname__}"
    if "<lambda>" in name or "<locals>" in name:
        raise NoStableNameError(f"{name} has no stable name: define it with def at the top level")
    if function.__module__.split(".")[0] == "cflib":
        return {"function": name}
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise NoStableNameError(f"the source of {name} cannot be read: define it with def in a file or cell") from error
    seen |= {id(function)}
    around = {used: value for used, value in sorted(_around(function).items()) if id(value) not in seen}
    uses = {used: _used(value, seen) for used, value in around.items() if not _installed(value)}
    return {"function": name, "source": hashlib.sha256(source.encode()).hexdigest(), "uses": uses}


def _around(function: Any) -> dict[str, Any]:
    """Return what a function uses beside its arguments, in its comprehensions and inner functions too."""
    codes: list[CodeType] = [function.__code__]
    names: set[str] = set()
    for code in codes:  # which grows meanwhile
        names |= {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        codes += [inner for inner in code.co_consts if inspect.iscode(inner)]
    around = {name: function.__globals__[name] for name in names & function.__globals__.keys()}
    around |= {**inspect.getclosurevars(function).nonlocals, **(function.__kwdefaults__ or {})}
    return around | {str(place): value for place, value in enumerate(function.__defaults__ or ())}


def _installed(value: Any) -> bool:
    """Tell whether this is a module that came with Python, with a package or with ``cflib``, not one's own."""
    if not inspect.ismodule(value):
        return False
    file = getattr(value, "__file__", None)
    if file is None or value.__name__.split(".")[0] == "cflib":
        return True
    places = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(file).resolve().is_relative_to(Path(place).resolve()) for place in places)


def _used(value: Any, seen: frozenset[int]) -> Any:
    if isinstance(value, ModuleType):
        return {"module": value.__name__, "source": hashlib.sha256(Path(str(value.__file__)).read_bytes()).hexdigest()}
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    return _function(value, seen) if inspect.isfunction(value) else canonical(value)
