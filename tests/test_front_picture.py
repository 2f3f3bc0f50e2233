"""The picture of a search: what became of every training, what is listed, and what was chosen."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from cacore.explain.explanation import Explanation
from cacore.run import figures
from cacore.run.figures import FAILED, KEPT, STOPPED, TOO_SLOW, fates, race
from cacore.tuning import GridColumns
from cakernels.explain.command import drawn


def training(candidate, rows, score, ended, why=""):
    return {"candidate": candidate, "rows": rows, "score": score, "seconds": 1.0, "ended": ended, "why": why}


BOARD = [
    training("a", 400, 0.1, 5.0), training("b", 100, 0.4, 2.0, "400 rows would take too long"),
    training("a", 100, 0.3, 1.0), training("c", 100, 0.7, 3.0), training("e", 100, 9.0, 4.5),
    training("d", 100, None, 4.0, "it failed"),
]  # fmt: skip

RMSE = {"metric_name": "rmse", "task": "regression"}


def test_fates():
    assert fates(BOARD) == [KEPT, TOO_SLOW, KEPT, STOPPED, STOPPED, FAILED]
    assert fates([*BOARD, training("c", 400, None, 9.0, "it failed")])[3] == KEPT  # it went on, to no result


def test_every_training_is_drawn_once():
    """Dots at their times and errors; one far above the others lies on the upper edge, and a failure above that."""
    figure = race(BOARD, {**RMSE, "models": ["a", "c"]})
    (axes,) = figure.axes
    lines = {str(line.get_label()): line for line in axes.lines}
    dots = [line for line in axes.lines if line.get_zorder() == 3]
    found = sorted(map(tuple, np.concatenate([line.get_xydata() for line in dots])))
    top = 0.1 + 4 * (0.4 - 0.1)  # the median error is 0.4
    assert found == [(1.0, 0.3), (2.0, 0.4), (3.0, 0.7), (4.5, pytest.approx(top)), (5.0, 0.1)]
    assert lines["without a result: 1"].get_xdata().tolist() == [4.0]
    assert lines["best so far"].get_ydata().tolist() == [0.3, 0.3, 0.3, 0.3, 0.1]
    np.testing.assert_array_equal(lines["chosen"].get_xydata(), [[5.0, 0.1], [3.0, 0.7]])
    assert {f"{STOPPED}: 2", f"{TOO_SLOW}: 1", "100 training rows", "400 training rows"} <= set(lines)
    assert figure.get_suptitle() == "rmse on held-out rows; 6 trainings\nchosen: a, blended with 1 other"


def test_classes_and_nothing():
    """Accuracies are drawn as errors; a search without a result is a picture as well."""
    params = {"metric_name": "balanced_accuracy", "task": "classification"}
    figure = race([training("a", 100, 0.75, 1.0)], params)
    assert any(np.array_equal(line.get_xydata(), [[1.0, 0.25]]) for line in figure.axes[0].lines)
    assert figure.get_suptitle() == "1 - balanced accuracy on held-out rows; 1 training"
    assert [line.get_label() for line in race(BOARD[5:], RMSE).axes[0].lines] == ["without a result: 1"]
    assert race([], RMSE).axes[0].lines[:] == []


def tried(candidate, chosen):
    return training(candidate, 100, 0.5, 2.0 + chosen) | ({"chosen": True} if chosen else {})


def test_all_models_of_a_blend_are_circled():
    """Also those whose names are the same, which differ in settings that the name does not show."""
    board = [tried("a", 1), tried("a", 2), tried("a", 0)]
    figure = race(board, {**RMSE, "models": ["a", "a"]})
    circles = {str(line.get_label()): line for line in figure.axes[0].lines}["chosen"]
    assert circles.get_xdata().tolist() == [3.0, 4.0]


LARGE = [training("a", 400, 68_540.0, 5.0), training("b", 100, 68_560.0, 2.0), training("c", 100, 69_000.0, 3.0)]
METRIC = {"form": "diagonal", "importances": [0.7, 0.3], "errors": [6.9e9, 6.854e9, 6.856e9], "round": 1,
          "names": ["a feature with a very long name", "b"]}  # fmt: skip
GRID = [{"sigma": 10.0**i, "lambda": 10.0**-j, "e_mse": 6.854e9 + i + j} for i in range(3) for j in range(3)]
DRAWN = {
    "race": lambda: race(LARGE, {**RMSE, "models": ["a"]}),
    "metric": lambda: figures.metric(METRIC, None),
    "residuals": lambda: figures.residuals([6.8e4, -2e5], [6.9e4, 4e5]),
    "curve": lambda: figures.curve([1.0, 2.0], [68_540.0, 68_541.0], ("sigma", "mean squared error"), 0, True),
    "grid": lambda: figures.heat_map(GRID, GridColumns("sigma", "lambda", "e_mse", "error", smaller=True)),
    "shapley": lambda: drawn(Explanation(np.array([[6.854e4, -2e-3]]), np.zeros(1), np.zeros((1, 2)), ("a", "b"),
                                         ((0,), (1,)), ("price",)), np.array([[6.854e4], [2e-3]])),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_texts_lie_inside_the_picture(name):
    """Labels have no power or offset apart, which would be read as other numbers, and none touches its neighbour."""
    figure = DRAWN[name]()
    figure.set_dpi(72)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        box = axes.get_tightbbox(renderer)
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1
        for axis in (axes.xaxis, axes.yaxis):
            assert axis.get_offset_text().get_text() == ""
            low, high = sorted(axis.get_view_interval())
            shown = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            shown = [label for label in shown if label.get_visible() and label.get_text() and not label.get_rotation()]
            boxes = [label.get_window_extent(renderer) for label in shown]
            assert len({label.get_text() for label in shown}) == len(shown)
            assert not any(one.overlaps(other) for one, other in pairwise(boxes))
