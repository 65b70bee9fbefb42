"""An executed notebook taken apart for reading: prose, code, and outputs, with its pictures as files.

A cell belongs to a claim if it carries the tag ``claim:ID``; it may carry several.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from cflib import prose
from cflib.parameters import declarations

PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n)")

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Output:
    """One thing that a cell showed: ``body`` is HTML, plain text, or the address of a picture."""

    kind: Literal["figure", "html", "text", "aside", "error"]
    body: str
    caption: str = ""
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Cell:
    """One cell, ready to be shown; ``body`` is HTML."""

    anchor: str
    kind: Literal["prose", "code"]
    body: str
    outputs: tuple[Output, ...] = ()
    claims: tuple[str, ...] = ()
    lines: int = 0


@dataclass(frozen=True)
class Notebook:
    """An executed notebook; ``files`` are the pictures by their address on the site."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    headings: tuple[tuple[int, str, str], ...]
    files: Mapping[str, bytes]
    parameters: Mapping[str, Any]
    made: Mapping[str, Any]
    complaints: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """The name of its source, ``NN_slug``."""
        return self.name.partition(".")[0]

    @property
    def preset(self) -> str:
        """The set of parameters it was run with."""
        return self.name.partition(".")[2]

    @property
    def failed(self) -> bool:
        """Whether a cell of it ended in an error."""
        return any(output.kind == "error" for cell in self.cells for output in cell.outputs)


def read(path: Path, link: Callable[[str], str | None] = prose.nowhere) -> Notebook:
    """Read an executed notebook; ``link`` tells where a link to another file leads.

    Raises ``ValueError`` if the file is no notebook of format 4.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        nodes = [{**cell, "source": "".join(cell["source"])} for cell in content["cells"]]
        if content["nbformat"] != 4:
            raise ValueError(f"format {content['nbformat']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} cannot be shown, it is no notebook of format 4: {error}") from None
    return _Reader(path.name.removesuffix(".ipynb"), link).notebook(nodes, content.get("metadata", {}))


class _Reader:
    """Walks through one notebook, collecting its pictures and headings."""

    def __init__(self, name: str, link: Callable[[str], str | None]) -> None:
        self.name = name
        self.files: dict[str, bytes] = {}
        self.place = prose.Place(link=link)

    def notebook(self, nodes: list[dict[str, Any]], metadata: Node) -> Notebook:
        cells = [
            self._prose(node, i) if node["cell_type"] == "markdown" else self._code(node, i)
            for i, node in enumerate(nodes, 1)
            if node["cell_type"] in ("markdown", "code") and node["source"].strip()
        ]
        tags = [_tags(node) for node in nodes]
        declared = next((node["source"] for node, own in zip(nodes, tags, strict=True) if "parameters" in own), "")
        defaults = {name: one.default for name, one in declarations(declared)[0].items()}
        headings = self.place.headings
        return Notebook(
            self.name,
            next((text for level, _, text in headings if level == 1), self.name.replace("_", " ")),
            tuple(_without_loose_ends(cells)),
            tuple(headings),
            self.files,
            {**defaults, **metadata.get("papermill", {}).get("parameters", {})},
            {**metadata.get("cflib", {}), "seconds": metadata.get("papermill", {}).get("duration")},
            tuple(f"{self.name}: {complaint}" for complaint in self.place.complaints),
        )

    def _prose(self, node: Node, number: int) -> Cell:
        attached: dict[str, str] = {}
        for name, bundle in node.get("attachments", {}).items():
            for media in PICTURES.keys() & bundle.keys():
                attached[f"attachment:{name}"] = self._keep(bundle[media], media, f"{number}-{len(attached) + 1}")
        self.place.picture = lambda url: attached.get(unquote(url))
        body = prose.render(node["source"], self.place)
        return Cell(_anchor(node, number), "prose", body, claims=_claims(node))

    def _code(self, node: Node, number: int) -> Cell:
        caption = self._caption(node)
        outputs: list[Output] = []
        for output in node.get("outputs", []):
            if shown := self._output(output, caption, f"{number}-{len(outputs) + 1}"):
                outputs.append(shown)
        source = node["source"]
        lines = len(source.splitlines())
        return Cell(_anchor(node, number), "code", prose.colour(source), tuple(outputs), _claims(node), lines)

    def _caption(self, node: Node) -> str:
        """Return what a cell says it shows: its own caption, its opening comment, or the heading it stands under."""
        if caption := node.get("metadata", {}).get("caption"):
            return str(caption)
        if comment := re.match(r"\s*#\s*(.+)", node["source"]):
            return comment[1].strip()
        return self.place.headings[-1][2] if self.place.headings else f"output of {self.name}"

    def _output(self, output: Node, caption: str, number: str) -> Output | None:
        if output["output_type"] == "stream":
            text = _OVERWRITTEN.sub("", _text("".join(output["text"]))).strip("\n")
            return Output("aside" if output["name"] == "stderr" else "text", text) if text else None
        if output["output_type"] == "error":
            lines = [f"{output['ename']}: {output['evalue']}", "", *output.get("traceback", [])]
            return Output("error", _text("\n".join(lines)))
        data = {
            media: value if isinstance(value, str) else "".join(value)
            for media, value in output["data"].items()
            if isinstance(value, str | list)
        }
        for media in PICTURES.keys() & data.keys():
            address = self._keep(data[media], media, number)
            return Output("figure", address, caption, _size(self.files[address]))
        if "text/html" in data and (body := prose.clean(data["text/html"]).strip()):
            return Output("html", body, caption)
        for media in ("text/markdown", "text/latex"):
            if media in data:
                self.place.picture = prose.nowhere
                return Output("html", prose.render(data[media], self.place), caption)
        text = _text(data.get("text/plain", ""))
        return Output("text", text) if text.strip() else None

    def _keep(self, data: str | list[str], media: str, number: str) -> str:
        text = data if isinstance(data, str) else "".join(data)
        try:
            content = text.encode() if media == "image/svg+xml" else base64.b64decode(text, validate=False)
        except binascii.Error as error:
            raise ValueError(f"{self.name}: the picture {number} is damaged: {error}") from None
        address = f"figures/{self.name}-{number}.{PICTURES[media]}"
        self.files[address] = content
        return address


def _tags(node: Node) -> list[str]:
    return list(node.get("metadata", {}).get("tags", []))


def _claims(node: Node) -> tuple[str, ...]:
    return tuple(tag.removeprefix("claim:") for tag in _tags(node) if tag.startswith("claim:"))


def _anchor(node: Node, number: int) -> str:
    return f"cell-{re.sub(r'[^A-Za-z0-9_-]', '-', str(node.get('id', number))).removeprefix('cell-')}"


def _text(text: str) -> str:
    return _ANSI.sub("", text)


def _size(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, so that the page does not jump when it arrives."""
    if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
        return None
    width, height = struct.unpack(">II", content[16:24])
    return int(width), int(height)


def _without_loose_ends(cells: list[Cell]) -> list[Cell]:
    """Unlink what points to a place that the notebook does not have."""
    whole = "".join(cell.body for cell in cells)
    known = {html.unescape(name) for name in re.findall(r'\bid="([^"]+)"', whole)} | {cell.anchor for cell in cells}

    def kept(match: re.Match[str]) -> str:
        return match[0] if unquote(html.unescape(match[1])) in known else match[2]

    return [replace(cell, body=re.sub(r'<a [^>]*?href="#([^"]*)"[^>]*>(.*?)</a>', kept, cell.body)) for cell in cells]
