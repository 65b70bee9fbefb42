"""Curves over runs: every run where there are few, an interval where there are many, a bare line for one."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from cflib import plots


@pytest.mark.parametrize(
    ("runs", "each", "lines", "bands"),
    [(1, None, 1, 0), (3, None, 4, 1), (12, None, 1, 1), (3, False, 1, 1), (12, True, 13, 1)],
)
def test_few_runs_are_lines_and_many_an_interval(runs, each, lines, bands):
    _, ax = plots.panels()
    plots.curve(ax, range(4), np.random.default_rng(0).normal(size=(runs, 4)), label="a", each=each)
    assert (len(ax.lines), len(ax.collections)) == (lines, bands)
    assert ax.get_legend_handles_labels()[1] == ["a"]


def test_single_runs_have_the_line_style_of_their_mean():
    _, ax = plots.panels()
    plots.curve(ax, range(4), np.random.default_rng(0).normal(size=(3, 4)), label="a", linestyle=":")
    plots.curve(ax, range(4), np.random.default_rng(1).normal(size=(3, 4)), label="b")
    assert [line.get_linestyle() for line in ax.lines] == [":"] * 4 + ["-"] * 4


def test_one_run_shows_its_interval_over_clients_and_its_clusters():
    _, ax = plots.panels()
    scores = np.array([[0.0, 0.2, 0.8, 1.0], [0.5, 0.5, 0.5, 0.5]])
    assert plots.over_clients(ax, scores, colour="red", labels=[0, 0, 1, 1]) is ax
    low, high, *clusters = (line.get_ydata() for line in ax.lines)
    half = 1.96 * scores[0].std() / 2
    assert np.allclose([low, high], [[0.5 - half, 0.5], [0.5 + half, 0.5]])
    assert np.allclose(clusters, [[0.1, 0.5], [0.9, 0.5]])


def test_strips_show_every_score_in_its_round():
    _, ax = plots.panels()
    scores = np.array([[0.0, 0.5, 1.0], [1.0, 0.25, 0.75]])
    assert plots.strips(ax, scores, ["KM", "HDB"]) is ax
    assert np.array_equal(ax.collections[0].get_array(), scores)
    assert ax.get_xlim() == (0.5, 3.5)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["KM", "HDB"]
    assert ax.get_yticks().tolist() == [0.5, 1.5]
    assert ax.yaxis_inverted()


def test_a_heat_map_without_label_has_no_colour_bar():
    figure, (first, second) = plots.panels(1, 2)
    plots.heat_map(first, [[0.1, 0.9]], ["row"], ["a", "b"], label=None)
    assert len(figure.axes) == 2
    plots.heat_map(second, [[0.1, 0.9]], ["row"], ["a", "b"])
    assert len(figure.axes) == 3


def test_groups_that_lie_on_one_another_are_numbered_on_two_sides():
    _, ax = plots.panels()
    plots.embedding(ax, [[0, 0], [0.01, 0], [0, 0.01], [0.01, 0.01], [1, 1]], [0, 0, 1, 1, 2], reach=1.5)
    assert [(text.get_text(), text.get_ha()) for text in ax.texts] == [("0 1", "left"), ("2 3", "right"), ("4", "left")]
