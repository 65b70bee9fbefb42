"""What a run writes down after every round: how good the models are that clients get, and the clustering scores."""

from __future__ import annotations

import json
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import pandas as pd

from cflib import aggregation, metrics
from cflib.arrays import FloatArray, Weights, renumber
from cflib.distances import trusted_distances
from cflib.experiment import Run
from cflib.grid import State, own_cluster
from cflib.planning import received
from cflib.protocol import Job, Runtime
from cflib.records import Record
from cflib.training import Evaluation

WHOLE = {"round", "client", "cluster", "label", "size", "clusters", "excluded"}
"""Columns of whole numbers."""
ROWS = ("rounds", "clients", "clusters", "events")
"""Lists of rows, ordered by the round that each names."""


class ScoringRuntime(Runtime, Protocol):
    """A runtime that can also evaluate models on the server's own test data."""

    def score(self, models: Sequence[Weights]) -> list[Evaluation]:
        """Evaluate models on the server's test data."""
        ...


@dataclass
class Tables:
    """The rows of a record while the run is under way."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    clients: list[dict[str, float]] = field(default_factory=list)
    clusters: list[dict[str, float]] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    triangles: list[Any] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    diagonal: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    origins: list[dict[str, Any]] = field(default_factory=list)
    """The commits, processors and locks under which the run was computed: several if it was resumed elsewhere."""

    def facts(self) -> dict[str, str]:
        """The few words that the progress line shows."""
        row = self.rounds[-1]
        accuracy = row.get("accuracy_received", row.get("accuracy_global", np.nan))
        known = {} if np.isnan(accuracy) else {"accuracy": f"{accuracy:.3f}"}
        return {**known, "clusters": str(row["clusters"])}

    @property
    def about(self) -> dict[str, Any]:
        """What a checkpoint has to know of the run beside its rows."""
        return {name: getattr(self, name) for name in ("seconds", "diagonal", "origins")}

    def rows_after(self, round: int) -> dict[str, Any]:
        """Return the rows of all rounds after this one as arrays, for a checkpoint."""
        first = {name: bisect_right(getattr(self, name), round, key=lambda row: row["round"]) for name in ROWS}
        tables: dict[str, Any] = {name: getattr(self, name)[first[name] :] for name in ROWS}
        start = bisect_right(self.kept, round)
        return {
            "tables": np.frombuffer(json.dumps({**tables, "kept": self.kept[start:]}).encode(), dtype=np.uint8),
            "labels": np.array(self.labels[first["rounds"] :], dtype=np.int64),
            "triangles": np.array(self.triangles[start:], dtype=np.float32),
        }

    @staticmethod
    def restored(about: Mapping[str, Any], pieces: Iterable[Mapping[str, Any]]) -> Tables:
        """Return what checkpoints wrote, piece after piece."""
        tables = Tables(**about)
        for piece in pieces:
            for name, rows in json.loads(piece["tables"].tobytes()).items():
                getattr(tables, name).extend(rows)
            tables.labels.extend(piece["labels"])
            tables.triangles.extend(piece["triangles"])
        return tables

    def begin(self, origin: dict[str, Any]) -> None:
        """Note under what the run is computed from here on; warn if that may change its bits."""
        if self.origins and any(self.origins[-1][name] != origin[name] for name in ("instructions", "lock", "onednn")):
            warnings.warn(f"resumed under {origin} after {self.origins[-1]}: bits may differ", stacklevel=3)
        if origin not in self.origins:
            self.origins.append(origin)

    def forget_after(self, round: int) -> None:
        """Drop the rows of a round that was not finished, so that it can be measured again."""
        for name in ROWS:
            setattr(self, name, [row for row in getattr(self, name) if row["round"] <= round])
        self.labels = self.labels[: len(self.rounds)]
        self.kept = [kept for kept in self.kept if kept <= round]
        self.triangles = self.triangles[: len(self.kept)]

    def record(self, name: str, specification: Mapping[str, Any], made: Mapping[str, Any]) -> Record:
        """Return the finished record."""
        n = len(self.labels[0])
        return Record(
            name,
            specification,
            _frame(self.rounds, np.float64),
            _frame(self.clients, np.float32),
            _frame(self.clusters, np.float32),
            labels=np.array(self.labels, dtype=np.int16),
            triangles=np.array(self.triangles, dtype=np.float32).reshape(len(self.kept), n * (n - 1) // 2),
            kept=np.array(self.kept, dtype=np.int32),
            diagonal=self.diagonal,
            events=tuple(self.events),
            provenance={**made, "seconds": round(self.seconds, 1), "origins": self.origins},
        )


def measure(tables: Tables, spec: Run, before: State, after: State, runtime: ScoringRuntime) -> None:
    """Append the rows of the round that led from one state to the next."""
    round_ = after.round
    row: dict[str, float] = {"round": round_, "clusters": len(after.models), "excluded": len(after.excluded)}
    row["watched"] = after.watched[-1] if len(after.watched) > len(before.watched) else np.nan
    given = ~np.isnan(after.shares).any(axis=1)  # the others choose for themselves
    gaps = np.abs(after.shares - own_cluster(after)).max(axis=1)[given]
    row["received_own"] = float((gaps < 1e-9).mean()) if given.any() else np.nan
    renewed = after.matrix is not None and after.matrix is not before.matrix
    row |= _partition_scores(spec, after, renewed=renewed)
    if _due(spec.measures.clients_every, round_, spec.rounds) or round_ > spec.rounds - spec.measures.closing:
        row |= _try_on_clients(tables, spec, after, runtime)
    if _due(spec.measures.every, round_, spec.rounds):
        row |= _try_on_server(tables, spec, after, runtime)
    tables.rounds.append(row)
    tables.labels.append(after.labels)
    if after.matrix is not None and renewed and _keeps(spec, before, after):
        n = len(after.labels)
        tables.triangles.append(after.matrix[np.triu_indices(n, 1)].astype(np.float32))
        tables.kept.append(round_)
        tables.diagonal = float(np.nanmax(np.diagonal(after.matrix)))
    tables.events += _events(before, after)


def _due(every: int, round: int, last: int) -> bool:
    return round % every == 0 or round == last


def _keeps(spec: Run, before: State, after: State) -> bool:
    shot = before.clustered is None and after.clustered is not None
    return shot or _due(spec.measures.matrices_every, after.round, spec.rounds)


def _partition_scores(spec: Run, state: State, *, renewed: bool) -> dict[str, float]:
    """Score the clusters against the truth, and by silhouette if this round's distances are known."""
    truth, labels = spec.federation.truth, renumber(state.labels)  # a model that no client chose leaves a gap
    if labels.max() < 0:
        return {}
    scores: dict[str, float] = {}
    if truth.min() >= 0:
        scores = {k: v for k, v in metrics.score_partition(truth, labels).items() if k != "clusters"}
    if state.matrix is None or not renewed:
        return scores
    there = np.flatnonzero((labels >= 0) & ~np.isnan(np.diagonal(state.matrix)))
    distances = state.matrix[np.ix_(there, there)]
    if len(there) and not np.diagonal(distances).any():
        names, found = np.unique(state.labels[there], return_inverse=True)
        scores["silhouette"] = metrics.silhouette(distances, found)
        compare = spec.method.compare
        if (compare.func if isinstance(compare, partial) else compare) is trusted_distances and compare is not None:
            centroids = compare([state.models[c] for c in names])
            scores["silhouette_as_published"] = metrics.silhouette_as_published(distances, centroids, found)
    return scores


def _try_on_clients(tables: Tables, spec: Run, state: State, runtime: ScoringRuntime) -> dict[str, float]:
    present = runtime.present(state.round - 1)
    rows = {
        "received": state.shares,
        "own": own_cluster(state),
        "global": np.full_like(state.shares, 1 / len(state.models)),
    }
    found: dict[str, list[dict[str, float]]] = {}
    mixed: dict[bytes, tuple[Weights, ...]] = {}
    for view in spec.measures.clients:
        jobs = []
        for client in present:
            models = received(state.models, rows[view][client], mixed)
            choose = spec.method.choose if len(models) > 1 else "only"
            jobs.append(Job(int(client), state.round, "evaluate", models, choose))
        replies = [reply for reply in runtime.map(jobs) if _is_confusion(reply.arrays, spec.network.classes)]
        found[view] = [
            {
                "client": reply.client,
                f"accuracy_{view}": metrics.accuracy_of_confusion(reply.arrays[0]),
                f"f1_{view}": metrics.macro_f1_of_confusion(reply.arrays[0]),
            }
            for reply in replies
        ]
        missing = sorted({job.client for job in jobs} - {reply.client for reply in replies})
        tables.events += [
            {"round": state.round, "client": client, "event": f"not evaluated: no usable reply ({view})"}
            for client in missing
        ]
    summary: dict[str, float] = {}
    merged: dict[float, dict[str, float]] = {}
    for name, answers in found.items():
        if not answers:
            continue
        title = "global_on_clients" if name == "global" else name  # the server tries the global model too
        summary[f"accuracy_{title}"] = float(np.mean([a[f"accuracy_{name}"] for a in answers]))
        summary[f"accuracy_{title}_std"] = float(np.std([a[f"accuracy_{name}"] for a in answers]))
        summary[f"f1_{title}"] = float(np.mean([a[f"f1_{name}"] for a in answers]))
        for answer in answers:
            client = int(answer["client"])
            label = int(state.labels[client])
            merged.setdefault(client, {"round": state.round, "client": client, "label": label}).update(answer)
    tables.clients += [merged[client] for client in sorted(merged)]
    return summary


def _is_confusion(arrays: Sequence[Any], classes: int) -> bool:
    """Tell whether a reply holds one confusion matrix; a client elsewhere may send anything."""
    return [np.shape(array) for array in arrays] == [(classes, classes)] and bool(
        np.isfinite(arrays[0]).all() and (arrays[0] >= 0).all() and arrays[0].any()
    )


def _try_on_server(tables: Tables, spec: Run, state: State, runtime: ScoringRuntime) -> dict[str, float]:
    wanted = spec.measures.server
    if not wanted:
        return {}
    k = len(state.models)
    alone = k == 1
    models = list(state.models) if "clusters" in wanted or alone else []
    if "global" in wanted and not alone:
        models.append(aggregation.mix(state.models, np.full(k, 1 / k)))
    results = runtime.score(models)
    summary: dict[str, float] = {}
    if "clusters" in wanted:
        for cluster, result in enumerate(results[:k]):
            tables.clusters.append(
                {
                    "round": state.round,
                    "cluster": cluster,
                    "size": int((state.labels == cluster).sum()),
                    "accuracy": result.accuracy,
                    "f1": result.macro_f1,
                    "loss": result.loss,
                }
            )
        sizes = np.array([(state.labels == cluster).sum() for cluster in range(k)])
        if sizes.sum():
            summary["f1_general"] = float(np.average([r.macro_f1 for r in results[:k]], weights=sizes))
    if "global" in wanted:
        summary["accuracy_global"] = results[-1].accuracy
        summary["f1_global"] = results[-1].macro_f1
    return summary


def _events(before: State, after: State) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"round": after.round, "client": client, "event": f"excluded: {reason}"}
        for client, reason in sorted(after.excluded.items())
    ]
    events += [
        {"round": after.round, "client": client, "event": "flagged: near no core client"}
        for client in sorted(after.flagged - before.flagged)
    ]
    events += [
        {"round": after.round, "cluster": cluster, "event": "stopped: no progress"}
        for cluster in sorted(after.stopped - before.stopped)
    ]
    if before.clustered is None and after.clustered is not None:
        events.append({"round": after.round, "event": f"clustered: {len(after.models)} clusters"})
    return events


def _frame(rows: list[dict[str, float]], real: type) -> pd.DataFrame:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    filled: dict[str, FloatArray] = {
        name: np.array([row.get(name, np.nan) for row in rows], dtype=np.int32 if name in WHOLE else real)
        for name in columns
    }
    return pd.DataFrame(filled)
