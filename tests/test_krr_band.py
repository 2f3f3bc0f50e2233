"""The reduction to a band and its shifted systems, against numpy.linalg on the whole matrix."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers.checks import near

from cacore.kernels import Kernel
from cacore.machine import threads
from cakrr.solver import local
from cakrr.solver.local import LANES, Band

WIDTHS = (None, 1, 2, 5, 32)
CASES = [*((m, width) for m in (1, 2, 3, 5, 64, 130) for width in WIDTHS), (700, None), (400, 5)]
cases = pytest.mark.parametrize(("m", "width"), CASES)
SHIFTS = np.geomspace(1e-3, 1e3, LANES + 3)  # a full round of lanes and a part of one


@cache
def definite(m):
    """A symmetric positive definite matrix with eigenvalues from 0.1 to 100."""
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(m, m)))
    A = (Q * np.geomspace(0.1, 100, m)) @ Q.T
    return (A + A.T) / 2


def lower(A, dtype=np.float64):
    """Its lower triangle, and above the diagonal what nobody may touch."""
    given = A.astype(dtype)
    given[np.triu_indices(len(A), 1)] = np.nan
    return given


def dense(band):
    B = np.diag(band.diagonals[:, 0])
    for j in range(1, band.width + 1):
        below = np.diag(band.diagonals[: len(B) - j, j], -j)
        B = B + below + below.T
    return B


@cases
def test_band_has_the_eigenvalues_and_the_upper_triangle_stays(m, width):
    A = definite(m)
    given = lower(A)
    band = Band(given, width)
    assert band.width == min(width or 32, max(1, m - 1))
    near(np.linalg.eigvalsh(dense(band)), np.linalg.eigvalsh(A), 1e-10)
    assert np.isnan(given[np.triu_indices(m, 1)]).all()
    assert np.isfinite(given[np.tril_indices(m)]).all()


@cases
def test_solutions(m, width):
    A, Y = definite(m), np.random.default_rng(1).normal(size=(3, m))
    before, given = Y.copy(), lower(A)
    solutions, solved = Band(given, width).solve(Y, SHIFTS)
    assert (solutions.shape, solutions.dtype, solved.tolist()) == ((11, 3, m), np.float64, [True] * 11)
    for shift, X in zip(SHIFTS, solutions, strict=True):
        near(X.T, np.linalg.solve(A + shift * np.eye(m), Y.T), 1e-10)
    assert np.isnan(given[np.triu_indices(m, 1)]).all()
    np.testing.assert_array_equal(Y, before)


def test_many_right_sides_go_in_blocks(tuned):
    A, Y = definite(130), np.random.default_rng(1).normal(size=(7, 130))
    expected, _ = Band(lower(A), 5).solve(Y, SHIFTS)
    tuned(band_many=3, band_few=2, band_steps=4)
    near(Band(lower(A), 5).solve(Y, SHIFTS)[0], expected, 1e-12)


@pytest.mark.parametrize("count", [1, LANES - 1, LANES, LANES + 1, 3 * LANES])
def test_any_number_of_shifts(count):
    """Lanes that are filled up or not: each shift's answer is that of the shift alone."""
    Y = np.random.default_rng(1).normal(size=(1, 130))
    band = Band(lower(definite(130)))
    shifts = np.geomspace(1e-3, 1e3, count)
    together, solved = band.solve(Y, shifts)
    assert solved.all()
    for shift, X in zip(shifts, together, strict=True):
        near(X, band.solve(Y, np.array([shift]))[0][0], 1e-11)


@pytest.mark.parametrize("width", WIDTHS)
def test_indefinite_shifts_fail_alone(width):
    A = definite(130) - 3 * np.eye(130)  # least eigenvalue -2.9
    shifts = np.array([10.0, 2.0, 1.0, 3.0, -200.0, 2.8, 20.0, 0.0, 4.0, -1.0])
    Y = np.random.default_rng(1).normal(size=(2, 130))
    solutions, solved = Band(lower(A), width).solve(Y, shifts)
    assert solved.tolist() == (shifts > 2.9).tolist()
    assert np.isnan(solutions[~solved]).all()
    for shift, X in zip(shifts[solved], solutions[solved], strict=True):
        near(X.T, np.linalg.solve(A + shift * np.eye(130), Y.T), 1e-9)


@pytest.mark.parametrize("bad", [0.0, np.nan])
def test_no_shift_can_be_solved(bad):
    """A first pivot that is zero or not a number: said quietly."""
    A = definite(20).copy()
    A[0, :] = A[:, 0] = 0.0
    A[0, 0] = bad
    solutions, solved = Band(lower(A)).solve(np.ones((1, 20)), np.zeros(LANES + 1))
    assert not solved.any()
    assert np.isnan(solutions).all()


@pytest.mark.parametrize(("m", "width"), [(3, None), (130, 1), (130, 2), (130, 32), (400, None)])
def test_single_precision(m, width):
    """Off by what the condition (at most 100 / shift) leaves of seven digits; answers come in double precision."""
    A, Y = definite(m), np.random.default_rng(1).normal(size=(2, m))
    given = lower(A, np.float32)
    band = Band(given, width)
    near(np.linalg.eigvalsh(dense(band)), np.linalg.eigvalsh(A), 100 * 3e-6)
    shifts = np.array([1.0, 10.0, 100.0])
    solutions, solved = band.solve(Y, shifts)
    assert solved.all()
    assert solutions.dtype == np.float64
    for shift, X in zip(shifts, solutions, strict=True):
        expected = np.linalg.solve(A + shift * np.eye(m), Y.T).T
        assert np.linalg.norm(X - expected) <= 3e-6 * (1 + 100 / shift) * np.linalg.norm(expected)
    assert np.isnan(given[np.triu_indices(m, 1)]).all()


@pytest.fixture
def limited(tuned):
    """``limited(count)``: so many threads, until the test ends."""
    tuned(threads=threads._limit)
    before = [(lib, lib.num_threads) for lib in threads._controller().lib_controllers]
    yield threads.set_threads
    for lib, count in before:
        lib.set_num_threads(count)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads(limited, dtype):
    """The same bits again with the same threads; 1 and 2 threads agree to the rounding."""
    A, Y = definite(700), np.random.default_rng(1).normal(size=(2, 700))
    answers = {}
    for count in (1, 2):
        limited(count)
        runs = [Band(given).solve(Y, SHIFTS)[0] for given in (lower(A, dtype) for _ in range(3))]
        assert runs[0].tobytes() == runs[1].tobytes() == runs[2].tobytes()
        answers[count] = runs[0]
    atol = 1e-10 if dtype == np.float64 else 1e-2
    near(answers[1], answers[2], atol)


def test_grid_uses_the_band_from_its_threshold(recorded):
    """Where PartSystem.solve goes over from factorisations to the band."""
    made = recorded(local, "Band", lambda _, A: len(A))
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.ones((1, 40))
    system = local.PartSystem(X, local.Workspace(40, X.dtype), Kernel(), grid=True)
    for count in (local.BAND_FROM - 1, local.BAND_FROM):
        system.solve(Kernel.gaussian(1.0), tuple(np.geomspace(1e-3, 1, count)), y)
    assert made == [40]
