"""A trained quantile regression: several real outputs per row, which ascend, and intervals made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.checks import one_of
from cacore.comm import CommLike, Communicator
from cacore.data.encoding import Columns
from cacore.data.rows import AnyRows, Rows
from cacore.data.selection import order_statistics
from cacore.errors import InputError
from cacore.io import model_file
from cacore.io.model_file import Array, Layout, is_real, require
from cacore.probability.conformal import (
    Calibration,
    Pair,
    check_coverage,
    closest_pair,
    interval_ends,
    pair_scores,
    quantile_pairs,
    rank_of,
)
from casvm.model.svr_model import PART, SVRModel
from partition.parts_model import SHARED

Ends = tuple[NDArray[np.float64], NDArray[np.float64]]

# Arrays of a model file: t quantiles, of which w pairs make intervals.
ARRAYS: Layout = {
    **SHARED,
    "shifts": Array("float64", ("t",), "number added to each quantile, from held-out rows", optional=True),
    "error_ranks": Array("int64", ("q",), "ranks of the scores stored for intervals, among n", optional=True),
    "errors": Array("float64", ("q", "w"), "scores of these ranks, for each pair of quantiles", optional=True),
}
QUANTILE_PART: Layout = {
    **PART,
    "beta": Array("float64", ("s", "t"), "coefficients of each quantile"),
    "b": Array("float64", ("t",), "intercept of each quantile"),
}


@dataclass(kw_only=True)
class QuantileModel(SVRModel):
    """Quantile regressions of P parts, of which this rank holds some.

    Attributes
    ----------
    quantile : float or tuple of float
        Level of the quantile, or several in ascending order.
    shifts : ndarray of float64, shape (t,), or None
        Number added to each quantile: with it, the right share of the held-out rows is below.
    calibration : Calibration or None
        Scores of held-out rows for each pair of quantiles, from which intervals are made.
    svm_type : {"quantile_svr"}
    kernel, params
        As for :class:`casvm.model.svr_model.SVRModel`; `params` has C.

    Notes
    -----
    Each quantile is a solution of its own, so that they may cross where there are few rows. Predictions are sorted in
    each row (Chernozhukov, Fernandez-Val and Galichon, 2010), which never raises the pinball loss.

    A flexible model lies closer to its training rows than to new ones, so that fewer new rows are between two of its
    quantiles than their levels say. With n held-out rows, quantile tau is moved by the ceil((n + 1) tau)-th smallest of
    their residuals. A new target is then below it with a probability from tau to tau + 1 / (n + 1). Training with
    fewer than tau / (1 - tau) held-out rows is refused.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from casvm import QuantileModel, SMOQuantileSVR
    >>> X, y = make_friedman1(200, random_state=0)
    >>> SMOQuantileSVR(quantile=[0.1, 0.9], C=100, gamma=1.0).fit(X, y).save("quantiles.h5")
    >>> QuantileModel.load("quantiles.h5").predict(X[:3]).shape
    (3, 2)
    """

    family = "quantiles"
    shared_arrays = ARRAYS
    part_arrays = QUANTILE_PART
    types = ("quantile_svr",)

    quantile: float | tuple[float, ...]
    shifts: NDArray[np.float64] | None = None
    calibration: Calibration | None = None

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels, also of a single quantile."""
        return self.quantile if isinstance(self.quantile, tuple) else (self.quantile,)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """One output per level."""
        return (len(self.levels),)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of a row's prediction."""
        return self.output_shape if isinstance(self.quantile, tuple) else ()

    def described(self) -> dict[str, object]:
        """Fields that describe the model in the report."""
        return {**super().described(), "quantile": list(self.levels)}

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that :meth:`explain` explains, the quantiles before they are sorted."""
        (name,) = Columns.of_source(self.source).target or ("y",)
        return tuple(f"{name} {level:g}" for level in self.levels)

    def single_output(self) -> bool:
        """True if the quantile was given as one number."""
        return not isinstance(self.quantile, tuple)

    def answers(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Quantiles for rows with these outputs, shape (n, t), or (n,) for a single number; see :meth:`quantiles`."""
        quantiles = self.quantiles(values)
        return quantiles if isinstance(self.quantile, tuple) else quantiles[:, 0]

    def quantiles(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Quantiles for rows with these outputs, shape (n, t): sorted in each row, shifted, and sorted again."""
        quantiles = np.sort(values, axis=1)
        return quantiles if self.shifts is None else np.sort(quantiles + self.shifts, axis=1)

    def predict_interval(
        self, X: AnyRows, coverage: float = 0.9, method: str = "quantile", comm: CommLike = None
    ) -> Ends:
        """Lower and upper ends of intervals for new targets at this rank's rows, shape (n_local,); collective.

        Conformalised quantile regression (Romano, Patterson and Candes, 2019): the two quantiles whose levels differ by
        about `coverage`, before they are shifted, both moved outwards by the same number, by which an interval contains
        a new target with at least this probability; see :mod:`cacore.probability.conformal`.

        Raises
        ------
        InputError
            On all ranks: the model was not calibrated, or the coverage is outside (0, 1) or too high for the number of
            calibration rows.
        """
        with self._ranks(comm, "predict_interval") as ranks, ranks.phase("predict"):
            with ranks.agreed():
                one_of("quantile")(method, "method =")
                self.width(coverage)
            Z = self.standardized(X, ranks)
            return self.ends(self._answered(Z, ranks, self.output_shape), coverage)

    def ends(self, values: NDArray[np.float64], coverage: float) -> Ends:
        """Ends of the intervals of rows with these outputs."""
        pair, width = self.width(coverage)
        return interval_ends(np.sort(values, axis=1), pair, width)

    def width(self, coverage: float) -> tuple[Pair, float]:
        """The pair of quantiles for this coverage, and the number by which both ends move; an InputError if none."""
        check_coverage(coverage)
        pairs = quantile_pairs(self.levels)
        if self.calibration is None:
            raise InputError("intervals: the model was trained without calibrate; train it again with --calibrate 0.1")
        chosen = closest_pair(self.levels, pairs, coverage)
        return pairs[chosen], float(self.calibration.half_width(coverage)[chosen])

    def calibrate(self, values: NDArray[np.float64], y: NDArray[np.float64], comm: Communicator) -> None:
        """Shift the quantiles by held-out rows with these outputs and targets, and keep their scores; collective.

        8 Allreduces per level, and per pair of quantiles, of up to 256 counts per stored score. There must be enough
        rows; see :func:`cacore.probability.conformal.check_held_out`.
        """
        quantiles, n = np.sort(values, axis=1), comm.offset(len(y))[1]
        shifts = [
            order_statistics(y - column, [rank_of(level, n)], comm)[0]
            for column, level in zip(quantiles.T, self.levels, strict=True)
        ]
        self.shifts = np.array(shifts)
        if min(self.levels) < 0.5 < max(self.levels):
            self.calibration = Calibration.of_scores(pair_scores(quantiles, y, quantile_pairs(self.levels)), comm)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        attributes, arrays = super()._stored()
        attributes["quantile"] = list(self.quantile) if isinstance(self.quantile, tuple) else self.quantile
        if self.shifts is not None:
            arrays["shifts"] = self.shifts
        if self.calibration is not None:
            calibration = self.calibration
            attributes["calibration"] = {"n": calibration.n, "rows": calibration.rows}
            arrays |= {"error_ranks": calibration.ranks, "errors": calibration.errors}
        return attributes, arrays

    @classmethod
    def _shared_sizes(cls, attributes: dict[str, Any]) -> dict[str, int]:
        return {"t": np.size(attributes["quantile"])}

    @classmethod
    def _part_sizes(cls, attributes: dict[str, Any], shared: dict[str, Any], number: int) -> dict[str, int]:
        return super()._part_sizes(attributes, shared, number) | cls._shared_sizes(attributes)

    @classmethod
    def _from_contents(
        cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts
    ) -> QuantileModel:
        if isinstance(attributes["quantile"], list):
            attributes["quantile"] = tuple(attributes["quantile"])
        attributes["shifts"] = shared.get("shifts")
        if (calibration := attributes.pop("calibration", None)) is not None:
            errors = shared["error_ranks"], shared["errors"]
            attributes["calibration"] = Calibration(calibration["n"], calibration["rows"], *errors)
        model = super()._from_contents(attributes, shared, parts)
        assert isinstance(model, cls)
        return model

    def _check(self) -> None:
        super()._check()
        levels = self.levels
        real = bool(levels) and all(is_real(level) and 0 < level < 1 for level in levels)
        require(real and list(levels) == sorted(set(levels)), f"quantile {self.quantile!r}")
        if self.calibration is not None:
            self.calibration.check()
            pairs = len(quantile_pairs(levels))
            require(self.calibration.errors.shape[1:] == (pairs,), "the scores do not match the quantiles")
