"""The parameters that a notebook declares, one a line: ``name: type = literal  # help``; their types, and their values.

The types are those that survive a YAML file, a command line and papermill alike.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DECLARATION = re.compile(
    r"(?P<name>[A-Za-z_]\w*)\s*:\s*(?P<type>[\w\[\], ]+?)\s*=\s*(?P<default>.+?)\s*#\s*(?P<help>\S.*)"
)
_PLAIN: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell."""

    name: str
    type: str
    default: Any
    help: str

    def __str__(self) -> str:
        return f"{self.name}: {self.type} = {self.default!r}  # {self.help}"


def declarations(source: str) -> tuple[dict[str, Parameter], list[str]]:
    """Return the parameters that a cell declares, by name, and a complaint for every line that declares none.

    >>> declarations("rounds: int = 3  # rounds of training")[0]["rounds"].default
    3
    """
    declared: dict[str, Parameter] = {}
    complaints = []
    for line in (line.strip() for line in source.splitlines()):
        if not line or line.startswith("#"):
            continue
        try:
            one = _parameter(line)
        except ValueError as error:
            complaints.append(f"parameter line {line!r}: {error}")
            continue
        if one.name in declared:
            complaints.append(f"parameter {one.name} is declared twice")
        declared[one.name] = one
    return declared, complaints


def from_text(text: str, kind: str) -> Any:
    """Return the value of a declared type that a text from the command line stands for, or raise ``ValueError``.

    >>> from_text("0.5", "float"), from_text("[1, 2]", "list[int]"), from_text("a,b", "list[str]")
    (0.5, [1, 2], ['a', 'b'])
    """
    text = text.strip()
    if element := _element(kind):
        if text[:1] == "[" and text[-1:] == "]" and len(split_values(text)) == 1:
            text = text[1:-1]
        return [from_text(part, element) for part in split_values(text)] if text.strip() else []
    if kind == "str":
        return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    try:
        return {"true": True, "false": False}[text.lower()] if kind == "bool" else _PLAIN[kind](text)
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is not of type {kind}") from None


def from_file(value: Any, kind: str) -> Any:
    """Return a value from YAML as one of the declared type, or raise ``ValueError``; 1 may stand for 1.0 alone.

    >>> from_file(1, "float"), from_file(["a"], "list[str]")
    (1.0, ['a'])
    """
    if element := _element(kind):
        if isinstance(value, list):
            return [from_file(one, element) for one in value]
    elif kind == "float" and type(value) in (int, float):
        return float(value)
    elif type(value) is _PLAIN[kind]:
        return value
    hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if kind == "float" and isinstance(value, str) else ""
    raise ValueError(f"{value!r} is not of type {kind}{hint}")


def split_values(text: str) -> list[str]:
    """Split a text at the commas that stand outside brackets.

    >>> split_values("[0, 1], [2]")
    ['[0, 1]', '[2]']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _parameter(line: str) -> Parameter:
    match = _DECLARATION.fullmatch(line)
    if match is None:
        raise ValueError("write name: type = literal  # help")
    if line.count("=") > 1:
        raise ValueError("papermill cannot read a line with a second '='")
    try:
        default = ast.literal_eval(match["default"])
    except (ValueError, SyntaxError):
        raise ValueError("the default must be a literal, nothing derived") from None
    return Parameter(match["name"], match["type"], from_file(default, match["type"]), match["help"])


def _element(kind: str) -> str | None:
    """Return the type of a list's elements, or None for a plain type."""
    if kind in _PLAIN:
        return None
    match = re.fullmatch(r"list\[(.+)\]", kind)
    if match is None:
        # Neither YAML nor papermill knows tuples: a declared one would turn into a list as soon as it is set.
        raise ValueError(f"type {kind} is not one of {', '.join(_PLAIN)}, list[...]")
    _element(match[1])
    return match[1]
