"""Range, sill and nugget of a covariance: those that a judge of a sample prefers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.kernels import Kernel
from cakrr.kriging.information import deviations
from cakrr.kriging.left_out import LeftOutBlocks
from cakrr.kriging.likelihood import Likelihood
from cakrr.kriging.sample import Sample

if TYPE_CHECKING:
    from cacore.io.checkpoint import Kept

JUDGES = {"likelihood": Likelihood, "blocks": LeftOutBlocks}
_TRIED = (0.003, 0.01, 0.03, 0.1, 0.3)  # first ranges, in units of the largest distance
_RATIOS = (1e-3, 0.03, 0.5)  # first ratios of nugget and sill
_LONGEST = 20.0  # longest range, in units of the largest distance or of the taper: longer ones differ by a factor alone
_FAR = 12.0  # change of a logarithm that ends the search in its direction
_CLOSE = 1e-3  # change of the logarithms and of the judgement at which the search ends


@dataclass(frozen=True)
class Parameters:
    """Parameters of a covariance; None for those to be estimated."""

    range: float | None
    sill: float | None
    nugget: float | None

    @property
    def known(self) -> bool:
        """True if nothing is to be estimated."""
        return None not in (self.range, self.sill, self.nugget)


@dataclass
class Estimate:
    """Estimated parameters, and how they were found.

    Attributes
    ----------
    range, sill, nugget : float
    loglikelihood : float
        Restricted log-likelihood of the sample at the maximum, or that of the left-out values, without the constant.
    points : int
        Number of points of the sample.
    exact : bool
        True if the likelihood, which estimates the drift too, was that of a full factorisation.
    evaluations : int
    endless : bool
        True if it still grows with the range far beyond the points or the taper.
    range_std, sill_std, nugget_std : float
        Standard deviation of the logarithm of each parameter; see :mod:`cakrr.kriging.information`. Infinity if the
        sample does not determine it, NaN if it was given, or was not estimated by likelihood.
    """

    range: float
    sill: float
    nugget: float
    loglikelihood: float
    points: int
    exact: bool
    evaluations: int
    endless: bool
    range_std: float = math.nan
    sill_std: float = math.nan
    nugget_std: float = math.nan

    @property
    def deviations(self) -> dict[str, float]:
        """Standard deviations of the logarithms, by name, of the parameters that have one."""
        each = {"range": self.range_std, "sill": self.sill_std, "nugget": self.nugget_std}
        return {name: std for name, std in each.items() if not math.isnan(std)}

    def described(self) -> dict[str, object]:
        """Entries of a report; a standard deviation that is infinite is None there."""
        known = {name: std if math.isfinite(std) else None for name, std in self.deviations.items()}
        return {name: value for name, value in vars(self).items() if not name.endswith("_std")} | {"log_std": known}

    def arrays(self) -> Kept:
        """The fields as arrays, for a checkpoint."""
        return {name: np.array(value) for name, value in vars(self).items()}

    @classmethod
    def of_arrays(cls, arrays: Kept) -> Estimate:
        """The estimate of :meth:`arrays`."""
        return cls(**{name: value.item() for name, value in arrays.items()})


class _Search:
    """The search for the free parameters among range, sill and nugget, by their logarithms.

    The sill is eliminated (`profiled`) if it and the nugget are free, or the nugget is 0, and no value has a known
    error; the nugget is then searched for as its ratio to the sill.
    """

    def __init__(self, judge: Likelihood, given: Parameters) -> None:
        sample, kernel = judge.sample, judge.kernel
        self.judge, self.given = judge, given
        self.profiled = given.sill is None and given.nugget in (None, 0.0) and not sample.errors.any()
        free = {"range": given.range is None, "sill": given.sill is None, "nugget": given.nugget is None}
        self.free = [name for name, true in free.items() if true and not (self.profiled and name == "sill")]
        length = float(np.linalg.norm(np.ptp(sample.X, axis=0))) or 1.0
        self.length = 3.0 * length if kernel.declared.limited else length  # a radius is several length scales
        self.longest = _LONGEST * min(self.length, judge.taper)
        residual = sample.y
        if sample.F.shape[1]:
            residual = sample.y - sample.F @ np.linalg.lstsq(sample.F, sample.y, rcond=None)[0]
        self.variance = float(np.mean(residual**2)) or 1.0

    def settle(self, theta: NDArray[np.float64]) -> tuple[float, float | None, float, float | None]:
        """Arguments of the judge at a point of the search."""
        values = {"range": self.given.range, "sill": self.given.sill, "nugget": self.given.nugget}
        values |= dict(zip(self.free, np.exp(theta).tolist(), strict=True))
        range_, nugget = values["range"], values["nugget"]
        assert range_ is not None
        assert nugget is not None
        return (range_, None, 0.0, nugget) if self.profiled else (range_, values["sill"], nugget, None)

    def first(self) -> list[NDArray[np.float64]]:
        """Points at which the search looks first."""
        found = {}
        for share, ratio in itertools.product(_TRIED, _RATIOS):
            sill = self.variance / (1.0 + ratio) if self.given.sill is None else self.given.sill
            nugget = ratio if self.profiled else ratio * sill
            values = {"range": share * self.length, "sill": sill, "nugget": nugget}
            theta = np.log([values[name] for name in self.free])
            found[theta.tobytes()] = theta
        return list(found.values())

    def run(self) -> Estimate:
        """Search, and return the best."""
        first = self.first()
        values = [self.judge(*self.settle(theta))[0] for theta in first]
        best = first[int(np.argmin(values))]

        def cost(theta: NDArray[np.float64]) -> float:
            arguments = self.settle(theta)
            far = (np.abs(theta - best) > _FAR).any() or arguments[0] > self.longest  # where the data say nothing
            return math.inf if far else self.judge(*arguments)[0]

        if best.size and math.isfinite(min(values)):
            simplex = np.vstack([best, best + 0.5 * np.eye(best.size)])
            options = {"xatol": _CLOSE, "fatol": _CLOSE, "maxfev": 300, "initial_simplex": simplex}
            with np.errstate(invalid="ignore"):  # differences of infinite costs
                best = minimize(cost, best, method="Nelder-Mead", options=options).x
        range_, sill, nugget, ratio = self.settle(best)
        value, sill = self.judge(range_, sill, nugget, ratio)
        nugget = nugget if ratio is None else ratio * sill
        made = self.judge
        loglikelihood, endless = -value / 2.0, self.given.range is None and range_ > 0.5 * self.longest
        return Estimate(range_, sill, nugget, loglikelihood, len(made.sample), made.exact, made.evaluations, endless)


def estimate(
    sample: Sample, kernel: Kernel, taper: float, given: Parameters, comm: Communicator, by: str = "likelihood"
) -> Estimate:
    """The parameters that the judge called `by` prefers, with those of `given` fixed; collective.

    A first grid of 15 ranges and ratios, then Nelder and Mead's simplex on the logarithms.

    Raises
    ------
    InputError
        On all ranks: the covariance is singular for all parameters tried.
    """
    judge = JUDGES[by](sample, kernel, taper, comm)
    found = _Search(judge, given).run()
    with comm.agreed():
        if not math.isfinite(found.loglikelihood):
            raise InputError("the covariance is singular for all parameters tried: give a --nugget above 0")
    return _with_deviations(found, judge, given) if by == "likelihood" else found


def _with_deviations(found: Estimate, judge: Likelihood, given: Parameters) -> Estimate:
    """The estimate with standard deviations of the logarithms of what was estimated; collective."""
    values = {"range": found.range, "sill": found.sill, "nugget": found.nugget}
    free = [name for name in values if getattr(given, name) is None]

    def cost(theta: NDArray[np.float64]) -> float:
        now = values | dict(zip(free, np.exp(theta).tolist(), strict=True))
        return judge(now["range"], now["sill"], now["nugget"], None)[0] / 2.0

    each = deviations(cost, np.log([values[name] for name in free]))
    std = dict.fromkeys(values, math.nan) | dict(zip(free, each.tolist(), strict=True))
    return replace(
        found, evaluations=judge.evaluations, range_std=std["range"], sill_std=std["sill"], nugget_std=std["nugget"]
    )
