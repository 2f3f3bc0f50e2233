"""Intervals that hold a new target with a probability that was asked for, whatever the model and the noise.

Split conformal intervals (Vovk, Gammerman and Shafer, 2005; Lei et al., 2018): n rows that no part of the training has
seen are missed by |y - f(x)|, and the ceil((n + 1) coverage)-th smallest of these errors is the half width. If those
rows and a new one come in random order from one source, the interval holds the new target with at least this
probability, over the draw of all of them. Adaptive intervals divide errors by the model's standard deviation, and
multiply by that of the new row: as valid, and narrow where the model is sure. Or each part has the errors of the rows
that are nearest to its centre: valid for the rows of each part (Vovk's Mondrian form), and wide where there is noise.

Rows that are left out of their part's model one at a time spend no rows, but theirs is the plain jackknife: they have
judged sigma and lambda, or a share of them has, and were part of the model that answers. No coverage is guaranteed.
Intervals that see what each row does to the answer are in :mod:`cakrr.uncertainty.jackknife`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.selection import order_statistics
from cacore.errors import InputError
from cacore.io.model_file import require

WHOLE = 2000  # so many errors are all kept
_LEVELS = 1000
_TAIL = 100  # of more, the largest ones are
HELD_OUT, LEFT_OUT, JACKKNIFE = "held out", "left out", "jackknife+"  # where errors come from


@dataclass(eq=False)
class Calibration:
    """Errors from which intervals of any coverage are made: some of those of n rows, ascending.

    All of them up to 2,000 rows. Of more, those that a coverage of whole thousandths asks for, and the 100 largest:
    other coverages take the next larger error, and are at most 1/1000 larger.

    Attributes
    ----------
    n : int
        Rows, on all ranks.
    rows : {"held out", "left out", "jackknife+"}
        Set aside before training; or each left out of its part's model: "jackknife+" has their errors in its parts.
    ranks : ndarray of int64, shape (q,)
        Which of the n errors are kept, ascending; 1 is the smallest.
    errors : ndarray, shape (q,) or (q, t)
        |y - f(x)|.
    scaled : ndarray, shape (q,) or (q, t), or None
        The same over the model's standard deviation.
    """

    n: int
    rows: str
    ranks: NDArray[np.int64]
    errors: NDArray[np.float64]
    scaled: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls, rows: str, errors: NDArray[np.float64], deviations: NDArray[np.float64] | None, comm: Communicator
    ) -> Calibration:
        """From the errors of this rank's rows, shape (n_local,) or (n_local, t); collective.

        8 Allreduces for each target, and as many for the errors over `deviations`; no row and no error is gathered.
        """
        n = comm.offset(len(errors))[1]
        ranks = kept_ranks(n)
        sizes, scaled = np.abs(errors), None
        if deviations is not None:
            tiny = np.finfo(np.float64).tiny  # of a constant target, deviations and errors are both 0
            scaled = _selected(sizes / np.maximum(deviations, tiny), ranks, comm)
        return cls(n, rows, ranks, _selected(sizes, ranks, comm), scaled)

    def check(self) -> None:
        """Refuse what does not fit together."""
        known = isinstance(self.n, int) and self.n > 0 and self.rows in (HELD_OUT, LEFT_OUT, JACKKNIFE)
        require(known, f"calibration on {self.n!r} rows, {self.rows!r}")
        require(np.array_equal(self.ranks, kept_ranks(self.n)), "the errors that are kept are not those of the rows")

    def half_width(self, coverage: float, scaled: bool = False) -> Any:
        """Half width at this coverage, a number or an ndarray of shape (t,); in standard deviations if `scaled`.

        Raises
        ------
        InputError
            Coverage outside (0, 1); fewer rows than it needs; no errors in standard deviations.
        """
        check_coverage(coverage)
        if scaled and self.scaled is None:
            raise InputError(
                "adaptive intervals: the model has no errors in standard deviations; train it with keep_factors, "
                "--keep-factors"
            )
        rank = rank_of(coverage, self.n)
        if rank > self.n:
            raise InputError(
                f"coverage {coverage:g} needs {rows_for(coverage):,} rows to calibrate on, and the model has "
                f"{self.n:,}: train with a larger share, calibrate, --calibrate"
            )
        kept = self.errors if not scaled or self.scaled is None else self.scaled
        return kept[np.searchsorted(self.ranks, rank)]


def rank_of(coverage: float, n: int) -> int:
    """Rank of the half width among n errors, 1 the smallest; more than n if they are too few for this coverage."""
    return math.ceil((n + 1) * Fraction(str(coverage)))


def rows_for(coverage: float) -> int:
    """How many errors this coverage needs."""
    level = Fraction(str(coverage))
    return math.ceil(level / (1 - level))


def check_coverage(coverage: Any) -> None:
    """Refuse what is no number between 0 and 1."""
    if isinstance(coverage, bool | str) or not np.isscalar(coverage) or not 0 < coverage < 1:  # type: ignore[operator]
        raise InputError(f"coverage = {coverage!r}: it must be a number between 0 and 1")


def kept_ranks(n: int) -> NDArray[np.int64]:
    """Ranks of the errors that are kept, of n, 1 the smallest."""
    if n <= WHOLE:
        return np.arange(1, n + 1)
    levels = -(-(n + 1) * np.arange(1, _LEVELS) // _LEVELS)
    return np.unique(np.concatenate([levels, np.arange(n - _TAIL + 1, n + 1)]))


def _selected(sizes: NDArray[np.float64], ranks: NDArray[np.int64], comm: Communicator) -> NDArray[np.float64]:
    if sizes.ndim == 1:
        return order_statistics(sizes, ranks, comm)
    return np.stack([order_statistics(column, ranks, comm) for column in sizes.T], axis=1)
