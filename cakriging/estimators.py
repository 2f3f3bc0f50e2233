"""Kriging as a scikit-learn regressor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore import checks
from cacore.checks import share
from cacore.comm import CommLike, Communicator, Unquoted, collective, require_same
from cacore.data.estimators import Loaded, Regressing, asking, same_fit
from cacore.data.rows import RowsLike
from cacore.data.validation import check_same_names, shared_seed, validated, with_features
from cacore.errors import InputError
from cacore.learn.options import from_estimator, seed
from cacore.machine import memory, threads
from cakriging.kriging_method import METHOD
from cakriging.kriging_model import KrigingModel
from cakriging.options import KrigingOptions


@dataclass(eq=False, repr=False, kw_only=True)
class Kriging(Loaded, Regressing):
    """Kriging: a Gaussian process in one to three coordinates, with a drift, exact and over ranks.

    Parameters
    ----------
    kernel : str
        Covariance function of distance r, with s = `range`: gaussian exp(-r^2 / (2 s^2)); laplacian exp(-r / s), the
        exponential model; matern32 (1 + q) exp(-q), q = sqrt(3) r / s; matern52 (1 + q + q^2/3) exp(-q),
        q = sqrt(5) r / s; rational (1 + r^2 / (2 degree s^2))^-degree; wendland0, 2 and 4 are 0 beyond r = s, and have
        0, 2 and 4 continuous derivatives. "auto": the one of laplacian, matern32, matern52, gaussian and wendland2 that
        suits the values, together with `drift` and `estimation`; but matern32 if a `range` is set.
    range, sill, nugget : float or None
        Length s of the kernel, variance of the field, variance of independent noise. None: estimated.
    estimation : {"auto", "likelihood", "blocks"}
        Criterion of the estimates: restricted likelihood, or the predictive density of values in left-out blocks, each
        from its 40 nearest values in other blocks. "blocks" relies less on the covariance at short distances. "auto":
        "likelihood", unless kernel="auto" finds that left-out blocks are predicted better otherwise.
    sample : int
        Most points used for the estimates and the variogram: half of them random, half in 10 blocks of neighbours.
    drift : {"auto", "constant", "none", "linear", "quadratic"} or sequence
        Mean of the field: a constant (ordinary kriging), 0 (simple kriging), a polynomial of the coordinates (universal
        kriging); or numbers or names of columns of `X`, which with a constant are the functions of the drift. "auto":
        "constant", or "linear" where kernel="auto" finds slopes.
    taper : float or None
        Radius of Wendland's function, by which the kernel is multiplied to give it compact support.
    degree : int
        Exponent of "rational"; for the wendland kernels the largest number of coordinates.
    anisotropy : float, sequence or None
        Range along each further axis over the range along the first one.
    angle : float
        Direction of the first axis in the plane of the first two coordinates, in degrees, counterclockwise.
    geographic : bool
        True if coordinates are longitude and latitude in degrees: distances are chords of the Earth in km.
    likelihood : {"gaussian", "poisson", "binomial"}
        Distribution of the values. Counts have a latent field: its exponential is the rate of "poisson" counts per unit
        of exposure, and its logistic function the probability of "binomial" ones, such as presence. By Laplace's
        approximation.
    average : bool
        True to replace several values at one place by their mean. Without a nugget they are refused otherwise.
    neighbours : int or None
        Nearest points that determine each prediction, by kriging in a moving window; values are conditioned on as many
        earlier ones for the estimates and the drift (Vecchia's approximation). None: `solver` decides, and its windows
        have 60 points at several distances.
    solver : {"auto", "cholesky", "cg", "neighbours"}
        "cholesky": a dense matrix, factored on every rank. "cg": conjugate gradients on near points. "neighbours":
        moving windows. "auto": "cholesky" up to 4,096 points, then "cg" if the covariance ends, or can be cut, within
        about 1,000 near points, and otherwise "neighbours".
    tol : float
        Relative residual of "cg". A kernel without compact support is cut where this changes the solution by less.
    neighbors : int
        Nearest points per point in the preconditioner of "cg"; its local standard deviations use twice as many.
    random_state : int, RandomState or None
        Seed of the random order of the points.
    comm : mpi4py communicator or None
        Ranks that each pass their own rows.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    model_ : KrigingModel
    range_, sill_, nugget_ : float
    beta_ : ndarray, shape (p,)
        Coefficients of the drift's functions, of coordinates scaled to [-1, 1].
    variogram_ : Variogram
        Empirical and fitted: arrays `lags`, `values`, `pairs` and `fitted`.
    loglikelihood_ : float or None
        Restricted log-likelihood of the estimates, or log-density of the left-out values, without its constant; None
        if no parameter was estimated.
    log_std_ : dict
        Standard deviation of the logarithm of each parameter that was estimated by likelihood, by name; infinity if the
        points do not determine the parameter.
    left_out_ : dict
        "rmse" of values in left-out blocks as wide as the gaps between points, and "coverage_of_95_%" of their
        intervals; empty unless the kernel was chosen.
    n_iter_ : int
        Iterations of "cg".
    residual_ : float
        Relative residual of the solution; NaN for "neighbours", which solves a small system per place.
    solver_ : dict
        Facts about the solution: pairs of near points, entries of the preconditioner, halo.

    Notes
    -----
    "cg" with k near points per point takes 12 n k bytes, and 2 n k flops per iteration. If the bytes do not fit, every
    product searches the near points again. About 5 to 15 iterations are needed. See :mod:`cakriging.kriging_fit`.

    Examples
    --------
    >>> import numpy as np
    >>> from cakriging import Kriging
    >>> places = np.random.default_rng(0).uniform(0, 10, (200, 2))
    >>> depth = np.sin(places[:, 0]) + 0.1 * places[:, 1]
    >>> model = Kriging(random_state=0).fit(places, depth)  # kernel, drift and parameters are chosen
    >>> mean, deviation = model.predict([[5.0, 5.0], [50.0, 50.0]], return_std=True)
    >>> bool(deviation[0] < deviation[1])  # far from all places, the model knows less
    True
    """

    kernel: str = "auto"
    range: float | None = None
    sill: float | None = None
    nugget: float | None = None
    estimation: str = "auto"
    sample: int = 20_000
    drift: str | Sequence[int | str] = "auto"
    taper: float | None = None
    degree: int = 3
    anisotropy: float | Sequence[float] | None = None
    angle: float = 0.0
    geographic: bool = False
    likelihood: str = "gaussian"
    average: bool = False
    neighbours: int | None = None
    solver: str = "auto"
    tol: float = 1e-6
    neighbors: int = 30
    random_state: int | np.random.RandomState | None = None
    comm: CommLike = None

    _model = KrigingModel

    def fit(
        self, X: RowsLike, y: ArrayLike, errors: ArrayLike | None = None, exposure: ArrayLike | None = None
    ) -> Self:
        """Krige values `y`, shape (n_local,), at the rows of `X`, shape (n_local, d); neither is changed.

        `errors` are standard deviations of the values' errors, shape (n_local,), in addition to the nugget. `exposure`
        holds exposures of poisson counts, or numbers of trials of binomial ones, shape (n_local,); 1 if it is None.
        With `comm`, a collective call. Invalid input raises an InputError, which is a ValueError.
        """
        with collective(self.comm) as comm:
            same_fit(self, comm)
            with comm.uncounted():
                passed = {"errors": errors, "exposure": exposure}
                require_same({name: None if v is None else Unquoted("an array") for name, v in passed.items()}, comm)
            threads.share_once(comm)
            X = with_features(self, X, y, None, comm)
            with comm.agreed(own_rows=True):
                least = int(comm.size == 1)
                rows: dict[str, Any] = {"dtype": "float64", "order": "C", "copy": True, "ensure_min_samples": least}
                train = self._with_targets(X, y, None, **rows)
                measured = self._measured(errors, exposure, len(train.target()))
            check_same_names(self, comm)
            train.n = comm.offset(train.X.shape[0])[1]
            with comm.agreed():
                options: KrigingOptions = from_estimator(KrigingOptions, self, measured=measured)
            seed, limit = shared_seed(self.random_state, comm), memory.limit_per_rank(comm)
            fitted = METHOD(train, replace(options, seed=seed, memory_limit=limit), comm)
        self.model_: KrigingModel = fitted.model
        self.model_.comm = self.comm
        self.range_, self.sill_, self.nugget_ = self.model_.range, self.model_.sill, self.model_.nugget
        self.beta_, self.variogram_ = self.model_.beta, fitted.variogram
        self.loglikelihood_ = None if fitted.estimate is None else fitted.estimate.loglikelihood
        self.log_std_ = {} if fitted.estimate is None else fitted.estimate.deviations
        self.left_out_ = fitted.left_out
        self.n_iter_, self.residual_, self.solver_ = fitted.solver["iterations"][0], fitted.residual, fitted.solver
        return self

    @overload
    def predict(
        self, X: RowsLike, return_std: Literal[False] = False, variance: str = "auto"
    ) -> NDArray[np.float64]: ...

    @overload
    def predict(
        self, X: RowsLike, return_std: Literal[True], variance: str = "auto"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...

    def predict(
        self, X: RowsLike, return_std: bool = False, variance: str = "auto"
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means at the rows of `X`, shape (n_local, d); with `return_std` also standard deviations of new values there.

        For counts, those of the rate per unit of exposure, or of the probability of a trial. Standard deviations
        include the nugget: the deviation of the field itself is sqrt(std^2 - nugget). `variance` is "exact",
        "local" or "auto", see :meth:`KrigingModel.predict_std`. With `comm`, a collective call.
        """
        with asking(self, "predict", return_std=return_std, variance=variance) as comm:
            Z = self._checked(X, comm)
            if return_std:
                return self.model_.predict_std(Z, comm, variance)
            return self.model_.predict(Z, comm)

    def score(
        self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None, exposure: ArrayLike | None = None
    ) -> float:
        """R^2 of values `y`, shape (n_local,), over all ranks' rows; of counts, that of the expected counts.

        `exposure` is as in :meth:`fit`, and is needed if `fit` had it. With `comm`, a collective call.
        """
        with asking(self, "score", exposure=None if exposure is None else Unquoted("an array")) as comm:
            with comm.agreed():
                if exposure is None and self.model_.exposed:
                    raise InputError("the model was fitted with exposures: pass those of these rows, exposure=")
            mean = self.predict(X)
            with comm.agreed(own_rows=True):
                factor = self._measured(None, exposure, len(mean))
        return self._r2(y, mean if factor is None else factor * mean, sample_weight)

    def predict_interval(
        self, X: RowsLike, coverage: float = 0.95, variance: str = "auto"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends of intervals that contain a new value with this probability; see :meth:`predict`.

        For counts, the rate or the probability of a trial, not a count.
        """
        with asking(self, "predict_interval", coverage=coverage, variance=variance) as comm:
            with comm.agreed():
                share(coverage, "coverage =")
            return self.model_.interval(*self.model_.latent(self._checked(X, comm), comm, variance), coverage)

    def simulate(self, X: RowsLike, n: int = 1, random_state: int = 0) -> NDArray[np.float64]:
        """Draws of the field at the rows of `X`, shape (n_local, d), given the values: shape (n, n_local).

        Conditional simulation: the draws have the means and covariances of the field, given the values. The noise of
        new values is not added. For counts, draws are rates or probabilities. With `comm`, a collective call; see
        :meth:`KrigingModel.simulate`.
        """
        with asking(self, "simulate", n=n, random_state=random_state) as comm:
            with comm.agreed():
                checks.whole(1)(n, "n =")
                seed(random_state, "random_state =")
            return self.model_.simulate(self._checked(X, comm), n, random_state, comm)

    def _measured(self, errors: ArrayLike | None, exposure: ArrayLike | None, n: int) -> NDArray[np.float64] | None:
        """Checked standard deviations of errors, or exposures of counts."""
        counted = self.likelihood != "gaussian"
        if exposure is not None and not counted:
            raise InputError("exposure needs counts: set likelihood='poisson' or 'binomial'")
        if errors is not None and counted:
            raise InputError(f"likelihood = {self.likelihood!r}: it has the errors of counts; leave errors out")
        if exposure is not None:
            return _per_row(exposure, "exposure", n)
        return None if errors is None else _deviations(errors, n)

    def _checked(self, X: RowsLike, comm: Communicator) -> NDArray[np.float64]:
        with comm.agreed(own_rows=True):
            least = int(comm.size == 1)
            return np.asarray(validated(self, X, reset=False, dtype="float64", ensure_min_samples=least))


def _deviations(errors: ArrayLike, n: int) -> NDArray[np.float64]:
    """Standard deviations of errors, checked."""
    std = _per_row(errors, "errors", n)
    wrong = np.flatnonzero(~((std >= 0) & np.isfinite(std)))
    if wrong.size:
        raise checks.refused(f"errors, row {int(wrong[0])}:", float(std[wrong[0]]), "a number of at least 0")
    return std


def _per_row(values: ArrayLike, name: str, n: int) -> NDArray[np.float64]:
    """One number per row, in an array of its own."""
    numbers = as_numbers(values, name)
    if numbers.shape != (n,):
        raise InputError(f"{name} has shape {numbers.shape}; {n} rows need {n} numbers")
    return numbers


def as_numbers(values: Any, name: str) -> NDArray[np.float64]:
    """A copy in double precision."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}; give numbers alone") from error
