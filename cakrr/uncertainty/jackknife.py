"""Jackknife+ intervals: from models without each row, in closed form (Barber, Candes, Ramdas and Tibshirani, 2021).

A part's model answers w^T y at x, with weights w = G^-1 K(rows, x), G = K + lambda m I. Row i is missed by r_i =
alpha_i / (G^-1)_ii if it is left out, and the model without it, of the same noise, answers f(x) - w_i r_i: alpha
without row i is alpha - G^-1 e_i r_i, which is 0 at i. An interval for coverage c goes from the
floor((m + 1) (1 - c))-th smallest of f(x) - w_i r_i - |r_i|, over the part's m rows, to the ceil((m + 1) c)-th
smallest of f(x) - w_i r_i + |r_i|.

If those rows and a new one come in random order from one source, it holds the new target with probability 1 - 2 (1 - c)
at least, whatever the noise is, and mostly about c: unlike the plain jackknife, whose intervals may hold nothing where
one row moves the model. That is of a sigma and lambda, mean, scaling and centres that these rows did not choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.machine import threads
from cakrr.solver.variance import Variance
from cakrr.uncertainty import deviation
from cakrr.uncertainty.conformal import rank_of

if TYPE_CHECKING:
    from cakrr.model import KRRModel


def predict(
    model: KRRModel, X: Rows, coverage: float, comm: Communicator, limit: int | None = None
) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
    """Predictions, and both ends of intervals, for this rank's rows; a collective call.

    Parameters
    ----------
    model : KRRModel
        A model that keeps the errors of left-out rows.
    X : array-like or CSR, shape (n_local, d)
    coverage : float
        Coverage for which each part has enough rows.
    comm : Communicator
    limit : int, optional
        Bytes that this rank may use; by default its share of what is free.

    Returns
    -------
    mean, lower, upper : ndarray, shape (n_local,) or (n_local, t)

    Raises
    ------
    InputError
        On all ranks: a matrix that does not fit, or has no factor.

    Notes
    -----
    A row costs 2 m^2 flops for each model of m rows that answers for it, and a selection of the m ends of each side and
    target. Factors as for :func:`cakrr.uncertainty.deviation.predict`. A row travels as for a prediction, and
    three numbers back. Where several models answer, the ends are averaged with the weights of their answers.
    """
    Z = model.standardized(X, comm)
    if model.route == "sum":
        mean = deviation.told_together(model, Z, comm)
        errors = comm.allgather(deviation.joined(model, (_errors(model, part) for part in sorted(model.parts))))
        values = mean[..., None] + ends(deviation.whole(model, comm, limit), errors, Z, coverage)
    else:
        held = deviation.Held(model, comm, limit)

        def answer(part: int, rows: Rows) -> NDArray[np.float64]:
            said = model.answer(part, rows)
            return said[..., None] + ends(held.of(part), _errors(model, part), rows, coverage)

        found, weights = model.consult(Z, answer, comm, (*model.target_shape, 3))
        values = np.einsum("ij...,ij->i...", found, weights)
    mean, lower, upper = np.moveaxis(values + np.asarray(model.offset)[..., None], -1, 0)
    return mean, lower, upper


def ends(variance: Variance, errors: NDArray[np.float64], X: Rows, coverage: float) -> NDArray[np.float64]:
    """Offsets from a part's answers at the rows of `X`: 0, those of the lower ends, and those of the upper ends.

    Parameters
    ----------
    variance : Variance
        Variance of the part's model.
    errors : ndarray, shape (m,) or (m, t)
        Errors of its rows, each left out.
    X : ndarray or CSR, shape (n, d)
    coverage : float

    Returns
    -------
    ndarray, shape (n, 3) or (n, t, 3)
    """
    m = len(errors)
    upper = rank_of(coverage, m) - 1
    out = np.zeros((X.shape[0], *errors.shape[1:], 3))
    columns, places = errors.reshape(m, -1).T, out.reshape(X.shape[0], -1, 3)
    for rows, W in variance.weights(X):
        # Each selection runs on one thread.
        shares = np.array_split(np.arange(rows.start, rows.stop), max(1, threads.current()))

        def of_rows(share: NDArray[np.int64], W: NDArray[np.float64] = W, first: int = rows.start) -> None:
            for j, r in enumerate(columns):
                moved = W[share - first] * -r
                places[share, j, 1] = _selected(moved - np.abs(r), m - 1 - upper)
                places[share, j, 2] = _selected(moved + np.abs(r), upper)

        threads.for_blocks(of_rows, [(share,) for share in shares])
    return out


def _selected(values: NDArray[np.float64], place: int) -> NDArray[np.float64]:
    """The value of each row that has `place` smaller ones; overwrites `values`."""
    values.partition(place, axis=1)
    return values[:, place]


def _errors(model: KRRModel, part: int) -> NDArray[np.float64]:
    errors = model.parts[part].left_out
    assert errors is not None
    return errors
