"""Executed notebooks, verdicts and records made by hand, as the report would find them after a batch of runs."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cflib import claims, rules
from cflib.records import Record, Store

REFERENCE = Path(__file__).resolve().parent.parent / "data" / "reference"
MADE = {"cflib": "0.1.0", "commit": "abc123def456", "python": "3.11.7", "versions": {"numpy": "2.4.6"}, "lock": "77"}


def picture(width: int = 480, height: int = 320) -> str:
    """A PNG in base64, as a kernel sends it."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def prose(text: str, *tags: str, **more: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {"tags": list(tags)} if tags else {}, "source": text, **more}


def code(source: str, *outputs: dict[str, Any], tags: tuple[str, ...] = (), **metadata: Any) -> dict[str, Any]:
    about = {**metadata, **({"tags": list(tags)} if tags else {})}
    return {
        "cell_type": "code",
        "metadata": about,
        "execution_count": 1,
        "source": source.splitlines(keepends=True),
        "outputs": list(outputs),
    }


def shows(**bundle: Any) -> dict[str, Any]:
    """What a cell displays, by kind: ``png``, ``html``, ``text``, ..."""
    kinds = {"png": "image/png", "svg": "image/svg+xml", "html": "text/html", "text": "text/plain"}
    kinds |= {"markdown": "text/markdown", "latex": "text/latex", "widget": "application/vnd.jupyter.widget-view+json"}
    return {"output_type": "display_data", "metadata": {}, "data": {kinds[kind]: data for kind, data in bundle.items()}}


def prints(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def fails(name: str, message: str, *traceback: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": message, "traceback": list(traceback)}


def write(folder: Path, name: str, *cells: dict[str, Any], **metadata: Any) -> Path:
    """Write an executed notebook ``NN_slug.preset``."""
    about = {
        "papermill": {"duration": 73.2, "parameters": {"preset": name.partition(".")[2]}},
        "cflib": {"fingerprint": "f", "provenance": MADE},
        **metadata,
    }
    numbered = [{"id": f"c{number:02}", **cell} for number, cell in enumerate(cells, 1)]
    content = {"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": numbered}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_tour(folder: Path, name: str = "01_louvain_cfl.quick") -> Path:
    """Write a notebook that has a bit of everything but errors."""
    frame = pd.DataFrame({"method": ["FedAvg", "OCFL"], "accuracy": [0.71, 0.93]})
    return write(
        folder,
        name,
        prose("# See communities of clients\n\nOne model for all, or `00_start_here` first?"),
        code(
            'preset: str = "quick"  # parameters\nseeds: list[int] = [0, 1, 2]  # seeds\ndata: str = "cifar10"  # data',
            tags=("parameters",),
        ),
        prose(
            "## The distance between models\n\nFor clients $i$ and $j$,\n\n"
            "$$\\begin{aligned} d_{ij} &= \\prod_l \\left(1 + \\frac{\\lVert b_l - a_l \\rVert_F}"
            "{\\lVert a_l \\rVert_F}\\right) - 1 \\\\ s_{ij} &= \\max_{i<j} d_{ij} \\end{aligned}$$\n\n"
            "| $x$ | y |\n|---|--:|\n| a | 1 |\n\nBack to [the top](#See-communities-of-clients)."
        ),
        code("\n".join(f"step_{i} = {i}  # one of many lines that do not fit a phone" for i in range(20))),
        code("plot()", shows(png=picture(900, 500), text="<Figure>"), tags=("claim:L03", "claim:L05"), caption="Falls"),
        prose("### Seen\n\nAccuracy falls with $m_k$.", "claim:L03"),
        code("frame", prints("done\n"), shows(html=frame.to_html(), text=str(frame))),
    )


def write_results(folder: Path, slug: str = "01_louvain_cfl", preset: str = "long") -> None:
    """Write one verdict of each outcome."""
    ledger = claims.load()
    held: dict[str, tuple[bool | None, bool | None]] = {
        "L03": (True, True),
        "L05": (True, False),
        "L12": (False, False),
        "L04": (None, None),
    }
    verdicts = []
    for name, (first, others) in held.items():
        evidence = {
            label: rules.Finding(others if i else first, 0.5, (0.4, 0.6), 5, "five <seeds>")
            for i, label in enumerate(ledger[name].conditions)
        }
        outcome = rules.combine({label: finding.held for label, finding in evidence.items()})
        for arm in claims.ARMS if name == "L03" else claims.ARMS[:1]:
            verdicts.append(claims.Verdict(name, outcome, arm, preset, evidence, "", ledger[name].digest))
    claims.save(slug, preset, verdicts, MADE, folder)


def write_record(folder: Path, key: str = "a" * 20, **specification: Any) -> Path:
    """Write the record of a run of one round."""
    one = pd.DataFrame({"round": [1]})
    spec = {"is": "Run", "method": {"is": "Method"}, "federation": {"checksum": "f" * 64}, "rounds": 1, **specification}
    labels, nothing = np.zeros((1, 2), dtype=np.int16), np.zeros((0, 1), dtype=np.float32)
    record = Record(
        key, spec, one, one, one, labels, nothing, np.zeros(0, dtype=np.int32), provenance={**MADE, "seconds": 3.2}
    )
    return Store(folder).write(record)
