"""Drive one run on any runtime, round by round, with measures and checkpoints, from its first state to its record."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cflib import checkpoints
from cflib.experiment import Run
from cflib.grid import State
from cflib.measures import ScoringRuntime, Tables, measure
from cflib.models import initial_weights
from cflib.progress import Progress
from cflib.provenance import provenance
from cflib.recall import Recall
from cflib.records import Record
from cflib.server import serve, start
from cflib.simulation import Simulation

CHECKPOINT_SECONDS = 60.0


def conduct(
    spec: Run,
    runtime: ScoringRuntime,
    *,
    name: str,
    place: Path | None = None,
    opening: Callable[[], State] | None = None,
    progress: bool | Progress = True,
    snapshots: frozenset[int] = frozenset(),
    every: float | None = None,
) -> Record:
    """Drive a run on any runtime and return its record; with a ``place`` it resumes from its last checkpoint.

    Without one it begins from the state that ``opening`` makes, by default from nothing. A checkpoint is written
    between rounds, at most every ``every`` seconds (60 by default; 0: after every round).
    """
    clock = time.monotonic()
    stored = checkpoints.load(place) if place is not None else None
    if stored is not None:
        state, tables = stored[0], Tables.restored(*stored[1:])
    else:
        state, tables = first_state(spec) if opening is None else opening(), Tables()
    made = _made(spec)
    tables.begin({name: made[name] for name in ("commit", "instructions", "lock", "onednn")})

    saved = state.round

    def save() -> None:
        nonlocal clock, saved
        tables.seconds += time.monotonic() - clock
        clock = time.monotonic()
        if place is not None:
            checkpoints.save(place, state, tables.about, tables.rows_after(saved))
            saved = state.round

    if isinstance(progress, Progress):
        showing: AbstractContextManager[Progress] = nullcontext(progress)
    else:
        showing = Progress(spec.method.name, spec.rounds - spec.inherited, enabled=progress)
    with showing as line:
        line.resume(state.round - spec.inherited)
        try:
            for after in serve(spec.method, runtime, state, rounds=spec.rounds, seed=spec.seed, schedule=spec.schedule):
                measure(tables, spec, state, after, runtime)
                state = after
                line.update(state.round - spec.inherited, **tables.facts())
                if place is not None and state.round in snapshots:
                    checkpoints.save_snapshot(place, state)
                if time.monotonic() - clock > (CHECKPOINT_SECONDS if every is None else every):
                    save()
        except BaseException:
            tables.forget_after(state.round)
            if state.round > 0:
                save()
            raise
    tables.seconds += time.monotonic() - clock
    return tables.record(name, spec.specification if name != "uncached" else {}, made)


def first_state(spec: Run) -> State:
    """Return the state before the first round of a run that starts from nothing."""
    network = spec.network
    return start(
        spec.method,
        spec.federation.n_clients,
        lambda i: initial_weights(network, spec.seed + 1_000_003 * i),
        trainable=network.trainable,
    )


def runtime_of(spec: Run, *, workers: int | None = None, recall: Recall | None = None) -> Simulation:
    """Return the in-process runtime of a run; close it after use."""
    return Simulation(
        spec.federation,
        spec.network,
        spec.training,
        seed=spec.seed,
        attack=spec.attack,
        attendance=spec.attendance,
        workers=workers,
        recall=recall,
    )


def _made(spec: Run) -> dict[str, Any]:
    """How the run is made: the machine and versions, and in words what the specification holds as checksums."""
    split, data = spec.federation.partition, spec.federation.dataset
    return {
        **provenance(),
        "method": spec.method.name,
        "data": data.name,
        "data_checksum": data.checksum,
        "partition": f"{split.name}({', '.join(f'{k}={v}' for k, v in split.parameters.items())})",
    }
