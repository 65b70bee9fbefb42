"""Figures: each function draws data on the Axes it is given and returns it; colours suit colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from cflib.arrays import check_labels, renumber
from cflib.samples import confidence_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB", "#000000")
"""Paul Tol's bright scheme."""


def panels(
    rows: int = 1, columns: int = 1, *, width: float = 4.2, height: float = 3.2, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure and its Axes, sized for a notebook, with room kept for labels."""
    from matplotlib import pyplot as plt

    return plt.subplots(rows, columns, figsize=(width * columns, height * rows), layout="constrained", **options)


def holdings(
    ax: Axes, counts: ArrayLike, *, class_names: Sequence[str] | None = None, truth: ArrayLike | None = None
) -> Axes:
    """Draw who holds what: a client by class picture of sample counts, with a line between true groups."""
    table = np.asarray(counts)
    image = ax.imshow(table, aspect="auto", cmap="Blues", vmin=0)
    names = class_names or [str(c) for c in range(table.shape[1])]
    ax.set_xticks(range(table.shape[1]), names, rotation=0 if max(map(len, names)) < 3 else 45, ha="center")
    ax.set(xlabel="class", ylabel="client")
    _client_ticks(ax.yaxis, table.shape[0])
    if truth is not None:
        for edge in np.flatnonzero(np.diff(np.asarray(truth))):
            ax.axhline(edge + 0.5, color="#EE6677", linewidth=1)
    colour_bar(ax, image, "samples")
    return ax


def matrix(
    ax: Axes, values: ArrayLike, *, groups: ArrayLike | None = None, label: str = "similarity", **options: Any
) -> Axes:
    """Draw an ``(n, n)`` matrix ordered by group, with lines between groups; clients not seen yet stay grey."""
    square = np.array(values, dtype=float)
    order = np.arange(len(square)) if groups is None else np.argsort(np.asarray(groups), kind="stable")
    ax.set_facecolor("#DDDDDD")
    image = ax.imshow(square[np.ix_(order, order)], cmap="viridis", interpolation="nearest", **options)
    if groups is not None:
        for edge in np.flatnonzero(np.diff(np.asarray(groups)[order])):
            ax.axhline(edge + 0.5, color="white", linewidth=0.8)
            ax.axvline(edge + 0.5, color="white", linewidth=0.8)
    ax.set(xlabel="client", ylabel="client")
    if len(square) <= 30:
        ax.set_xticks(range(len(order)), order, fontsize=7)
        ax.set_yticks(range(len(order)), order, fontsize=7)
    colour_bar(ax, image, label)
    return ax


def heat_map(
    ax: Axes,
    table: ArrayLike,
    rows: Sequence[Any],
    columns: Sequence[Any],
    *,
    label: str | None = "",
    texts: ArrayLike | None = None,
    **options: Any,
) -> Axes:
    """Draw a table of numbers as colours, each cell with its number, or its text if given; NaN stays blank.

    Without a label (None) there is no colour bar: one serves panels that share their scale.
    """
    values = np.asarray(table, dtype=float)
    words = np.asarray(texts if texts is not None else np.vectorize("{:.2f}".format)(values))
    image = ax.imshow(values, aspect="auto", cmap=options.pop("cmap", "viridis"), **options)
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            ax.text(j, i, str(words[i, j]), ha="center", va="center", color="white" if dark else "black", fontsize=8)
    ax.set_xticks(range(len(columns)), [str(name) for name in columns])
    ax.set_yticks(range(len(rows)), [str(name) for name in rows])
    if label is not None:
        colour_bar(ax, image, label)
    return ax


def strips(ax: Axes, scores: ArrayLike, names: Sequence[str], **options: Any) -> Axes:
    """Draw scores ``(names, rounds)`` as one row of colours a name; ``ax.collections[0]`` may have a colour bar.

    Curves that coincide hide each other; rows do not. Round r fills the axis from r - 0.5 to r + 0.5, so that a
    logarithmic axis has room for the first.
    """
    values = np.asarray(scores, dtype=float)
    look: dict[str, Any] = {"cmap": "viridis", "vmin": 0, "vmax": 1} | options
    ax.pcolormesh(np.arange(values.shape[1] + 1) + 0.5, np.arange(len(names) + 1), values, **look)
    for edge in range(1, len(names)):
        ax.axhline(edge, color="white", linewidth=3)
    ax.set_yticks(np.arange(len(names)) + 0.5, names)
    ax.invert_yaxis()
    return ax


def segments(ax: Axes, starts: ArrayLike, ends: ArrayLike, names: Sequence[str], *, labels: tuple[str, str]) -> Axes:
    """Draw for each name a line from one number to another: what two scores are, and how far they lie apart."""
    first, second, places = np.asarray(starts, dtype=float), np.asarray(ends, dtype=float), np.arange(len(names))
    ax.vlines(places, first, second, color="#BBBBBB", linewidth=3)
    for values, colour, mark, label in ((first, COLOURS[0], "o", labels[0]), (second, COLOURS[1], "^", labels[1])):
        ax.plot(places, values, mark, color=colour, markersize=7, label=label)
    ax.set_xticks(places, names, rotation=45, ha="right")
    return ax


def curve(
    ax: Axes,
    rounds: ArrayLike,
    runs: ArrayLike,
    *,
    label: str,
    colour: str | None = None,
    each: bool | None = None,
    **options: Any,
) -> Axes:
    """Draw the mean over runs ``(seeds, rounds)`` with the 95 % interval of the mean; one run gives a bare line.

    With ``each``, by default if there are fewer than ten, every run is a thin line, in a band from the lowest to the
    highest: an interval over three seeds says less than the three.
    """
    values = np.atleast_2d(np.asarray(runs, dtype=float))
    x = np.asarray(rounds)
    (line,) = ax.plot(x, values.mean(axis=0), label=label, color=colour, **options)
    if len(values) > 1 and (len(values) < 10 if each is None else each):
        ax.plot(x, values.T, color=line.get_color(), linestyle=line.get_linestyle(), alpha=0.5, linewidth=0.8)
        ax.fill_between(x, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.1, linewidth=0)
    elif len(values) > 1:
        bands = [confidence_interval(column) for column in values.T]
        low, high = [band.low for band in bands], [band.high for band in bands]
        ax.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set_xlabel("round")
    return ax


def over_clients(ax: Axes, scores: ArrayLike, *, colour: str, labels: ArrayLike | None = None) -> Axes:
    """Draw one run ``(rounds, n)``: dotted, the 95 % interval over its clients; thin, the mean of each cluster."""
    values, width = np.asarray(scores, dtype=float), 1.96 / np.sqrt(np.shape(scores)[1])
    rounds, mean, spread = np.arange(1, len(values) + 1), values.mean(axis=1), values.std(axis=1)
    for sign in (-1, 1):
        ax.plot(rounds, mean + sign * width * spread, color=colour, linestyle=":", linewidth=0.9)
    for cluster in np.unique(np.asarray(labels)) if labels is not None else ():
        own = values[:, np.asarray(labels) == cluster].mean(axis=1)
        ax.plot(rounds, own, color=colour, linewidth=0.6, alpha=0.6)
    return ax


def memberships(ax: Axes, labels: ArrayLike, *, truth: ArrayLike | None = None) -> Axes:
    """Draw which cluster each client is in over rounds, from labels ``(rounds, n)``; clusters keep their colour.

    With ``truth`` a last column, set apart, shows the true groups.
    """
    from matplotlib.colors import ListedColormap

    history = _steady(np.asarray(labels))
    if truth is not None:
        column = _steady(np.vstack([history[-1], renumber(truth)]))[1]
        history = np.vstack([history, np.full_like(history[:1], -1), column])
    shades = ListedColormap(["white", *(COLOURS * (int(history.max()) // len(COLOURS) + 1))[: int(history.max()) + 1]])
    ax.imshow(history.T + 1, aspect="auto", cmap=shades, vmin=0, vmax=int(history.max()) + 1, interpolation="nearest")
    rounds = len(np.asarray(labels))
    step = max(1, rounds // 8)
    ticks = list(range(step - 1, rounds, step))
    names = [str(t + 1) for t in ticks]
    if truth is not None:
        ticks, names = [*ticks, rounds + 1], [*names, "truth"]
    ax.set_xticks(ticks, names)
    _client_ticks(ax.yaxis, history.shape[1])
    ax.set(xlabel="round", ylabel="client")
    return ax


def client_graph(
    ax: Axes, affinity: ArrayLike, labels: ArrayLike, *, names: Sequence[str] | None = None, seed: int = 0
) -> Axes:
    """Draw clients as a graph: colour is the community, edge width the similarity."""
    import networkx as nx

    weights, found = np.asarray(affinity, dtype=float), check_labels(labels, noise=True)
    graph = nx.Graph()
    graph.add_nodes_from(range(len(weights)))
    rows, columns = np.triu_indices(len(weights), 1)
    graph.add_weighted_edges_from(
        (int(i), int(j), float(weights[i, j])) for i, j in zip(rows, columns, strict=True) if weights[i, j] > 0
    )
    places = nx.spring_layout(graph, weight="weight", seed=seed)
    strength = np.array([weight for _, _, weight in graph.edges(data="weight")])
    widths = 3 * strength / strength.max() if strength.size else []
    nx.draw_networkx_edges(graph, places, ax=ax, width=widths, edge_color="#999999", alpha=0.6)
    shades = [COLOURS[label % len(COLOURS)] if label >= 0 else "white" for label in found]
    size = max(320, 40 * max(map(len, names or ["9"])) ** 2)
    nx.draw_networkx_nodes(graph, places, ax=ax, node_color=shades, edgecolors="black", node_size=size)
    nx.draw_networkx_labels(
        graph, places, dict(enumerate(names)) if names else None, ax=ax, font_size=8, font_color="white"
    )
    ax.set_axis_off()
    return ax


def vectors(ax: Axes, rows: ArrayLike, *, truth: ArrayLike | None = None, label: str = "bias") -> Axes:
    """Draw one short vector a client as a row of colours around 0, with a line between true groups."""
    values = np.asarray(rows, dtype=float)
    most = float(np.abs(values).max()) or 1.0
    image = ax.imshow(values, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most)
    for edge in np.flatnonzero(np.diff(np.asarray(truth))) if truth is not None else ():
        ax.axhline(edge + 0.5, color="black", linewidth=1)
    ax.set(xlabel="class", ylabel="client")
    ax.set_xticks(range(values.shape[1]))
    _client_ticks(ax.yaxis, len(values))
    colour_bar(ax, image, label)
    return ax


def embedding(ax: Axes, points: ArrayLike, labels: ArrayLike, *, reach: float | None = None) -> Axes:
    """Draw clients as points in the plane, coloured by group; equal scales, so that distances count.

    Clients of a group too near to each other for numbers of their own are numbered together; a group that lies on
    another has its numbers on the other side. With ``reach`` both axes go from minus to plus that far, so that several
    planes can be compared.
    """
    places, groups = np.asarray(points, dtype=float)[:, :2], np.asarray(labels)
    shades = [COLOURS[group % len(COLOURS)] if group >= 0 else "white" for group in groups]
    ax.scatter(places[:, 0], places[:, 1], c=shades, edgecolors="black", s=60, linewidths=0.6)
    width = 2 * reach if reach else np.ptp(places, axis=0).max() or 1.0
    near = np.linalg.norm(places[:, None] - places, axis=2) < 0.12 * width
    numbered: set[int] = set()
    for client, place in enumerate(places):
        crowd = {int(other) for other in np.flatnonzero(near[client] & (groups == groups[client]))} - numbered
        if client in crowd:
            taken = any(near[client, other] for other in numbered)
            side = {"xytext": (-6, -10), "ha": "right"} if taken else {"xytext": (6, 5)}
            ax.annotate(" ".join(map(str, sorted(crowd))), place, textcoords="offset points", fontsize=7, **side)
            numbered |= crowd
    ax.set_aspect("equal", adjustable="box" if reach else "datalim")
    ax.margins(0.2)
    if reach:
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
    ax.locator_params(nbins=4)
    return ax


TASKS = {"train": "o", "describe": "D", "flagged": "x"}
"""What a client does in a round, and its mark in a timeline."""


def timeline(ax: Axes, labels: ArrayLike, tasks: Sequence[Mapping[int, str]], absent: ArrayLike) -> Axes:
    """Draw who is in which cluster over rounds, and does what: labels ``(rounds, n)``, a task by client a round.

    ``absent`` ``(rounds, n)`` is true where a client is not there; its cluster's colour is then pale.
    """
    clusters, gone = np.asarray(labels), np.asarray(absent)
    for (round, client), cluster in np.ndenumerate(clusters):
        if cluster >= 0:
            colour, alpha = COLOURS[cluster % len(COLOURS)], 0.12 if gone[round, client] else 0.55
            ax.barh(client, 1, left=round + 0.5, height=0.9, color=colour, alpha=alpha, linewidth=0)
        task = tasks[round].get(client)
        if task is not None:
            ax.plot(round + 1, client, TASKS[task], color="black", markersize=6 if task == "flagged" else 3.5)
    for task, mark in TASKS.items():
        ax.plot([], [], mark, color="black", markersize=5, label=task)
    ax.set(xlabel="round", ylabel="client", xlim=(0.5, len(clusters) + 0.5), ylim=(clusters.shape[1] - 0.4, -0.6))
    ax.set_yticks(range(clusters.shape[1]))
    return ax


def colour_bar(ax: Axes, image: Any, label: str) -> None:
    """Add a slim colour bar beside the picture."""
    figure = ax.get_figure()
    if figure is not None:
        figure.colorbar(image, ax=ax, label=label, shrink=0.85, pad=0.02)


def _client_ticks(axis: Any, n: int) -> None:
    step = max(1, -(-n // 15))
    axis.set_ticks(range(0, n, step))


def _steady(history: Any) -> Any:
    """Rename the clusters of each round so that most clients keep their colour from one round to the next."""
    from scipy.optimize import linear_sum_assignment

    steady = history.astype(int).copy()
    for t in range(1, len(steady)):
        before, now = steady[t - 1], steady[t]
        size = int(max(before.max(), now.max())) + 1
        if size < 1:
            continue
        overlap = np.zeros((size, size))
        both = (before >= 0) & (now >= 0)
        np.add.at(overlap, (now[both], before[both]), 1)
        rows, columns = linear_sum_assignment(-overlap)
        names = np.arange(size)
        names[rows] = columns
        steady[t] = np.where(now >= 0, names[np.maximum(now, 0)], -1)
    return steady
