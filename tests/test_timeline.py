"""Figures of the DBSCAN notebook: what they mark, and that they draw nothing that is not there."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from cflib import plots


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_clients_at_one_place_are_numbered_together(ax):
    plots.embedding(ax, [[0, 0], [0.01, 0], [9, 9], [0, 0.01]], [0, 0, 1, 0])
    assert [text.get_text() for text in ax.texts] == ["0 1 3", "2"]


def test_equal_clients_share_one_number(ax):
    plots.embedding(ax, np.zeros((3, 2)), [0, 0, 0])
    assert [text.get_text() for text in ax.texts] == ["0 1 2"]


def test_planes_of_one_reach_have_one_scale_and_number_together_what_is_near_on_it(ax):
    plots.embedding(ax, [[0, 0], [1, 0], [0, 3]], [0, 0, 1], reach=10)
    assert ax.get_xlim() == ax.get_ylim() == (-10, 10)
    assert [text.get_text() for text in ax.texts] == ["0 1", "2"]


def test_a_timeline_marks_tasks_and_pales_the_absent(ax):
    labels = [[0, -1], [0, 1], [0, 1]]
    tasks = [{0: "train"}, {0: "train", 1: "describe"}, {}]
    plots.timeline(ax, labels, tasks, np.array([[False, True], [False, False], [True, False]]))
    marks = [(line.get_marker(), *line.get_xydata()[0]) for line in ax.lines if len(line.get_xydata())]
    assert marks == [("o", 1, 0), ("o", 2, 0), ("D", 2, 1)]
    assert [bar.get_alpha() for bar in ax.patches] == [0.55, 0.55, 0.55, 0.12, 0.55]


def test_vectors_are_coloured_around_zero_with_lines_between_groups(ax):
    plots.vectors(ax, [[-1.0, 3.0], [0.5, 2.0], [1.0, 0.0]], truth=[0, 0, 1])
    assert ax.images[0].get_clim() == (-3, 3)
    assert [line.get_ydata()[0] for line in ax.lines] == [1.5]
