"""What holds for length scales of classes, regressions and quantiles alike."""

from __future__ import annotations

import numpy as np

from helpers.checks import same_content


def not_kept(model, plain, answers, X):
    """Length scales did not help, and the model answers as the one without a metric does, to the last bit."""
    assert model.metric_errors_[1] >= model.metric_errors_[0]
    np.testing.assert_array_equal(model.metric_, np.ones(X.shape[1]))
    np.testing.assert_array_equal(getattr(model, answers)(X), getattr(plain, answers)(X))


def resumed(run):
    """A second run finds all parts in the checkpoint, in the same length scales."""
    first, second = run(), run()
    np.testing.assert_array_equal(first.solver["seconds"], second.solver["seconds"])
    same_content(first.model, second.model)
