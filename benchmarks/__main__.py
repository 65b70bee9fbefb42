"""Measure everything in one run, print it, and write ``benchmarks/README.md``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import core, steps
from cflib.provenance import provenance

WORK = {"mcmahan": 72.3e6}  # floating-point operations a sample, forward and backward
HERE = Path(__file__).parent
LABELS = {
    "ours": "this project",
    "fit": "`keras.Model.fit`, one process",
    "fit+": "`keras.Model.fit`, oneDNN switched on",
    "flower": "Flower simulation, Keras clients",
    "flower+": "Flower simulation, oneDNN switched on",
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


def engine_rows() -> tuple[list[str], float]:
    """Return the table of engines against each other, and our samples a second on the McMahan CNN."""
    from benchmarks.workloads import WORKLOADS

    bound = gemm_bound()
    reached = 0.0
    rows = [
        "| workload | engine | samples/s, steady | whole run | ours is |",
        "|---|---|---|---|---|",
    ]
    for name, load in WORKLOADS.items():
        samples = load.clients * load.samples
        engines = ["ours", "fit", "flower"] if name == "mlp" else ["ours", "fit", "fit+", "flower", "flower+"]
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
            reached, limit = speed["ours"], bound * 1e9 / WORK[name]
            share = f"{speed['ours'] / limit:.0%} of it"
            rows.append(f"| {load.title} | GEMM bound ({bound:.0f} GFLOP/s) | {limit:,.0f} | | {share} |")
    return rows, reached


def core_rows() -> list[str]:
    """Return the table of the core against plain loops."""
    rows = ["| workload | ours | against | ratio |", "|---|---|---|---|"]
    for row in core.rows():
        rows.append("| " + " | ".join(row) + " |")
        print("  " + "  ".join(row), flush=True)
    return rows


def step_rows(samples: float) -> list[str]:
    """Return what one step is made of, and the server's share of a round."""
    one_thread = gemm_bound() / (os.cpu_count() or 1)
    rows = ["| operation, batch of 10, one thread | ms | GFLOP/s | of GEMM |", "|---|---|---|---|"]
    total = 0.0
    for name, milliseconds, work in steps.rows():
        total += milliseconds
        speed = work / milliseconds * 1e3
        rows.append(
            f"| {name} | {milliseconds:.2f} | " + (f"{speed:.0f} | {speed / one_thread:.0%} |" if work else "- | - |")
        )
    rows.append(
        f"| together | {total:.2f} | {10 * 72.3e-3 / total * 1e3:.0f} | {0.723 / total * 1e3 / one_thread:.0%} |"
    )
    louvain, flic = steps.server_share()
    whole, tenth = 60_000 / samples, 5 * 6_000 / samples
    return [
        *rows,
        "",
        "| server's work a round, 100 clients of the McMahan CNN | seconds | of the round |",
        "|---|---|---|",
        f"| Louvain CFL, 100 report, one epoch of 600 images | {louvain:.2f} | {louvain / (whole + louvain):.1%} |",
        f"| FLIC, 10 report, five epochs of 600 images | {flic:.2f} | {flic / (tenth + flic):.1%} |",
    ]


def main() -> None:
    """Measure and write the page."""
    print("core:")
    first = core_rows()
    print("engines (minutes):")
    second, samples = engine_rows()
    print("one step …")
    third = step_rows(samples)
    (HERE / "README.md").write_text(page(first, second, third))
    print((HERE / "README.md").read_text())


def page(first: list[str], second: list[str], third: list[str]) -> str:
    """Return the page of all tables."""
    made = provenance()
    return f"""# Speed

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

## Where a step goes

The GEMM bound counts arithmetic alone, at the speed of a large NumPy product: a reference, which a convolution that
needs fewer operations may beat. Below, every operation of a step of the McMahan CNN by itself: small products
(a batch is ten images) and what is bound by memory, such as the update of 1.6 million weights, run below it.

{chr(10).join(third)}
"""


if __name__ == "__main__":
    main()
