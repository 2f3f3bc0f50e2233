"""Scalings of the features to compare: by standard deviation, or by normal scores of their quantiles."""

from __future__ import annotations

from dataclasses import replace

from cacore.comm import Communicator
from cacore.data.dataset import Samples
from cacore.data.quantiles import normal_scores, quantiles_of
from cacore.data.rows import dense, is_sparse
from cacore.errors import InputError
from cakrr.methods.prepare import RidgeRows
from cakrr.options import LEVELS, RidgeOptions


def scalings(rows: RidgeRows, options: RidgeOptions, comm: Communicator) -> list[RidgeRows]:
    """The rows with one scaling, or with both if validation chooses between them; collective.

    Raises
    ------
    InputError
        On all ranks: quantiles of sparse rows.
    """
    if options.scaling in ("deviation", LEVELS):
        return [rows]  # levels have been prepared
    if is_sparse(rows.samples.X):
        with comm.agreed():
            raise InputError(f"scaling {options.scaling}: normal scores would make the sparse rows dense; leave it out")
    scored = _scored(rows, options.seed, comm)
    return [scored] if options.scaling == "quantile" else [rows, scored]


def _scored(rows: RidgeRows, seed: int, comm: Communicator) -> RidgeRows:
    """The rows with features replaced by their normal scores; collective."""
    assert rows.standardizer is not None
    X = dense(rows.samples.X)
    with comm.phase("read"):
        quantiles = quantiles_of(X, seed, comm)
    samples = Samples(normal_scores(X, quantiles), dict(rows.samples.columns))
    standardizer = replace(rows.standardizer, quantiles=quantiles)
    return replace(rows, samples=samples, standardizer=standardizer, scaling="quantile")
