"""Ask for a run and get its record: read if it is there, computed, checkpointed and kept if it is not.

A ``Run`` names everything that determines a result; its key is the hash of that. A run may start from another's
round, so that runs with a common beginning compute it once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from cflib import checkpoints
from cflib.arrays import IntArray, Weights
from cflib.drive import conduct, first_state, runtime_of
from cflib.experiment import Measures, Run
from cflib.files import lock
from cflib.grid import State
from cflib.keys import NoStableNameError, key
from cflib.measures import ScoringRuntime
from cflib.places import folder
from cflib.progress import Progress
from cflib.recall import Recall
from cflib.records import Record, Store
from cflib.server import RoundError, parents

__all__ = ["Measures", "Run", "Store", "gather", "models_after", "run", "run_all", "run_on"]

Name = TypeVar("Name", bound=Hashable)


def run_all(
    specs: Sequence[Run],
    *,
    store: Store | None = None,
    workers: int | None = None,
    progress: bool = True,
    snapshots: Iterable[int] = (),
) -> list[Record]:
    """Return the records of several runs, computing those that are missing, as :func:`gather` does."""
    named = dict(enumerate(specs))
    return list(gather(named, store=store, workers=workers, progress=progress, snapshots=snapshots).values())


def gather(
    specs: Mapping[Name, Run],
    *,
    store: Store | None = None,
    compute: Callable[[Name], bool] = lambda name: True,
    workers: int | None = None,
    progress: bool = True,
    snapshots: Iterable[int] = (),
    recall: Recall | None = None,
) -> dict[Name, Record]:
    """Return by name the records of several runs under one line of progress.

    Finished runs are read, others are computed if ``compute`` says so of their name, and left out if not. Neighbours
    with the same data, network, training and seed compute the rounds that they share once, as far as ``recall`` holds
    their clients' models (1 GB; give a larger one for large networks).
    """
    store, snapshots, recall = store or Store.of(), tuple(snapshots), recall or Recall()
    addresses = {name: _address(spec) for name, spec in specs.items()}
    read = {address: store.read(address) for address in set(addresses.values()) if isinstance(address, str)}
    found: dict[str | int, Record] = {address: record for address, record in read.items() if record is not None}
    wanted = [name for name in specs if compute(name)]
    missing = {addresses[name]: specs[name] for name in wanted if addresses[name] not in found}
    with Progress("", sum(spec.rounds - spec.inherited for spec in missing.values()), enabled=progress) as line:
        for number, (address, spec) in enumerate(missing.items(), start=1):
            line.title = f"run {number} of {len(missing)}: {spec.method.name}, seed {spec.seed}"
            found[address] = run(spec, store=store, workers=workers, progress=line, snapshots=snapshots, recall=recall)
            line.skip(spec.rounds - spec.inherited)
    return {name: found[address] for name, address in addresses.items() if address in found}


def run(
    spec: Run,
    *,
    store: Store | None = None,
    workers: int | None = None,
    progress: bool | Progress = True,
    snapshots: Iterable[int] = (),
    recall: Recall | None = None,
) -> Record:
    """Return the record of a run, computing it if it is not there yet.

    ``snapshots`` names rounds whose models are kept beside the checkpoints, for other runs to start from; ``workers``
    is the number of clients trained at once; it and ``recall``, the work of earlier runs, change nothing but the time.
    """
    store = store or Store.of()
    try:
        name = spec.key
    except NoStableNameError as error:
        warnings.warn(f"this run is neither kept nor resumable: {error}", stacklevel=2)
        return _simulate(spec, None, store, workers, progress, frozenset(snapshots), "uncached", recall)
    place = _place(name)
    if not place.exists() and (finished := store.read(name)) is not None:
        return finished
    with lock(place.with_suffix(".lock")):
        record = store.read(name)  # another process may just have written it
        if record is None:
            record = _simulate(spec, place, store, workers, progress, frozenset(snapshots), name, recall)
            store.write(record)
        checkpoints.discard(place)
    return record


def run_on(
    runtime: ScoringRuntime, spec: Run, *, place: Path, progress: bool | Progress = True, snapshots: Iterable[int] = ()
) -> Record:
    """Return the record of a run on a runtime of the caller's choice, kept under ``place`` with its checkpoints.

    Apart from the runs computed here: elsewhere a client may fall silent, and the record then tells what happened, not
    what the specification determines. A checkpoint is written after every round, so that none is lost. Raises
    ``ValueError`` for a run that goes on from another: its models are not there.
    """
    if spec.start is not None:
        raise ValueError(f"{spec.method.name} goes on from another run: run that one and this one in one process")
    store, here = Store(place), place / "checkpoints" / spec.key
    with lock(here.with_suffix(".lock")):
        record = store.read(spec.key)
        if record is None:
            record = conduct(
                spec, runtime, name=spec.key, place=here, progress=progress, snapshots=frozenset(snapshots), every=0
            )
            store.write(record)
        checkpoints.discard(here)
    return record


def _address(spec: Run) -> str | int:
    """The run's key; a number of its own if it has none and is computed whenever it is asked for."""
    try:
        return spec.key
    except NoStableNameError:
        return id(spec)


def _place(name: str) -> Path:
    return folder("checkpoints", "CFLIB_CHECKPOINTS") / name


def _simulate(
    spec: Run,
    place: Path | None,
    store: Store,
    workers: int | None,
    progress: bool | Progress,
    snapshots: frozenset[int],
    name: str,
    recall: Recall | None = None,
) -> Record:
    opening = None if spec.start is None else partial(_branch, spec, store, workers, progress)
    known = recall.turn_to(_topic(spec)) if recall is not None and name != "uncached" else None
    runtime = runtime_of(spec, workers=workers, recall=known)
    try:
        return conduct(spec, runtime, name=name, place=place, opening=opening, progress=progress, snapshots=snapshots)
    finally:
        runtime.close()


def _topic(spec: Run) -> str:
    """What a client's reply depends on beside its job."""
    return key([spec.federation, spec.network, spec.training, spec.seed, spec.attack])


def models_after(
    spec: Run,
    round: int | None = None,
    *,
    store: Store | None = None,
    workers: int | None = None,
    progress: bool | Progress = True,
) -> tuple[tuple[Weights, ...], IntArray]:
    """Return the cluster models and labels after a round (counted from 1, by default the last) of a run.

    Records hold no weights. Models that were not kept as a snapshot are computed again, to the same bits. Raises
    ``ValueError`` for a round that the run does not have.
    """
    round = spec.rounds if round is None else round
    if not 1 <= round <= spec.rounds:
        raise ValueError(f"round is {round}, but {spec.method.name} has rounds 1 to {spec.rounds}")
    kept = checkpoints.load_snapshot(_place(spec.key), round)
    if kept is None:
        quiet = Measures(clients_every=round, clients=(), server=(), matrices_every=round)
        prefix = replace(spec, rounds=round, measures=quiet)
        place = _place(prefix.key)
        with lock(place.with_suffix(".lock")):
            kept = checkpoints.load_snapshot(place, round)
            if kept is None:
                computed = prefix.rounds - prefix.inherited
                with progress.more(computed) if isinstance(progress, Progress) else nullcontext():
                    _simulate(prefix, place, store or Store.of(), workers, progress, frozenset({round}), prefix.key)
                checkpoints.discard(place)
                kept = checkpoints.load_snapshot(place, round)
    if kept is None:
        raise RoundError(f"round {round} of {spec.method.name} could not be made again")
    return kept


def _branch(spec: Run, store: Store, workers: int | None, progress: bool | Progress) -> State:
    """Return the state from which a run starts that goes on from another: its clusters, the other's models."""
    assert spec.start is not None
    parent, round_ = spec.start
    models, labels = models_after(parent, round_, store=store, workers=workers, progress=progress)
    state = first_state(spec)
    if spec.method.models is None:
        models = tuple(models[p] for p in parents(labels, state.labels))
    elif len(models) != spec.method.models:
        there = f"{parent.method.name} has {len(models)} after round {round_}"
        raise ValueError(f"{spec.method.name} needs {spec.method.models} models to go on from, but {there}")
    state = replace(state, round=round_, models=models, clustered=None if len(models) == 1 else round_ - 1)
    return replace(state, shares=spec.method.give(state))
