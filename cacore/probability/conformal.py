"""Split conformal intervals, which contain a new target with a given probability for any model and any noise.

The half width is the ceil((n + 1) coverage)-th smallest of the errors |y - f(x)| of n calibration rows that training
never saw (Vovk, Gammerman and Shafer, 2005; Lei et al., 2018). If these rows and a new row are exchangeable, the
interval contains the new target with at least this probability, over the draw of all of them.

Adaptive intervals divide the errors by the model's standard deviations and multiply by that of the new row. They are as
valid, and narrower where the model is certain. Alternatively, each part uses the errors of the calibration rows nearest
to its centre. Such intervals are valid for the rows of each part (Vovk's Mondrian form), and wide where there is noise.
Parts with too few calibration rows share a width: see :func:`shared_classes`.

Conformalised quantile intervals start from two quantiles of a model, and move both ends outwards by that order
statistic of the scores max(q_lo(x) - y, y - q_hi(x)) (Romano, Patterson and Candes, 2019). They are as valid, and their
width varies with the row as the noise does. A negative order statistic narrows them.

Leave-one-out errors need no calibration rows, but give the plain jackknife, which guarantees no coverage: the rows were
used to choose sigma and lambda, and to train the model. For intervals that account for the effect of each row on the
prediction, see :mod:`cakrr.uncertainty.answer`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.holdout import Holdout
from cacore.data.selection import order_statistics
from cacore.errors import InputError
from cacore.io.model_file import require


def set_aside(train: Dataset, share: float, seed: int, comm: Communicator) -> tuple[Dataset, Dataset]:
    """Split off a random share of all ranks' rows, the same on any number of ranks: (training, aside). Collective."""
    with comm.agreed():
        train.target()
    chosen, remaining, count = rows_aside(train.X.shape[0], share, seed, comm)
    parted = [_subset(train, ~chosen, remaining), _subset(train, chosen, count)]
    train.give()
    return parted[0], parted[1]


def rows_aside(rows: int, share: float, seed: int, comm: Communicator) -> tuple[NDArray[np.bool_], int, int]:
    """A random share of all ranks' rows, the same on any number of ranks; collective.

    Returns
    -------
    chosen : ndarray of bool, shape (rows,)
        Mask of this rank's rows that are set aside.
    left, aside : int
        Number of rows of each kind on all ranks.

    Raises
    ------
    InputError
        On all ranks: no row would be set aside, or none left to train on.
    """
    shuffled = Holdout.shuffled(rows, seed, comm)
    n, count = shuffled.n, round(share * shuffled.n)
    with comm.agreed():
        if not 0 < count < n:
            raise InputError(f"calibrate = {share:g}: this share of {n:,} rows is {count:,}; both sides need rows")
    return np.asarray(shuffled.place < count), n - count, count


def _subset(rows: Dataset, which: NDArray[np.bool_], n: int) -> Dataset:
    weights = None if rows.weights is None else rows.weights[which]
    return replace(rows, X=rows.X[which], y=rows.target()[which], weights=weights, n=n)


# Reasoned: 16 KB per target. With more rows a level in between adds 0.001 to the coverage, less than the chance of the
# draw, sqrt(0.9 * 0.1 / 2,000) = 0.007; the largest errors stay exact, since beyond 99 % levels are far apart.
WHOLE = 2000  # up to this number, all errors are stored
_LEVELS = 1000
_TAIL = 100  # beyond that number, the largest errors always are
HELD_OUT, LEFT_OUT, JACKKNIFE = "held out", "left out", "jackknife+"  # where errors come from
SEARCHED = "searched"  # held out by a search, which chose the model by them


@dataclass(eq=False)
class Calibration:
    """Stored errors of the n calibration rows, ascending, from which intervals of any coverage are made.

    Up to 2,000 rows, all errors are stored. With more rows, the 100 largest errors are stored, and those for coverages
    that are multiples of 1/1000. Other coverages use the next larger stored error, which adds at most 1/1000 to the
    coverage.

    Attributes
    ----------
    n : int
        Number of calibration rows on all ranks.
    rows : {"held out", "left out", "jackknife+", "searched"}
        Kind of calibration rows: set aside before training, left out one at a time, or held out by a search. For
        "jackknife+", the parts store the errors.
    ranks : ndarray of int64, shape (q,)
        Ranks of the stored errors among all n, ascending; 1 is the smallest.
    errors : ndarray, shape (q,) or (q, t)
        Errors |y - f(x)|, or scores of pairs of quantiles.
    scaled : ndarray, shape (q,) or (q, t), or None
        Errors over the scales of adaptive intervals.
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
        """Select the errors to store from those of this rank's rows, shape (n_local,) or (n_local, t); collective.

        8 Allreduces per target, and as many for the errors over `deviations`; neither rows nor errors are gathered.
        """
        n = comm.offset(len(errors))[1]
        ranks = kept_ranks(n)
        sizes, scaled = np.abs(errors), None
        if deviations is not None:
            tiny = np.finfo(np.float64).tiny  # for a constant target, deviations and errors are 0
            scaled = selected(sizes / np.maximum(deviations, tiny), ranks, comm)
        return cls(n, rows, ranks, selected(sizes, ranks, comm), scaled)

    @classmethod
    def of_scores(cls, scores: NDArray[np.float64], comm: Communicator) -> Calibration:
        """Select the scores to store from those of this rank's held-out rows, shape (n_local, t), of any sign.

        Collective, at the cost of :meth:`of`; the half width of each column is then that to add to its interval's ends.
        """
        n = comm.offset(len(scores))[1]
        ranks = kept_ranks(n)
        return cls(n, HELD_OUT, ranks, selected(scores, ranks, comm))

    def described(self, coverage: float, adaptive: str | None = None) -> dict[str, Any]:
        """Entries of a report about intervals of this coverage."""
        return {"asked": coverage, "adaptive": adaptive, "rows": self.rows, "calibration_rows": self.n}

    def check(self) -> None:
        """Refuse inconsistent fields."""
        valid = isinstance(self.n, int) and self.n > 0 and self.rows in (HELD_OUT, LEFT_OUT, JACKKNIFE, SEARCHED)
        require(valid, f"calibration on {self.n!r} rows, {self.rows!r}")
        require(np.array_equal(self.ranks, kept_ranks(self.n)), "the stored errors do not match the number of rows")

    def half_width(self, coverage: float, scaled: bool = False) -> Any:
        """Half width at this coverage, a number or an ndarray of shape (t,); in standard deviations if `scaled`.

        Raises
        ------
        InputError
            The coverage is outside (0, 1) or needs more rows, or the model has no scaled errors.
        """
        check_coverage(coverage)
        if scaled and self.scaled is None:
            raise InputError(
                "adaptive intervals: the model has no errors in standard deviations; train it with keep_factors "
                "(--keep-factors)"
            )
        rank = rank_of(coverage, self.n)
        if rank > self.n:
            raise InputError(
                f"coverage {coverage:g} needs {rows_for(coverage):,} rows to calibrate on, and the model has "
                f"{self.n:,}: train with a larger share in calibrate (--calibrate)"
            )
        errors = self.errors if not scaled or self.scaled is None else self.scaled
        return errors[np.searchsorted(self.ranks, rank)]


def rank_of(coverage: float, n: int) -> int:
    """Rank of the half width among n ascending errors, from 1; above n if they are too few for this coverage."""
    return math.ceil((n + 1) * Fraction(str(coverage)))


def rows_for(coverage: float) -> int:
    """Smallest number of errors for this coverage."""
    level = Fraction(str(coverage))
    return math.ceil(level / (1 - level))


def shared_classes(counts: NDArray[np.int64], coverage: float) -> dict[int, NDArray[np.intp]]:
    """Parts that do not calibrate alone: for each, the parts whose calibration rows give its width.

    Parts with too few calibration rows for this coverage form one class, which the smallest of the other parts joins if
    even their rows together are too few.

    Parameters
    ----------
    counts : ndarray of int64, shape (P,)
        Calibration rows of each part; all of them together are enough for the coverage.
    coverage : float

    Returns
    -------
    dict
        Numbers of parts, ascending, with those of the parts of their class, which includes the part itself.

    Notes
    -----
    Intervals are valid for each class if the classes depend on the calibration rows and the new row alike (Vovk's
    Mondrian form). So the new row is counted before parts are called too small. A class that only the calibration
    rows made would have the parts that drew fewer rows than their share.
    """
    needed = rows_for(coverage)
    few = np.flatnonzero(counts < needed)
    together = int(counts[counts <= needed].sum())
    classes = {int(few[0]): _class_of(int(few[0]), counts, needed)} if len(few) else {}
    for part in range(len(counts)):
        if counts[part] < needed:
            classes[part] = classes[int(few[0])]  # the same for all of these parts
        elif 0 < together - counts[part] * (counts[part] <= needed) <= needed:
            members = _class_of(part, counts, needed)
            if len(members) > 1:
                classes[part] = members
    return classes


def _class_of(part: int, counts: NDArray[np.int64], needed: int) -> NDArray[np.intp]:
    """Parts of the class of a new row in this part."""
    counted = counts.copy()
    counted[part] += 1
    order = np.argsort(counted, kind="stable")
    total = np.cumsum(counted[order])
    small = int(np.searchsorted(counted[order], needed, "right"))
    if small == 0 or total[small - 1] == 0:
        return np.array([part])
    members = order[: max(small, int(np.searchsorted(total, needed, "right")) + 1)]
    return np.sort(members) if part in members else np.array([part])


def check_coverage(coverage: object) -> None:
    """Raise an InputError unless `coverage` is a number between 0 and 1."""
    if isinstance(coverage, bool | str) or not np.isscalar(coverage) or not 0 < coverage < 1:  # type: ignore[operator]
        raise InputError(f"coverage = {coverage!r}: it must be a number between 0 and 1")


def kept_ranks(n: int) -> NDArray[np.int64]:
    """Ranks of the errors to store among n ascending ones, from 1."""
    if n <= WHOLE:
        return np.arange(1, n + 1)
    levels = -(-(n + 1) * np.arange(1, _LEVELS) // _LEVELS)
    return np.unique(np.concatenate([levels, np.arange(n - _TAIL + 1, n + 1)]))


def selected(sizes: NDArray[np.float64], ranks: ArrayLike, comm: Communicator) -> NDArray[np.float64]:
    """Order statistics of all ranks' numbers, of each column of `sizes`; 8 Allreduces per column. Collective."""
    if sizes.ndim == 1:
        return order_statistics(sizes, ranks, comm)
    return np.stack([order_statistics(column, ranks, comm) for column in sizes.T], axis=1)


Pair = tuple[int, int]  # places of the lower and the upper quantile among the levels


def quantile_pairs(levels: tuple[float, ...]) -> tuple[Pair, ...]:
    """Pairs that make intervals: each level below 1/2, with the level above 1/2 that is closest to its mirror image.

    Raises
    ------
    InputError
        All levels are on one side of 1/2.
    """
    above = [place for place, level in enumerate(levels) if level > 0.5]
    below = [place for place, level in enumerate(levels) if level < 0.5]
    if not above or not below:
        text = ",".join(f"{level:g}" for level in levels)
        raise InputError(
            f"intervals: quantile = {text} has no levels on both sides of 0.5; give a lower and an upper one, such as "
            "0.05,0.95"
        )
    return tuple((low, min(above, key=lambda high: abs(levels[low] + levels[high] - 1.0))) for low in below)


def check_held_out(levels: tuple[float, ...], n: int) -> None:
    """Raise an InputError if `n` held-out rows are too few for the highest of these levels.

    The quantile tau is moved by the ceil((n + 1) tau)-th smallest of n residuals, of which tau / (1 - tau) are needed.
    A low level needs one row.
    """
    if not n:
        raise InputError("calibrate: no held-out row has a positive weight; hold out a larger share")
    if rank_of(max(levels), n) > n:
        raise InputError(
            f"calibrate: quantile {max(levels):g} needs {rows_for(max(levels)):,} held-out rows, and {n:,} are held "
            "out; hold out a larger share, or give a level closer to 0.5"
        )


def pair_scores(predicted: NDArray[np.float64], y: NDArray[np.float64], pairs: tuple[Pair, ...]) -> NDArray[np.float64]:
    """Scores max(q_lo - y, y - q_hi) of each row and pair, shape (n, len(pairs)); below 0 inside the interval.

    Parameters
    ----------
    predicted : ndarray of float64, shape (n, t)
        Predicted quantiles, ascending in each row.
    y : ndarray of float64, shape (n,)
    pairs : tuple of Pair
    """
    low, high = (list(places) for places in zip(*pairs, strict=True))
    return np.maximum(predicted[:, low] - y[:, None], y[:, None] - predicted[:, high])


def closest_pair(levels: tuple[float, ...], pairs: tuple[Pair, ...], coverage: float) -> int:
    """Number of the pair whose levels differ by about this coverage."""
    return min(range(len(pairs)), key=lambda k: abs(levels[pairs[k][1]] - levels[pairs[k][0]] - coverage))


def interval_ends(
    predicted: NDArray[np.float64], pair: Pair, width: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of the intervals of a pair of quantiles, each moved outwards by `width`.

    Where a negative width makes them pass each other, both are midway between the quantiles.
    """
    low, high = predicted[:, pair[0]], predicted[:, pair[1]]
    middle = 0.5 * (low + high)
    return np.minimum(low - width, middle), np.maximum(high + width, middle)
