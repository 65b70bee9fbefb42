"""Outputs without what would differ on another day or machine, and no larger than they need to be."""

from __future__ import annotations

import base64
import io
import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from cflib.provenance import PROJECT

_PICTURES = ("image/png", "image/jpeg", "application/pdf")


def tidy(notebook: Any) -> None:
    """Take out of an executed notebook what would differ elsewhere though the results agree, and make it lighter."""
    notebook.metadata.kernelspec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook.metadata.get("language_info", {}).pop("version", None)
    for cell in notebook.cells:
        cell.metadata = {name: value for name, value in cell.metadata.items() if name != "papermill" and value != []}
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
        if cell.cell_type == "code":
            cell.outputs = [_lighter(impersonal(output)) for output in _joined(cell.outputs)]


def impersonal(value: Any) -> Any:
    """Replace this machine's folders, process numbers and addresses in every text of an output or page."""
    if isinstance(value, str):
        value = re.sub(r"[^\s\"'<>]*/ipykernel_\d+/\d+\.py", "cell", value)
        for root, instead in _roots():
            value = re.sub(rf"(?:(?<![\w.-])|(?<=\dm)){re.escape(root)}/", f"{instead}/" if instead else "", value)
            value = re.sub(rf"(?:(?<![\w.-])|(?<=\dm)){re.escape(root)}(?![\w-])", instead or ".", value)
        return re.sub(r"\bat 0x[0-9a-f]{6,}", "at 0x...", value)
    if isinstance(value, list):
        return [impersonal(one) for one in value]
    if isinstance(value, dict):
        return type(value)({name: one if name in _PICTURES else impersonal(one) for name, one in value.items()})
    return value


def _joined(outputs: list[Any]) -> list[Any]:
    """Join neighbouring pieces of one stream, which break at random, and let carriage returns overwrite."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == "stream" == last.get("output_type") and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            joined.append(output)
    for output in joined:
        if output["output_type"] == "stream":
            output["text"] = re.sub(r"[^\n]*\r(?!\n)", "", output["text"])
    return joined


def _lighter(output: Any) -> Any:
    """Save a picture with 256 colours: plots look the same at a third of the size. What is no opaque PNG stays."""
    from PIL import Image

    if "image/png" not in output.get("data", {}):
        return output
    smaller = io.BytesIO()
    with suppress(OSError, ValueError), Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"]))) as drawn:
        if drawn.mode in ("RGB", "RGBA") and drawn.convert("RGBA").getchannel("A").getextrema() == (255, 255):
            method = Image.Quantize.MAXCOVERAGE  # thin colour bars stay smooth
            plain = drawn.convert("RGB").quantize(256, method, kmeans=2, dither=Image.Dither.NONE)
            plain.save(smaller, "PNG", optimize=True, dpi=drawn.info.get("dpi"))
            output["data"]["image/png"] = base64.b64encode(smaller.getvalue()).decode("ascii")
    return output


def _roots() -> list[tuple[str, str]]:
    near = {str(Path.cwd()): "", str(PROJECT): ""}
    far = {sys.prefix: "...", sys.base_prefix: "...", tempfile.gettempdir(): "...", str(Path.home()): "~"}
    return sorted(((root, name) for root, name in (far | near).items() if root != "/"), key=lambda one: -len(one[0]))
