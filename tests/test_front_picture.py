"""The picture of a search: what became of every training, what is listed, and what was chosen."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from cacore.run.figures import FAILED, KEPT, STOPPED, TOO_SLOW, fates, race


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
