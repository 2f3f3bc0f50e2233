"""Jackknife+ intervals, from leave-one-out models in closed form (Barber, Candes, Ramdas and Tibshirani, 2021).

A part's model predicts f(x) = w^T y at x, with weights w = G^-1 K(rows, x) and G = K + lambda m I. The leave-one-out
error of row i is r_i = alpha_i / (G^-1)_ii. The model without row i, with the same ridge lambda m, has the coefficients
alpha - G^-1 e_i r_i, which are 0 at i, and predicts f(x) - w_i r_i. An interval with coverage c extends from the
floor((m + 1) (1 - c))-th smallest value of f(x) - w_i r_i - |r_i|, over the part's m rows, to the ceil((m + 1) c)-th
smallest value of f(x) - w_i r_i + |r_i|.

If the training rows and a new row are exchangeable, the interval contains the new target with probability at least
1 - 2 (1 - c) for any noise, and usually about c. The plain jackknife has no such guarantee: its intervals may miss most
targets if single rows change the model. The guarantee assumes that sigma, lambda, mean, scaling and centres were not
chosen from these rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows
from cacore.machine import threads
from cacore.probability.conformal import rank_of
from cakrr.solver.variance import Variance
from cakrr.uncertainty import deviation

if TYPE_CHECKING:
    from cakrr.model import KRRModel


def predict(
    model: KRRModel, X: AnyRows, coverage: float, comm: Communicator, limit: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Predictions and both ends of intervals for this rank's rows; a collective call.

    Parameters
    ----------
    model : KRRModel
        A model that stores leave-one-out errors.
    X : array-like or CSR, shape (n_local, d)
    coverage : float
        Coverage; each part must have enough rows for it.
    comm : Communicator
    limit : int, optional
        Memory limit of this rank in bytes; by default its share of the free memory.

    Returns
    -------
    mean, lower, upper : ndarray, shape (n_local,) or (n_local, t)

    Raises
    ------
    InputError
        On all ranks: a matrix does not fit, or has no Cholesky factor.

    Notes
    -----
    A row costs 2 m^2 flops per model of m rows that predicts it, and one selection among m values per end and target.
    Factors cost what they do in :func:`cakrr.uncertainty.deviation.predict`. Rows are sent as for a prediction, and
    three numbers per row are sent back. If several models predict a row, the ends of their intervals are averaged with
    the weights of the predictions.
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


def ends(variance: Variance, errors: NDArray[np.float64], X: AnyRows, coverage: float) -> NDArray[np.float64]:
    """Offsets from a part's predictions at the rows of `X`: 0, the lower end, and the upper end.

    Parameters
    ----------
    variance : Variance
        Variance of the part's model.
    errors : ndarray, shape (m,) or (m, t)
        Leave-one-out errors of the part's rows.
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
    """In each row, the value with exactly `place` smaller ones; overwrites `values`."""
    values.partition(place, axis=1)
    return values[:, place]


def _errors(model: KRRModel, part: int) -> NDArray[np.float64]:
    errors = model.parts[part].left_out
    assert errors is not None
    return errors
