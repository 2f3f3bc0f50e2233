"""Weights of a blend of models, from their predictions for rows that judge."""

import numpy as np
import pytest
from scipy.optimize import minimize, nnls

from cacore.comm import Communicator
from cakernels.search import blending

ALONE = Communicator()


def test_weights_of_a_blend_are_the_best_that_add_up_to_one():
    rng = np.random.default_rng(0)
    y = rng.normal(size=400)
    held = [y + s * rng.normal(size=400) for s in (0.5, 0.6, 3.0)]
    group, w = np.arange(400) % blending.GROUPS, rng.uniform(0.5, 2.0, 400)
    got = blending.weights(held, y, w, group, ALONE)

    def error(v):
        return w @ (np.tensordot(v, held, 1) - y) ** 2

    variance = error([1, 0, 0]) / w.sum()  # with the prior that weights are 1/2 with a variance of .1
    best = minimize(lambda a: error([a[0], 1 - a[0], 0]) + 20 * variance * (a[0] - 0.5) ** 2, [0.5], tol=1e-12).x[0]
    np.testing.assert_allclose(got, [best, 1 - best, 0], atol=1e-4)


def test_blend_weights_shrink_with_few_validation_rows():
    rng = np.random.default_rng(1)
    deviations = np.array([0.5, 0.55, 0.6, 0.7])
    best = deviations**-2.0 / (deviations**-2.0).sum()

    def both(n):
        y = rng.normal(size=n)
        held = y + deviations[:, None] * rng.normal(size=(4, n))
        got = blending.weights(list(held), y, np.ones(n), np.arange(n) % blending.GROUPS, ALONE)
        plain = nnls(held.T, y)[0]
        return got, plain / plain.sum()

    off = np.array([[np.sum((one - best) ** 2) for one in both(20) if one.max() < 1] for _ in range(50)])
    assert off[:, 0].mean() < 0.5 * off[:, 1].mean()
    np.testing.assert_allclose(both(20_000)[0], best, atol=0.02)


def test_a_blend_is_measured_by_a_choice_that_does_not_know_the_rows_either():
    """Each of eight models is by chance right on a share of the rows, and the one that looks best is no better."""
    rng = np.random.default_rng(2)
    y = rng.normal(size=60)
    held = [y + rng.normal(size=60) for _ in range(8)]
    held.sort(key=lambda one: float(np.sum((one - y) ** 2)))
    got = blending.weights(held, y, np.ones(60), np.arange(60) % blending.GROUPS, ALONE)
    assert np.count_nonzero(got) > 4


@pytest.mark.parametrize("others", [[], [0.0], [1e-3]])
def test_no_blend_without_improvement(others):
    """A single model, the same twice, or nearly the same."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=200)
    model = y + 0.3 * rng.normal(size=200)
    held = [model, *(model + noise * rng.normal(size=200) for noise in others)]
    got = blending.weights(held, y, np.ones(200), np.arange(200) % blending.GROUPS, ALONE)
    np.testing.assert_array_equal(got, np.eye(1, len(held))[0])


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("offset", [1e6, 1e9, -1e12])
def test_weights_do_not_depend_on_an_offset_of_the_targets(offset, targets):
    """A blend of errors is the error of the blend, however far from 0 the predictions are."""
    rng = np.random.default_rng(4)
    shape = (300, targets)[:targets]
    y = rng.integers(-4096, 4096, shape) / 1024.0  # exact also beside the offset
    held = [y + rng.integers(-512, 512, shape) / 1024.0 + shift for shift in (0.0, 0.01, -0.02)]
    held = [np.round(one * 1024) / 1024 for one in held]
    w, group = np.ones(300), np.arange(300) % blending.GROUPS
    near_zero = blending.weights(held, y, w, group, ALONE)
    assert np.count_nonzero(near_zero) == 3
    far = blending.weights([one + offset for one in held], y + offset, w, group, ALONE)
    np.testing.assert_allclose(far, near_zero, atol=1e-12)
