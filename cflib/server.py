"""The one server loop: pure functions from state to state, without I/O, driven by any runtime.

A round is four steps, each a function of its own: *remember* what clients sent, *regroup* them if it is time,
*combine* the models of each cluster, *attribute* a model to every client. A method is a row of choices for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cflib import aggregation
from cflib.arrays import FloatArray, IntArray, Weights, renumber
from cflib.distances import shifted_cosine, update_shifted_cosine
from cflib.grid import Memory, Method, State
from cflib.planning import plan
from cflib.protocol import Job, Reply, Runtime, Schedule

INCREMENTAL: dict[Any, Callable[..., FloatArray]] = {shifted_cosine: update_shifted_cosine}
"""Comparisons that can renew single rows instead of the whole matrix."""


class RoundError(RuntimeError):
    """No client returned a usable reply, so the round could not be finished."""


def start(
    method: Method, n_clients: int, initial_model: Callable[[int], Weights], *, trainable: Sequence[bool] | None = None
) -> State:
    """Return the state before the first round; ``initial_model(i)`` gives the i-th independent initial model."""
    first = initial_model(0)
    labels = method.initial(n_clients)
    if method.models is None:
        models: tuple[Weights, ...] = (first,) * (int(labels.max()) + 1)
    else:
        models = (first, *(initial_model(i) for i in range(1, method.models)))
    mask = tuple(trainable) if trainable is not None else (True,) * len(first)
    empty = np.empty((n_clients, len(models)))
    state = State(0, models, labels, empty, mask, first, losses=((),) * len(models))
    return replace(state, shares=method.give(state))


def serve(
    method: Method, runtime: Runtime, state: State, *, rounds: int, seed: int, schedule: Schedule | None = None
) -> Iterator[State]:
    """Yield the state after each round, up to ``rounds`` in all; start from a stored state to resume."""
    schedule = schedule or Schedule()
    while state.round < rounds:
        jobs = plan(method, state, runtime.present(state.round), seed=seed, schedule=schedule)
        state = step(method, state, jobs, runtime.map(jobs), schedule=schedule)
        yield state


def step(method: Method, state: State, jobs: Sequence[Job], replies: Sequence[Reply], *, schedule: Schedule) -> State:
    """Return the state after the round: remember, regroup, combine, attribute."""
    if not jobs:  # nobody is there: the round passes and changes nothing
        return replace(state, round=state.round + 1, excluded={})
    sent = {job.client: job for job in jobs}
    usable, excluded = _sift(sent, replies, state.probe)
    if not usable and schedule.may_pass:
        matrix = state.matrix
        if matrix is not None and not (method.once and state.clustered is not None):
            matrix = matrix.copy()  # a new object: it holds for this round too
        return replace(state, round=state.round + 1, excluded=excluded, matrix=matrix)
    if not usable:
        raise RoundError(f"round {state.round + 1}: none of {len(jobs)} clients gave a usable reply: {excluded}")
    state = replace(state, excluded=excluded)
    state = _remember(method, state, sent, usable)
    trained = [reply for reply in usable if sent[reply.client].task == "train"]
    before = state
    state = _regroup(method, state)
    state = _combine(method, before, state, trained)
    state = _follow(state, trained, schedule)
    state = replace(state, round=state.round + 1)
    return replace(state, shares=method.give(state))


def generic_model(models: Sequence[Weights], labels: IntArray, clusters: Sequence[int]) -> Weights:
    """Combine chosen cluster models into one, weighed by their numbers of clients (paper 002's generic models)."""
    unknown = sorted(set(clusters) - set(range(len(models))))
    if unknown or not len(clusters):
        raise ValueError(f"clusters {unknown or 'none'} asked for, there are {len(models)} (0 to k-1)")
    sizes = np.array([max(1, int((labels == c).sum())) for c in clusters], dtype=float)
    return aggregation.weighted_mean([models[c] for c in clusters], sizes)


def _sift(sent: Mapping[int, Job], replies: Sequence[Reply], like: Weights) -> tuple[list[Reply], dict[int, str]]:
    """Part usable replies from those of clients to leave out, with the reason for each."""
    excluded = dict.fromkeys(sent, "no reply")
    usable: list[Reply] = []
    for client, reply in sorted({reply.client: reply for reply in reversed(replies)}.items()):  # the first one counts
        if client not in sent:
            continue
        job = sent[client]
        model = like if job.task == "train" else like[-1:]
        if reply.error:
            excluded[reply.client] = reply.error
        elif not 0 <= reply.chosen < len(job.models) or reply.samples < 1:
            excluded[reply.client] = f"chose model {reply.chosen} of {len(job.models)}, with {reply.samples} samples"
        elif [np.shape(array) for array in reply.arrays] != [array.shape for array in model]:
            excluded[reply.client] = "wrong shapes"
        elif (arrays := _fitted(reply.arrays, model)) is None:
            excluded[reply.client] = "not finite"
        else:
            del excluded[reply.client]
            usable.append(replace(reply, arrays=arrays))
    return usable, excluded


def _fitted(arrays: Weights, model: Weights) -> list[FloatArray] | None:
    """Return the arrays in the model's own types, None if a number does not fit: nobody widens everyone's model."""
    with np.errstate(over="ignore"):  # what does not fit becomes infinite
        own = [np.asarray(array, dtype=like.dtype) for array, like in zip(arrays, model, strict=True)]
    return own if all(np.isfinite(array).all() for array in own) else None


def _remember(method: Method, state: State, sent: Mapping[int, Job], replies: Sequence[Reply]) -> State:
    """Keep what clients sent: descriptions, the choices they made, the matrix, the number watched."""
    labels, flagged, memory = state.labels.copy(), set(state.flagged), dict(state.memory)
    done = method.once and state.clustered is not None
    for reply in replies:
        job = sent[reply.client]
        if len(job.models) > 1:
            labels[reply.client] = reply.chosen
        elif job.task == "train" and len(state.models) == 1 and labels[reply.client] < 0:
            labels[reply.client] = 0
        if method.describe is None or (done and job.task == "train" and method.pool != "memory"):
            continue
        start_from = job.models[reply.chosen]
        if job.task == "describe":  # only the last array left the client
            told = method.describe(reply, start_from[-1:], state.trainable[-1:])
        else:
            told = method.describe(reply, start_from, state.trainable)
        if job.task == "describe" and state.clustered is not None and method.admit is not None:
            labels[reply.client] = method.admit(state, told)
            flagged |= {reply.client} if labels[reply.client] < 0 else set()
        memory[reply.client] = Memory(state.round, told)
    state = replace(state, labels=labels, flagged=frozenset(flagged), memory=memory)
    if method.compare is None or not memory or done:
        return state
    matrix = _compare(method.compare, state)
    watched = state.watched
    if method.watch is not None and state.clustered is None:
        watched = (*watched, float(method.watch(matrix[np.ix_(state.known, state.known)])))
    return replace(state, matrix=matrix, watched=watched)


def _compare(compare: Callable[[Any], FloatArray], state: State) -> FloatArray:
    n, known = len(state.labels), state.known
    descriptions = [state.memory[i].description for i in known]
    matrix = np.full((n, n), np.nan)
    renew = INCREMENTAL.get(compare)
    if renew is not None and state.matrix is not None:
        old = state.matrix[np.ix_(known, known)]
        matrix[np.ix_(known, known)] = renew(old, descriptions, np.searchsorted(known, state.fresh))
    else:
        matrix[np.ix_(known, known)] = compare(descriptions)
    return matrix


def _regroup(method: Method, state: State) -> State:
    """Cluster the sets of clients whose time has come; every other client keeps its cluster."""
    if method.when is None or method.cluster is None or (method.once and state.clustered is not None):
        return state
    sets = method.when(state)
    if not sets:
        return state
    labels = state.labels.copy()
    if state.clustered is None:
        labels[np.setdiff1d(np.arange(len(labels)), state.known)] = -1
    top = len(state.models)
    for members in sets:
        found = _check_found(method, members, method.cluster(_material(state, members)))
        labels[members] = np.where(found < 0, -1, top + found)
        top += int(found.max()) + 1
    keep = method.admit is not None or not method.once or method.pool == "memory"
    return replace(
        state,
        labels=labels,
        clustered=state.round if state.clustered is None else state.clustered,
        memory=state.memory if keep else {},
    )


def _check_found(method: Method, members: IntArray, found: Any) -> IntArray:
    labels = np.asarray(found)
    if labels.shape != members.shape or not np.issubdtype(labels.dtype, np.integer) or labels.max() < 0:
        raise ValueError(
            f"the clusterer of {method.name} returned {labels.tolist()} for {len(members)} clients: return an integer "
            "label for each, -1 for noise, and at least one cluster"
        )
    return labels


def _material(state: State, members: IntArray) -> FloatArray:
    if state.matrix is not None:
        square: FloatArray = state.matrix[np.ix_(members, members)]
        return square
    return np.stack([state.memory[i].description for i in members])


def _combine(method: Method, before: State, state: State, trained: Sequence[Reply]) -> State:
    """Give every cluster its new model; one without replies keeps its own, a new one its parent's."""
    if np.array_equal(before.labels, state.labels):
        return replace(state, models=_aggregate(method, before, before.models, before.labels, trained))
    labels = renumber(state.labels)
    origin = parents(before.labels, labels)
    if method.inherit:
        old = _aggregate(method, before, before.models, before.labels, trained)
        models = tuple(old[parent] for parent in origin)
    else:
        inherited = tuple(before.models[parent] for parent in origin)
        models = _aggregate(method, before, inherited, labels, trained)
    same = [np.array_equal(labels == new, before.labels == old) for new, old in enumerate(origin)]
    return replace(
        state,
        models=models,
        labels=labels,
        losses=tuple(before.losses[old] if kept else () for kept, old in zip(same, origin, strict=True)),
        stopped=frozenset(
            new for new, (kept, old) in enumerate(zip(same, origin, strict=True)) if kept and old in before.stopped
        ),
    )


def _aggregate(
    method: Method, state: State, models: tuple[Weights, ...], labels: IntArray, trained: Sequence[Reply]
) -> tuple[Weights, ...]:
    if method.pool == "memory":
        parts = [(int(i), _as_model(method, state, state.memory[i].description), 1) for i in state.known]
    else:
        parts = [(reply.client, reply.arrays, reply.samples) for reply in trained]
    members: dict[int, list[tuple[Weights, int]]] = {}
    for client, arrays, samples in parts:
        members.setdefault(int(labels[client]), []).append((arrays, samples))
    fresh = list(models)
    for cluster, own in members.items():
        if cluster >= 0:
            weights = np.array([samples for _, samples in own], dtype=float)
            fresh[cluster] = method.combine([arrays for arrays, _ in own], weights)
    return tuple(fresh)


def _as_model(method: Method, state: State, told: Any) -> Weights:
    """Return a description that is to be combined into a model, after checking that it is one."""
    if [np.shape(array) for array in told] != [array.shape for array in state.probe]:
        raise ValueError(
            f"{method.name} combines what it remembers of clients, which is no model: set describe=choices.model"
        )
    return list(told)


def parents(before: IntArray, labels: IntArray) -> list[int]:
    """For each new cluster, the old one from which it got most of its members."""
    found = []
    for cluster in range(int(labels.max()) + 1):
        old = before[(labels == cluster) & (before >= 0)]
        found.append(int(np.bincount(old).argmax()) if old.size else 0)
    return found


def _follow(state: State, trained: Sequence[Reply], schedule: Schedule) -> State:
    """Append each cluster's mean training loss and stop the clusters that no longer progress."""
    losses, told = list(state.losses), dict[int, list[float]]()
    for reply in trained:
        if np.isfinite(reply.scores.get("loss", np.nan)):
            told.setdefault(int(state.labels[reply.client]), []).append(reply.scores["loss"])
    for cluster, values in told.items():
        if cluster >= 0:
            losses[cluster] = (*losses[cluster], float(np.mean(values)))
    stopped = set(state.stopped)
    if schedule.patience is not None:
        stopped |= {c for c, series in enumerate(losses) if _stalled(series, schedule.patience, schedule.min_delta)}
    return replace(state, losses=tuple(losses), stopped=frozenset(stopped))


def _stalled(series: Sequence[float], patience: int, min_delta: float) -> bool:
    if len(series) <= patience:
        return False
    return min(series[-patience:]) >= min(series[:-patience]) - min_delta
