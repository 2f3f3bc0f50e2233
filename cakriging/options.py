"""Options of kriging, and their checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore import checks
from cacore.errors import InputError
from cacore.kernels.registry import KINDS, MOST_DEGREE, SQUARED, canonical
from cacore.learn import options
from cacore.learn.options import FILES, KERNEL, METRIC, SOLVER, Options, option

if TYPE_CHECKING:
    from cacore.io.checkpoint import Checkpoint

DRIFTS = ("auto", "none", "constant", "linear", "quadratic")
LIKELIHOODS = ("gaussian", "poisson", "binomial")
ESTIMATIONS = ("auto", "likelihood", "blocks")
MOST_DRAWS = 10**6
SOLVERS = ("auto", "cholesky", "cg", "neighbours")
MOST_NEIGHBOURS = 4096  # of a place: a thread factorises a triangle of 64 MiB
KERNELS = ("auto", *(name for name, kind in KINDS.items() if kind.of == SQUARED))

_kernel = checks.one_of(*KERNELS)


def _covariance(value: object, name: str) -> str:
    """Name of a kernel of Euclidean distance."""
    return _kernel(canonical(value) if isinstance(value, str) else value, name)


def drift_of(value: object, name: str) -> str | tuple[int | str, ...]:
    """A drift by name, or columns: a sequence of names and numbers, or on a command line a list with commas."""
    if isinstance(value, str) and value in DRIFTS:
        return value
    if isinstance(value, str) and name.startswith("-"):
        value = tuple(word.strip() for word in value.split(","))
    if isinstance(value, int):
        value = (value,)
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise checks.refused(name, value, f"one of {', '.join(DRIFTS)}, or columns of the rows")
    return tuple(value)


def ratios(value: object, name: str) -> tuple[float, ...]:
    """Positive numbers: one, a sequence, or on a command line a list with commas."""
    if isinstance(value, str) and name.startswith("-"):
        value = value.split(",")
    values = [value] if isinstance(value, Real | str) else value
    if not isinstance(values, Sequence | np.ndarray):
        raise checks.refused(name, value, "a positive number, or several")
    return tuple(float(checks.positive(ratio, name)) for ratio in values)


def axes(value: object, name: str) -> tuple[tuple[float, float, float], ...]:
    """Axes of a grid as lo:hi:STEP, with commas between them; or as a sequence of three numbers each."""
    words = [word.split(":") for word in value.split(",")] if isinstance(value, str) else value
    parsed = []
    try:
        for low, high, step in words:  # type: ignore[attr-defined]
            parsed.append((float(low), float(high), float(step)))
    except (TypeError, ValueError):
        raise checks.refused(name, value, "lo:hi:STEP for every coordinate, with commas between them") from None
    for low, high, step in parsed:
        if not (math.isfinite(high - low) and high >= low and 0 < step < math.inf):
            raise InputError(
                f"{name} {low:g}:{high:g}:{step:g}: it must be lo:hi:STEP with lo <= hi and a positive step"
            )
    return tuple(parsed)


@dataclass(frozen=True)
class CovarianceOptions(Options):
    """Options of the covariance and its estimation."""

    kernel: str = option(
        "auto", "covariance function; auto compares several, and chooses drift and estimation with them, unless "
        "--range is given, which is that of matern32", _covariance, report=True, choices=KERNELS,
    )  # fmt: skip
    range: float | None = option(
        None, "length of the kernel: sigma, or the radius of a wendland kernel (default: estimated)",
        checks.positive, metavar="R",
    )  # fmt: skip
    sill: float | None = option(None, "variance of the field (default: estimated)", checks.positive, metavar="V")
    nugget: float | None = option(
        None, "variance of independent noise (default: estimated)", checks.at_least_zero, metavar="V"
    )
    estimation: str = option(
        "auto", "how they are estimated: by restricted likelihood, or by predictions of left-out blocks (auto: by "
        "likelihood, unless --kernel auto finds that blocks are predicted better)",
        checks.one_of(*ESTIMATIONS), report=True, choices=ESTIMATIONS,
    )  # fmt: skip
    sample: int = option(
        20_000, "most points that they are estimated from: random ones, and blocks of neighbours", checks.whole(100),
        report=True, group=KERNEL, metavar="N",
    )  # fmt: skip


@dataclass(frozen=True)
class KrigingOptions(CovarianceOptions):
    """Options of kriging; each option's help text describes it.

    `measured` holds the standard deviations of this rank's values, or the exposures of its counts, shape (n_local,), if
    no column has them.
    `memory_limit` is in bytes per rank.
    """

    drift: str | tuple[int | str, ...] = option(
        "auto", "mean of the field: none (0), constant, linear or quadratic in the coordinates, or columns of the "
        "rows, by name or number: A,B (auto: constant, unless --kernel auto finds slopes)", drift_of, report=True,
        metavar="DRIFT",
    )  # fmt: skip
    taper: float | None = option(
        None, "multiply the kernel by Wendland's function, which is 0 beyond this distance", checks.positive,
        report=True, group=KERNEL, metavar="R",
    )  # fmt: skip
    degree: int = option(
        3, "exponent of the rational kernel, largest dimension for the wendland kernels", checks.whole(1, MOST_DEGREE),
        group=KERNEL, metavar="D",
    )  # fmt: skip
    anisotropy: tuple[float, ...] | None = option(
        None, "range along each further axis over the range along the first one: a number, or several with commas",
        ratios, group=METRIC, metavar="RATIO",
    )  # fmt: skip
    angle: float = option(
        0.0, "direction of the first axis in the plane of the first two coordinates, in degrees", checks.finite,
        group=METRIC, metavar="DEGREES",
    )  # fmt: skip
    geographic: bool = option(
        False, "coordinates are longitude and latitude in degrees, distances are in km", checks.yes_or_no, report=True,
        group=METRIC, action="store_true",
    )  # fmt: skip
    errors: str | int | None = option(
        None, "column with the standard deviation of each value's error, by name or number", group=KERNEL,
        estimator="", metavar="COLUMN",
    )  # fmt: skip
    likelihood: str = option(
        "gaussian", "distribution of the values: gaussian; poisson, counts of a rate times the exposure; or binomial, "
        "successes in trials, such as presence in one", checks.one_of(*LIKELIHOODS), report=True, group=KERNEL,
        choices=LIKELIHOODS,
    )  # fmt: skip
    exposure: str | int | None = option(
        None, "column with the exposure of each count, or its number of trials, by name or number (default: 1)",
        group=KERNEL, estimator="", metavar="COLUMN",
    )  # fmt: skip
    average: bool = option(
        False, "replace several values at one place by their mean", checks.yes_or_no, group=KERNEL,
        action="store_true",
    )  # fmt: skip
    neighbours: int | None = option(
        None, "predict each place from its K nearest points alone (moving window), and estimate parameters from the K "
        "nearest earlier points of each value (Vecchia)", checks.whole(1, MOST_NEIGHBOURS), report=True, group=SOLVER,
        metavar="K",
    )  # fmt: skip
    solver: str = option(
        "auto", "factorise a dense matrix (cholesky: up to 4,096 points by default), iterate with near points (cg), or "
        "predict from the nearest points (neighbours)", checks.one_of(*SOLVERS), group=SOLVER, choices=SOLVERS,
    )  # fmt: skip
    tol: float = option(
        1e-6, "largest relative residual of the solution, and relative error of a kernel that is cut where it has "
        "decayed", checks.share, group=SOLVER, metavar="TOL",
    )  # fmt: skip
    neighbors: int = option(
        30, "nearest points that determine the preconditioner, and twice as many local standard deviations",
        checks.whole(1, 500), group=SOLVER, metavar="M",
    )  # fmt: skip
    grid: tuple[tuple[float, float, float], ...] | None = option(
        None, "predict on a grid: lo:hi:STEP for each coordinate, with commas between them", axes, group=FILES,
        estimator="", metavar="AXES",
    )  # fmt: skip
    simulate: int | None = option(
        None, "also draw N fields on the grid, given the values (conditional simulation)", checks.whole(1, MOST_DRAWS),
        group=FILES, estimator="", metavar="N",
    )  # fmt: skip
    map: Path | None = option(
        None, "file for the means and standard deviations on the grid: HDF5 or NetCDF (.h5, .nc), GeoTIFF (.tif), or a "
        "picture (.png)", checks.path,
        group=FILES, estimator="", metavar="OUT.h5",
    )  # fmt: skip
    checkpoint: Checkpoint | None = options.checkpoint()
    seed: int = options.random_state()
    measured: NDArray[np.float64] | None = None
    memory_limit: int = 1 << 62

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel == "auto" and self.range is not None:
            object.__setattr__(self, "kernel", "matern32")  # a range belongs to a kernel
        if self.kernel != "auto":
            object.__setattr__(self, "drift", "constant" if self.drift == "auto" else self.drift)
            object.__setattr__(self, "estimation", "likelihood" if self.estimation == "auto" else self.estimation)
        self._check_likelihood()
        if self.neighbours is not None and self.solver in ("cholesky", "cg"):
            raise InputError(
                f"--neighbours {self.neighbours}: --solver {self.solver} uses all points; leave one of the two out"
            )
        if (self.grid is None) != (self.map is None):
            raise InputError("--grid, --map: one needs the other: the points of a grid, and the file for them")
        if self.simulate is not None and self.grid is None:
            raise InputError("--simulate: give --grid and --map, or use Kriging.simulate for single places")
        if self.grid is not None and not isinstance(self.drift, str):
            raise InputError("--grid: the drift's columns are unknown on a grid; predict rows that have them instead")

    def _check_likelihood(self) -> None:
        """Raise an InputError for options that counts exclude, or that are for counts alone."""
        if self.likelihood == "gaussian":
            if self.exposure is not None:
                raise InputError("--exposure: exposure needs counts: add --likelihood poisson or binomial")
            return
        for present, option_name, why in (
            (self.errors is not None, "--errors", "the likelihood has the errors of counts"),
            (self.average, "--average", "a mean of counts is no count; several at one place need none"),
            (self.estimation == "blocks", "--estimation blocks", "covariances of counts are estimated by likelihood"),
        ):
            if present:
                raise InputError(f"--likelihood {self.likelihood}: {why}; leave {option_name} out")
        object.__setattr__(self, "estimation", "likelihood")
