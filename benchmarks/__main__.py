"""Measure everything in one run, print it, and write ``benchmarks/README.md``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import core
from cflib.provenance import provenance

WORK = {"mcmahan": 72.3e6}  # floating-point operations a sample, forward and backward
HERE = Path(__file__).parent
LABELS = {
    "ours": "this project",
    "fit": "`keras.Model.fit`, one process",
    "fit+": "the same, oneDNN switched on",
    "flower": "Flower simulation, Keras clients",
    "flower+": "the same, oneDNN switched on",
}


def measure(engine: str, workload: str) -> dict[str, list[float] | float]:
    """Run one workload on one engine in a process of its own."""
    print(f"  {engine:>7}  {workload} …", end=" ", flush=True)
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0", "PYTHONWARNINGS": "ignore"}
    environment |= {"BENCH_ONEDNN": "1"} if engine.endswith("+") else {}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engines", engine.rstrip("+"), workload],
        capture_output=True,
        text=True,
        env=environment,
        cwd=HERE.parent,
        timeout=1800,
    )
    if done.returncode:
        raise SystemExit(f"{engine} on {workload} failed:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    result["whole"] = time.perf_counter() - began
    print(f"{result['whole']:.0f} s", flush=True)
    return result


def gemm_bound() -> float:
    """Return the float32 GFLOP/s of a large matrix product on all cores."""
    a, b = (np.random.default_rng(0).random((2048, 2048), dtype=np.float32) for _ in range(2))
    best = np.inf
    for _ in range(8):
        began = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - began)
    return 2 * 2048**3 / best / 1e9


def engine_rows() -> list[str]:
    """Return the table of engines against each other."""
    from benchmarks.workloads import WORKLOADS

    bound = gemm_bound()
    rows = [
        "| workload | engine | samples/s, steady | whole run | ours is |",
        "|---|---|---|---|---|",
    ]
    for name, load in WORKLOADS.items():
        samples = load.clients * load.samples
        engines = ["ours", "fit", "flower", *{"mcmahan": ["fit+", "flower+"], "mobilenet": ["fit+"]}.get(name, [])]
        found = {engine: measure(engine, name) for engine in engines}
        speed = {engine: samples / float(np.mean(r["rounds"][1:])) for engine, r in found.items()}  # type: ignore[index]
        for engine, result in found.items():
            faster = speed["ours"] / speed[engine]
            whole = float(result["whole"]) / float(found["ours"]["whole"])  # type: ignore[arg-type]
            ratio = "" if engine == "ours" else f"**{faster:.1f}x** steady, **{whole:.1f}x** with start-up"
            rows.append(
                f"| {load.title} | {LABELS[engine]} | {speed[engine]:,.0f} | {result['whole']:.1f} s | {ratio} |"
            )
        if name in WORK:
            limit = bound * 1e9 / WORK[name]
            share = f"{speed['ours'] / limit:.0%} of it"
            rows.append(f"| {load.title} | GEMM bound ({bound:.0f} GFLOP/s) | {limit:,.0f} | | {share} |")
    return rows


def core_rows() -> list[str]:
    """Return the table of the core against plain loops."""
    rows = ["| workload | ours | against | ratio |", "|---|---|---|---|"]
    for row in core.rows():
        rows.append("| " + " | ".join(row) + " |")
        print("  " + "  ".join(row), flush=True)
    return rows


def main() -> None:
    """Measure and write the page."""
    made = provenance()
    print("core:")
    first = core_rows()
    print("engines (minutes):")
    second = engine_rows()
    page = f"""# Speed

Ratios against named peers, measured in one run on one machine by `make bench`; only the ratios carry over to others.
Machine: {made["processor"]}, {os.cpu_count()} cores, widest vector instructions {made["instructions"]}; TensorFlow
{made["versions"]["tensorflow"]}, Flower {made["versions"]["flwr"]}.

## The core

{chr(10).join(first)}

## The engine

Same federation, network, batch size and number of rounds. *Steady* leaves out the first round; *whole run* is a fresh
process from start to end, imports and compilation included. The peers run as a user has them: TensorFlow's defaults,
which leave oneDNN off on some processors (rows with it switched on beside them), one CPU a client in Flower, and
clients that keep their model and data between rounds.

{chr(10).join(second)}
"""
    (HERE / "README.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
