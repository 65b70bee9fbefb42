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
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial, reduce
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
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
        if value.dtype.hasobject:
            raise NoStableNameError(f"an array of Python objects, {value!r}, has no stable name: use plain numbers")
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
    inside = {module.__name__: module for module in _own_modules(source, function.__globals__)}
    around = {used: value for used, value in sorted((_around(function) | inside).items()) if id(value) not in seen}
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
    """Name a module of one's own with its source, of a folder all of it, and with those of one's own it imports."""
    seen |= {id(module)}
    folders = [Path(place) for place in getattr(module, "__path__", ())]
    files = sorted(path for place in folders for path in place.rglob("*.py")) or [Path(str(module.__file__))]
    sources = [path.read_bytes() for path in files]
    imported = {one.__name__: one for source in sources for one in _own_modules(source, vars(module))}
    own = [one for _, one in sorted(imported.items()) if id(one) not in seen]
    uses = {"uses": [_module(one, seen) for one in own]} if own else {}
    return {"module": module.__name__, "source": hashlib.sha256(b"\0".join(sources)).hexdigest(), **uses}


def _own_modules(source: bytes | str, around: Mapping[str, Any]) -> list[ModuleType]:
    """Return the modules of one's own that a source imports; one that it has not imported yet is imported."""
    found = []
    for name in sorted(_imports(source, around.get("__package__"))):
        with suppress(ImportError, ValueError):
            top = sys.modules.get(name.split(".")[0]) or find_spec(name.split(".")[0])
            if top is not None and not _is_package(top):
                found.append(import_module(name))
    return [module for module in found if not _is_package(module) and module.__name__ != "__main__"]


def _imports(source: bytes | str, package: str | None) -> set[str]:
    """Return the names of all modules that a source may import: ``from a import b`` may mean ``a`` or ``a.b``."""
    names: set[str] = set()
    if isinstance(source, str) and source[:1].isspace():  # a method is indented
        source = f"if True:\n{source}"
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a file beside one's modules that is no Python; its text enters all the same
        return names
    for step in ast.walk(tree):
        if isinstance(step, ast.Import):
            names |= {one.name for one in step.names}
        elif isinstance(step, ast.ImportFrom):
            with suppress(ImportError):  # a relative import outside of packages fails when it is run, too
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
    if isinstance(value, ModuleType):
        name, file, folders = value.__name__, getattr(value, "__file__", None), getattr(value, "__path__", ())
    elif isinstance(value, ModuleSpec):  # a module that is there, but not imported
        name, file = value.name, value.origin if value.has_location else None
        folders = value.submodule_search_locations or ()
    else:
        return False
    if name == "__main__":
        return False
    places = [file] if file else list(folders)  # a folder without __init__.py has no file; built-ins have neither
    return name.split(".")[0] == "cflib" or all(
        any(Path(place).resolve().is_relative_to(library) for library in _library_folders()) for place in places
    )


@cache
def _library_folders() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(kind)).resolve() for kind in kinds})
