"""Kernel, drift and criterion of the estimates, chosen by the data where the user names no kernel.

1. :func:`select`: fits each kernel to a small sample by likelihood, and the best one also by left-out blocks.
2. :class:`GapBlocks`: predicts left-out blocks of the size of the gaps between the points, and compares the densities.

The likelihood weighs short distances most. So it chooses the kernel, unless another fit predicts left-out blocks
significantly better: a map asks for values in its gaps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.special import chdtri

from cacore.comm import Communicator
from cacore.io.checkpoint import Kept
from cacore.kernels import Kernel
from cakriging.estimation import (
    CRITERIA,
    MOST_BLOCKS,
    SMALLEST,
    Estimate,
    LeftOutBlocks,
    Parameters,
    Sample,
    criterion_of,
    search,
)

KERNELS = ("laplacian", "matern32", "matern52", "gaussian", "wendland2")  # in the order of their smoothness
ENDING = ("wendland0", "wendland2", "wendland4")  # for a solver that needs near points

# Reasoned from the flops, since each fit takes about 75 evaluations: 3,000 points with 20 neighbours take 0.01 s each.
SCREENED, FEW = 3000, 20  # points and neighbours of the fits that are compared
COMPARED, MANY = 8000, 30  # points and neighbours of the left-out blocks
_LOOSE = 0.02  # change of logarithms and score that ends a search: less than the differences between kernels
_SURE = 2.5  # standard errors by which a fit must predict blocks better than that of the likelihood
_SLOPE = 0.01  # probability of a linear drift where there is none
_CELLS = 8  # random points per cell of the grid that shows the gaps: 3 in 10,000 cells are empty by chance
_FEWEST_BLOCKS = 20  # a comparison of fewer blocks has no standard error worth the name


@dataclass(frozen=True)
class CovarianceChoice:
    """The chosen kernel, drift and criterion, and first parameters.

    Attributes
    ----------
    kernel : str
    estimation : str
        "likelihood" or "blocks".
    linear : bool
        True if the drift of the sample is kept; False for a constant one.
    first : Parameters
        Estimates from the small sample.
    """

    kernel: str
    estimation: str
    linear: bool
    first: Parameters

    def arrays(self) -> Kept:
        """The fields as arrays, for a checkpoint."""
        first = np.array([self.first.range, self.first.sill, self.first.nugget])
        names = ENDING + KERNELS
        numbers = np.array([names.index(self.kernel), [*CRITERIA].index(self.estimation), int(self.linear)])
        return {"numbers": numbers, "first": first}

    @classmethod
    def of_arrays(cls, arrays: Kept) -> CovarianceChoice:
        """The selection that :meth:`arrays` stored."""
        kernel, criterion, linear = arrays["numbers"].tolist()
        return cls((ENDING + KERNELS)[kernel], [*CRITERIA][criterion], bool(linear), Parameters(*arrays["first"]))


def select(
    sample: Sample, base: NDArray[np.float64], kernels: Sequence[Kernel], taper: float, fixed: Parameters,
    estimation: str, comm: Communicator,
) -> CovarianceChoice:  # fmt: skip
    """Choose one of the kernels, a criterion unless it is named, and whether the drift has slopes; collective.

    Parameters
    ----------
    sample : Sample
        Its drift is a constant, or a constant and slopes.
    base : ndarray, shape (p,)
        Coefficients of the drift that were subtracted from the values.
    kernels : sequence of Kernel
    taper : float
    fixed : Parameters
        Those set by the user.
    estimation : str
        "likelihood", "blocks", or "auto" to choose.
    comm : Communicator

    Notes
    -----
    A search of about 75 evaluations per kernel and one by left-out blocks, each of 3,000 points with 20 neighbours;
    then one evaluation per fit of 8,000 points with 30.
    """
    small = sample.part(SCREENED)
    by = "likelihood" if estimation == "auto" else estimation
    fits = [_fit(small, kernel, taper, fixed, by, comm) for kernel in kernels]
    best = max(range(len(fits)), key=lambda number: fits[number].loglikelihood)
    kernel, estimate = kernels[best], fits[best]
    if estimation == "auto":
        trials = [(kernel, "likelihood", fit) for kernel, fit in zip(kernels, fits, strict=True)]
        trials.append((kernel, "blocks", _fit(small, kernel, taper, fixed, "blocks", comm)))
        judge = GapBlocks(sample, comm)
        densities = [judge.densities(kernel, taper, fit) for kernel, _, fit in trials]
        kernel, by, estimate = trials[preferred(densities, best)]
    first = Parameters(estimate.range, estimate.sill, estimate.nugget)
    return CovarianceChoice(kernel.kind, by, _has_slopes(small, base, kernel, taper, first, comm), first)


def _fit(sample: Sample, kernel: Kernel, taper: float, fixed: Parameters, by: str, comm: Communicator) -> Estimate:
    """Parameters of one kernel, from Vecchia's approximation even where the likelihood could be exact; collective."""
    return search(criterion_of(by, sample)(sample, kernel, taper, comm, FEW, exact=False), fixed, close=_LOOSE)


def preferred(densities: Sequence[NDArray[np.float64]], best: int) -> int:
    """Number of the fit to use: `best`, unless others are better by 2.5 standard errors; the best of these.

    `densities` are the logarithms of each block's density, one array per fit.
    """
    lead = [0.0] * len(densities)
    for number, density in enumerate(densities):
        gain = density - densities[best]
        error = float(gain.std(ddof=1)) / math.sqrt(len(gain))
        lead[number] = float(gain.mean()) if gain.mean() > _SURE * error else 0.0
    leader = int(np.argmax(lead))
    return leader if lead[leader] > 0 else best


def _has_slopes(
    sample: Sample, base: NDArray[np.float64], kernel: Kernel, taper: float, first: Parameters, comm: Communicator
) -> bool:
    """True if the slopes of the drift differ from 0, by Wald's test at 1 %; collective."""
    q = sample.F.shape[1] - 1
    if q < 1:
        return False
    gram = criterion_of("likelihood", sample)(sample, kernel, taper, comm, FEW, exact=False).gram_of(first)
    inverse = np.linalg.pinv(gram[:-1, :-1])
    slopes = (base + inverse @ gram[:-1, -1])[1:]
    square = float(slopes @ np.linalg.solve(inverse[1:, 1:], slopes)) / float(first.sill or 1.0)
    return square > float(chdtri(q, _SLOPE))


# -- left-out blocks ---------------------------------------------------------------------------------------


class GapBlocks:
    """Predictions of left-out blocks that are as large as the gaps between points; construction is local.

    Parameters
    ----------
    sample : Sample
    comm : Communicator

    Attributes
    ----------
    blocks : int
        Number of blocks.
    """

    def __init__(self, sample: Sample, comm: Communicator) -> None:
        self.sample, self.comm = sample.part(COMPARED), comm
        random = self.sample.X[: len(self.sample) - self.sample.blocks]
        self.blocks = block_count(random, len(self.sample))

    def predicted(
        self, kernel: Kernel, taper: float, fit: Estimate | Parameters
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Block, error and variance of each value, shape (s,), by the parameters of a fit; collective."""
        assert fit.range is not None
        assert fit.sill is not None
        assert fit.nugget is not None
        judge = LeftOutBlocks(self.sample, kernel, taper, self.comm, MANY, exact=False, blocks=self.blocks)
        left_out = judge.left_out(fit.range, self.sample.noise(fit.sill, fit.nugget, None))
        assert left_out is not None  # only an exact factorisation fails
        errors, variance = left_out
        rows = self.comm.allgather(np.column_stack([errors, fit.sill * variance]))
        return judge.block, rows[:, 0], rows[:, 1]

    def densities(self, kernel: Kernel, taper: float, fit: Estimate | Parameters) -> NDArray[np.float64]:
        """Logarithm of the density of each block's values, each given the values outside, without a constant."""
        block, errors, variance = self.predicted(kernel, taper, fit)
        return np.asarray(np.bincount(block, -0.5 * (np.log(variance) + errors**2 / variance)), np.float64)

    def summary(self, kernel: Kernel, taper: float, fit: Estimate | Parameters) -> dict[str, float]:
        """Root mean square error of left-out values, and the share inside 95 % intervals; collective."""
        _, errors, variance = self.predicted(kernel, taper, fit)
        inside = np.abs(errors) < 1.959964 * np.sqrt(variance)
        return {"rmse": float(np.sqrt(np.mean(errors**2))), "coverage_of_95_%": float(inside.mean())}


def block_count(X: NDArray[np.float64], n: int) -> int:
    """Number of blocks of n points, such that blocks are as wide as the gaps between random points `X`.

    Places in a gap have a mean distance h from the nearest point, and places in a cube have s / (2 d + 2) from its
    sides: so blocks are cubes of side s = (2 d + 2) h. Without gaps, blocks have 10 points. There are at least 20.
    """
    d, most = X.shape[1], max(2, n // SMALLEST)
    low, span = X.min(axis=0), np.ptp(X, axis=0)
    wide = span > 0
    side = max(1, int((len(X) / _CELLS) ** (1.0 / max(1, int(wide.sum())))))
    edge = np.where(wide, span / side, 1.0)
    counts = np.where(wide, side, 1)
    cells = np.unique(np.minimum((X - low) // edge, counts - 1).astype(np.int64), axis=0)
    every = np.array(list(itertools.product(*(range(int(count)) for count in counts))))
    centers = low + (every + 0.5) * edge
    occupied = set(map(tuple, cells.tolist()))
    empty = centers[[tuple(cell) not in occupied for cell in every.tolist()]]
    if len(empty) < 0.01 * len(every):
        return min(most, MOST_BLOCKS * 4)
    gap = float(cKDTree(X).query(empty)[0].mean())
    volume = len(cells) * float(np.prod(np.where(wide, edge, 1.0)))
    return int(np.clip(volume / ((2 * d + 2) * gap) ** d, min(_FEWEST_BLOCKS, most), most))


def candidates(solver: str, taper: float, degree: int, d: int) -> list[Kernel]:
    """The kernels to compare: those that the solver can use in d coordinates."""
    names = ENDING if solver == "cg" and math.isinf(taper) else KERNELS
    kernels = [Kernel(name, degree=degree) for name in names]
    return [kernel for kernel in kernels if not kernel.declared.limited or d <= degree]
