"""A content address for everything that determines a result: equal inputs, equal key, in any process and on any day.

A function enters by its qualified name and its bound keywords; one of one's own by its source as well, so that an
edited notebook function is a new key, and so do the functions, classes, values and modules of one's own that it uses.
What came with ``cflib``, Python or a package enters by name. A lambda has no stable name: such a run works but is not
kept.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial, reduce
from importlib.util import resolve_name
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
        written = {} if _installed(type(value)) else _members(type(value))
        held = {f: canonical(v) for f, v in _changed(value).items()}
        return {"is": type(value).__qualname__, **held, **({"written": written} if written else {})}
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
    """Name a function; one of one's own with its source, its defaults and what it uses from around it."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    if _installed(function):
        return {"function": name}
    if not inspect.isfunction(function):
        raise NoStableNameError(f"{function!r} is no plain function: define one with def at the top level")
    if "<lambda>" in name or "<locals>" in name:
        raise NoStableNameError(f"{name} has no stable name: define it with def at the top level")
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError) as error:
        raise NoStableNameError(f"the source of {name} cannot be read: define it with def in a file or cell") from error
    seen |= {id(function)}
    around = {used: value for used, value in sorted(_around(function).items()) if id(value) not in seen}
    uses = {used: _used(value, seen) for used, value in around.items() if not _is_package(value)}
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


def _used(value: Any, seen: frozenset[int]) -> Any:
    if isinstance(value, ModuleType):
        return _module(value, seen)
    if isinstance(value, type):
        name = f"{value.__module__}.{value.__qualname__}"
        return name if _installed(value) else {"class": name, "written": _members(value, seen)}
    return _function(value, seen) if inspect.isroutine(value) else canonical(value)


def _module(module: ModuleType, seen: frozenset[int]) -> dict[str, Any]:
    """Name a module of one's own with its source, and with the modules of one's own that it imports."""
    seen |= {id(module)}
    source = Path(str(module.__file__)).read_bytes()
    imported = [sys.modules[name] for name in sorted(_imports(source, module.__package__)) if name in sys.modules]
    own = [one for one in imported if getattr(one, "__file__", None) and not _is_package(one) and id(one) not in seen]
    uses = {"uses": [_module(one, seen) for one in own]} if own else {}
    return {"module": module.__name__, "source": hashlib.sha256(source).hexdigest(), **uses}


def _imports(source: bytes, package: str | None) -> set[str]:
    """Return the names of all modules that a source may import: ``from a import b`` may mean ``a`` or ``a.b``."""
    names: set[str] = set()
    for step in ast.walk(ast.parse(source)):
        if isinstance(step, ast.Import):
            names |= {one.name for one in step.names}
        elif isinstance(step, ast.ImportFrom):
            home = resolve_name("." * step.level + (step.module or ""), package)
            names |= {home} | {f"{home}.{one.name}" for one in step.names}
    return names


def _members(cls: type, seen: frozenset[int] = frozenset()) -> dict[str, Any]:
    """Return what is written in a class of one's own and its bases: not what ``dataclass`` adds from the fields."""
    seen |= {id(cls)}
    inside = {name: getattr(one, "__func__", getattr(one, "fget", one)) for name, one in vars(cls).items()}
    inside = {name: one for name, one in inside.items() if _is_written(one) or not name.startswith("__")}
    written = {name: _used(one, seen) for name, one in sorted(inside.items()) if id(one) not in seen}
    bases = [_used(base, seen) for base in cls.__bases__ if base is not object]
    return written | ({"bases": bases} if bases else {})


def _is_written(value: Any) -> bool:
    return inspect.isfunction(value) and inspect.unwrap(value).__code__.co_filename != "<string>"


def _home(value: Any) -> ModuleType | None:
    """Return the module in which a function or class can be found under its own name, if there is one."""
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    path = str(getattr(value, "__qualname__", getattr(value, "__name__", ""))).split(".")
    found = reduce(lambda place, name: getattr(place, name, None), path, module)
    return module if found is value else None


def _installed(value: Any) -> bool:
    """Tell whether a function or class came with Python, with a package or with ``cflib``: its name says it all."""
    home = _home(value)
    return home is not None and _is_package(home)


def _is_package(value: Any) -> bool:
    """Tell whether this is a module that came with Python, with a package or with ``cflib``, not one's own."""
    if not inspect.ismodule(value) or value.__name__ == "__main__":
        return False
    file = getattr(value, "__file__", None)
    if file is None or value.__name__.split(".")[0] == "cflib":
        return True
    return any(Path(file).resolve().is_relative_to(place) for place in _library_folders())


@cache
def _library_folders() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(kind)).resolve() for kind in kinds})
