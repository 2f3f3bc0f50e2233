"""A kriging model: means, standard deviations and draws at new places; saving and loading.

1. :class:`KrigingModel`: predictions, and the model file.
2. :class:`Draws`: unconditional draws of the field, the first half of conditional simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigh_tridiagonal
from scipy.special import ndtri

from cacore.comm import CommLike, Communicator, Unquoted, collective, require_same
from cacore.data.rows import AnyRows, Rows, dense
from cacore.data.shuffle import Shuffle, mix64
from cacore.data.validation import rows_to_predict
from cacore.errors import InputError
from cacore.files import described
from cacore.io import model_file
from cacore.io.model_file import Array, Layout, is_real, require
from cacore.kernels import Kernel
from cacore.linalg.cg import Vectors
from cacore.machine import memory
from cacore.machine.threads import blocks
from cacore.near.halo import Routed
from cakriging.counts import inverse_link, response
from cakriging.kriging_system import LAST, DenseSystem, KrigingSystem, NearSystem, nearest_earlier, regressions
from cakriging.near_matrix import Correlation, NearMatrix
from cakriging.options import LIKELIHOODS
from cakriging.space import Drift, Field, PointColumns, Space
from cakriging.windows import WindowDraws, Windows

FAMILY = "kriging"
PIECE = 1 << 16  # points per piece of the file, the unit in which ranks read it
EXACT = 256  # new places up to which standard deviations of a sparse system are exact by default: 16 batches
VARIANCES = ("auto", "exact", "local")
_BATCH = 16  # right-hand sides solved at once, which read the matrix once
Numbers = range  # numbers of draws; in the class body, `range` is the covariance's
Drawing = Callable[[Numbers], NDArray[np.float64]]  # numbers -> draws at this rank's rows, shape (numbers, n_local)
_ROWS = 1 << 15  # new places whose correlations with near points are held at a time


@dataclass(kw_only=True)
class KrigingModel:
    """The predictor f(x)' beta + rho(x, X) alpha and its variance; each rank holds the points of its region.

    Attributes
    ----------
    kernel : Kernel
        With its width.
    range, sill, nugget : float
    taper : float or None
    radius : float or None
        Distance at which correlations end or are cut; None for a dense system, and for windows.
    window : tuple of int or None
        Numbers of nearest points that determine a prediction, see :class:`cakriging.windows.Windows`; None if all do.
    space : Space
    drift : Drift
    beta : ndarray, shape (p,)
    gram : ndarray, shape (p, p)
        F' A^-1 F.
    neighbours : int
        Neighbours per point in the preconditioner.
    tol : float
        Relative residual of the solutions for exact variances and draws.
    points : PointColumns
        This rank's points; their `values` are alpha and A^-1 F, shape (n_local, 1 + p); with windows, the points'
        values minus their drift, and F.
    sizes : ndarray of int64, shape (R,)
        Number of points on each rank.
    memory_limit : int or None
        Bytes that a rank may use; None for its share of the memory that is free.
    likelihood : {"gaussian", "poisson", "binomial"}
        Distribution of the values. For counts, the field above is latent, and its points' values are working responses.
    exposed : bool
        True if counts came with exposures or numbers of trials that are in no column of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from cakriging import Kriging, KrigingModel
    >>> places = np.random.default_rng(0).uniform(0, 10, (200, 2))
    >>> depth = np.sin(places[:, 0]) + 0.1 * places[:, 1]
    >>> Kriging(kernel="matern32", range=3.0, nugget=0.01, sill=1.0).fit(places, depth).save("depth.h5")
    >>> KrigingModel.load("depth.h5").predict(places[:3]).shape
    (3,)
    """

    kernel: Kernel
    range: float
    sill: float
    nugget: float
    taper: float | None
    radius: float | None
    space: Space
    drift: Drift
    beta: NDArray[np.float64]
    gram: NDArray[np.float64]
    neighbours: int
    tol: float
    points: PointColumns
    sizes: NDArray[np.int64]
    window: tuple[int, ...] | None = None
    likelihood: str = "gaussian"
    exposed: bool = False
    source: dict[str, Any] = field(default_factory=dict)
    comm: CommLike = field(default=None, repr=False, compare=False)
    identity: str = field(default="", repr=False, compare=False)
    memory_limit: int | None = field(default=None, repr=False, compare=False)
    _field: Field | None = field(default=None, repr=False, compare=False)
    _system: KrigingSystem | None = field(default=None, repr=False, compare=False)
    _windows: Windows | None = field(default=None, repr=False, compare=False)

    dtype = "float64"
    method = "kriging"

    def __getstate__(self) -> dict[str, object]:
        unset = dict.fromkeys(("comm", "memory_limit", "_field", "_system", "_windows"))
        return {**self.__dict__, **unset}

    @property
    def n_features(self) -> int:
        """Number of columns of a row: coordinates, and columns of the drift."""
        return self.drift.width

    @property
    def n(self) -> int:
        """Number of points."""
        return int(self.sizes.sum())

    @property
    def correlation(self) -> Correlation:
        """The correlation of the field."""
        return Correlation(self.kernel, math.inf if self.taper is None else self.taper)

    def described(self) -> dict[str, object]:
        """Entries of a report about the model."""
        return {
            **({} if self.likelihood == "gaussian" else {"likelihood": self.likelihood}),
            "kernel": self.kernel.kind, "range": self.range, "sill": self.sill, "nugget": self.nugget,
            **({} if self.taper is None else {"taper": self.taper}),
            **({} if self.window is None else {"neighbours": sum(self.window)}),
            "drift coefficients": self.beta.tolist(),
        }  # fmt: skip

    # -- prediction ------------------------------------------------------------------------

    def predict(self, X: AnyRows, comm: CommLike = None) -> NDArray[np.float64]:
        """Means at this rank's rows `X`, shape (n_local, d); a collective call.

        Each row travels to the rank of its region and back: d + p + 1 numbers; with windows, rows stay where they are.
        Means of rates and probabilities need variances, and take as long as :meth:`predict_std`.
        """
        if self.likelihood == "gaussian":
            return self._answered(X, comm, "predict", "")[0]
        return self.response(*self._answered(X, comm, "predict", "auto"))[0]

    def predict_std(
        self, X: AnyRows, comm: CommLike = None, variance: str = "auto"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means, and standard deviations of new values there, noise included; a collective call.

        For counts, those of the rate per unit of exposure, or of the probability.

        Parameters
        ----------
        X : ndarray, shape (n_local, d)
        comm : CommLike
        variance : {"auto", "exact", "local"}
            "exact" solves a system for each row. "local" uses only the 2 `neighbours` nearest points of a row: an upper
            bound, except for the drift's part, which is exact. "auto" chooses, see :meth:`variance_of`. With windows,
            means and variances are both those of the points in a place's window.

        Notes
        -----
        Per row, "exact" takes one solution by conjugate gradients (16 rows at a time), or n^2 flops for a dense system;
        "local" takes m^3/3 flops for m neighbours.
        """
        return self.response(*self._answered(X, comm, "predict_std", variance))

    def latent(
        self, X: AnyRows, comm: CommLike = None, variance: str = "auto"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and standard deviations of the latent field, nugget included; see :meth:`predict_std`."""
        return self._answered(X, comm, "latent", variance)

    def response(
        self, mean: NDArray[np.float64], std: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation of values, rates or probabilities, from those of :meth:`latent`."""
        return (mean, std) if self.likelihood == "gaussian" else response(self.likelihood, mean, std)

    def interval(
        self, mean: NDArray[np.float64], std: NDArray[np.float64], coverage: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ends of intervals of this probability for values, rates or probabilities, from those of :meth:`latent`."""
        lower, upper = normal_interval(mean, std, coverage)
        if self.likelihood == "gaussian":
            return lower, upper
        return inverse_link(self.likelihood, lower), inverse_link(self.likelihood, upper)

    def variance_of(self, rows: int, variance: str = "auto") -> str:
        """The variance used for `rows` rows on all ranks; "auto" is exact for a dense system or at most 256 rows."""
        if variance not in VARIANCES:
            raise InputError(f"variance = {variance!r}: choose one of {', '.join(VARIANCES)}")
        if self.window is not None:
            if variance == "exact":
                raise InputError(
                    f"variance exact: the model predicts from {sum(self.window)} neighbours; choose auto, or fit more"
                )
            return "local"
        if variance != "auto":
            return variance
        return "exact" if self.radius is None or rows <= EXACT else "local"

    def _answered(
        self, X: AnyRows, comm: CommLike, call: str, variance: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        with self.ranks(comm, call) as ranks, ranks.phase("predict"):
            X, Z = self._places(X, ranks)
            near = self._settled(ranks)
            with ranks.uncounted():
                total = int(ranks.allreduce(np.array([len(X)], np.int64))[0])
            with ranks.agreed():
                kind = self.variance_of(total, variance) if variance else ""
            if self.window is not None:
                F = self.drift.functions(X)
                sums, explained = self._windowed(near).predict(Z)
                return F @ self.beta + sums[:, 0], self._deviation(F, sums[:, 1:], explained)
            moved = Routed.to(np.column_stack([Z, self.drift.functions(X)]), near.regions.owners(Z), ranks)
            Q, F = np.ascontiguousarray(moved.rows[:, : Z.shape[1]]), moved.rows[:, Z.shape[1] :]
            sums = self._sums(Q, near)
            answers = np.column_stack([F @ self.beta + sums[:, 0], np.zeros(len(Q))])
            if kind:
                explained = self._explained(Q, near, kind)
                answers[:, 1] = self._deviation(F, sums[:, 1:], explained)
            out = moved.home(answers)
        return np.ascontiguousarray(out[:, 0]), np.ascontiguousarray(out[:, 1])

    def _places(self, X: AnyRows, comm: Communicator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The checked rows, and their coordinates in which distances are taken; collective."""
        with comm.agreed(own_rows=True):
            rows = np.asarray(dense(rows_to_predict(X, self.dtype, self.n_features, None, self.source)))
            return rows, self.space.coordinates(rows[:, self.drift.coordinates])

    def simulate(self, X: AnyRows, n: int, seed: int = 0, comm: CommLike = None) -> NDArray[np.float64]:
        """Draws of the field at this rank's rows `X`, shape (n_local, d), given the values: (n, n_local); collective.

        The rows of all ranks are drawn jointly. The noise of new values, of variance `nugget`, is not added. The draws
        depend on the seed, the order of all rows and the model, but not on the number of ranks.

        Notes
        -----
        Conditioning by kriging: an unconditional draw (:class:`Draws`), minus its kriging from its
        own noisy values at the points, plus the means. So the draws have the kriging variance, with the drift's share.
        Per draw: one solution, and about as many iterations for the root. Dense systems of m points and q places take
        (m + q)^3/3 flops once, and 16 (m + q)^2 bytes on every rank.
        """
        with self.ranks(comm, "simulate") as ranks, ranks.phase("predict"):
            batch, draw = self.drawing(X, seed, ranks)
            out = np.empty((n, X.shape[0]))
            for lo, hi in blocks(n, batch):
                out[lo:hi] = draw(range(lo, hi))
            return out

    def drawing(self, X: AnyRows, seed: int, ranks: Communicator) -> tuple[int, Drawing]:
        """The number of draws that fit into memory at once, and a function that computes draws; collective.

        The function takes the numbers of some draws and returns their values, shape (numbers, n_local); collective.
        For counts, these are rates or probabilities.
        """
        batch, draw = self._drawing(X, seed, ranks)
        if self.likelihood == "gaussian":
            return batch, draw
        return batch, lambda numbers: inverse_link(self.likelihood, draw(numbers))

    def _drawing(self, X: AnyRows, seed: int, ranks: Communicator) -> tuple[int, Drawing]:
        """:meth:`drawing` of the latent field; collective."""
        X, Z = self._places(X, ranks)
        near = self._settled(ranks)
        first, total = ranks.offset(len(X))
        shuffled = Shuffle(max(1, total), seed).position(np.arange(first, first + len(X)))
        place = self.n + shuffled  # new places come after the points
        if self.window is not None:
            return self._drawing_windows(Z, self.drift.functions(X), place, seed, near)
        moved = Routed.to(np.column_stack([Z, place, self.drift.functions(X)]), near.regions.owners(Z), ranks)
        d = Z.shape[1]
        Q, F = np.ascontiguousarray(moved.rows[:, :d]), moved.rows[:, d + 1 :]
        draws = Draws(
            near, Q, moved.rows[:, d].astype(np.int64), self.correlation, self.neighbours, self.tol, seed,
            self._limit(ranks),
        )  # fmt: skip
        means, owned = F @ self.beta + self._sums(Q, near)[:, 0], near.owned

        def draw(numbers: Numbers) -> NDArray[np.float64]:
            drawn, there = draws(numbers)
            for number, row in zip(numbers, drawn, strict=True):
                row += np.sqrt(owned.noise) * normals(owned.place, seed, number, NOISE)
            values = means + math.sqrt(self.sill) * (there - self._kriged(drawn, Q, F, near))
            return np.ascontiguousarray(moved.home(np.ascontiguousarray(values.T)).T)

        return draws.batch, draw

    def _drawing_windows(
        self, Z: NDArray[np.float64], F: NDArray[np.float64], place: NDArray[np.int64], seed: int, near: Field
    ) -> tuple[int, Drawing]:
        """:meth:`drawing` with windows: places one after another, and each draw with a drift of its own; collective."""
        comm, p, root = near.comm, len(self.beta), math.sqrt(self.sill)
        all_places = comm.allgather(np.column_stack([place, Z]))
        all_places = all_places[np.argsort(all_places[:, 0])]
        numbers, mine = all_places[:, 0].astype(np.int64), place - self.n
        draws = WindowDraws(self._windowed(near), np.ascontiguousarray(all_places[:, 1:]), self._limit(comm))
        spread = np.linalg.inv(np.linalg.cholesky(self.gram)).T if p else np.zeros((0, 0))

        def draw(wanted: Numbers) -> NDArray[np.float64]:
            slopes = [normals(np.arange(p), seed, number, SLOPES) for number in wanted]
            steps = root * spread @ np.stack(slopes, axis=1)
            values = draws(root * np.stack([normals(numbers, seed, number, FIELD) for number in wanted], axis=1), steps)
            return np.ascontiguousarray((values[mine] + F @ (self.beta[:, None] + steps)).T)

        return 16, draw

    def _kriged(
        self, Y: NDArray[np.float64], Q: NDArray[np.float64], F: NDArray[np.float64], near: Field
    ) -> NDArray[np.float64]:
        """Means at `Q`, with drift functions `F`, from other values `Y`, shape (t, n_owned): (t, q); collective."""
        alpha, _ = self._solver(near).solve(np.ascontiguousarray(Y), self.tol)
        means = np.zeros((len(Y), len(Q)))
        if len(self.beta):
            W = near.points.values[: near.n_owned, 1:]
            beta = np.linalg.solve(self.gram, near.comm.allreduce(Y @ W).T).T
            alpha, means = alpha - beta @ W.T, beta @ F.T
        return means + self._products(Q, near, near.halo.begin(alpha).wait()).T

    def _sums(self, Q: NDArray[np.float64], near: Field) -> NDArray[np.float64]:
        """``rho(Q, X)`` times alpha and A^-1 F, shape (q, 1 + p): one product, so that all calls agree to the bit."""
        return self._products(Q, near, np.ascontiguousarray(near.points.values.T))

    def _products(self, Q: NDArray[np.float64], near: Field, V: NDArray[np.float64]) -> NDArray[np.float64]:
        """``rho(Q, X)`` times each row of `V`, shape (t, points): shape (q, t)."""
        columns = len(V)
        out = np.empty((columns, len(Q)))
        cubes = None if self.radius is None else near.cubes()
        step = _ROWS if cubes is not None else max(1, (1 << 24) // max(1, len(near.points)))
        for lo, hi in blocks(len(Q), step):
            if cubes is None:
                out[:, lo:hi] = V @ self.correlation.matrix(Q[lo:hi], near.points.X).T
            else:
                part = np.empty((columns, hi - lo))
                NearMatrix(Q[lo:hi], cubes, self.correlation, 0).product(V, part)
                out[:, lo:hi] = part
        return np.ascontiguousarray(out.T)

    def _explained(self, Q: NDArray[np.float64], near: Field, kind: str) -> NDArray[np.float64]:
        """Variance that the points explain, k' A^-1 k, for each row of `Q`; "local": a lower bound; collective."""
        if kind == "exact":
            return self._exactly(Q, near)
        if self.radius is None:
            raise InputError("variance local: the system is dense, so exact standard deviations cost less")
        cubes, m = near.cubes(), 2 * self.neighbours
        explained = np.empty(len(Q))
        for lo, hi in blocks(len(Q), _ROWS):
            last = np.full(hi - lo, LAST)
            chosen = nearest_earlier(Q[lo:hi], last, cubes, near.points.place, m)
            _, unexplained = regressions(
                Q[lo:hi], np.zeros(hi - lo), near.points.X, near.points.noise, chosen, self.correlation
            )
            explained[lo:hi] = 1.0 - unexplained
        return explained

    def _exactly(self, Q: NDArray[np.float64], near: Field) -> NDArray[np.float64]:
        """Variance that the points explain, k' A^-1 k, by solving for all ranks' rows in batches; collective."""
        comm, system = near.comm, self._solver(near)
        all_Q, counts = comm.allgather_parts(Q)
        explained = np.empty(len(all_Q))
        X = near.points.X[: near.n_owned]
        for lo, hi in blocks(len(all_Q), _BATCH if self.radius is not None else 1024):
            B = self.correlation.matrix(all_Q[lo:hi], X)
            solved, _ = system.solve(B, self.tol)
            explained[lo:hi] = comm.allreduce(np.einsum("ij,ij->i", B, solved))
        first = int(counts[: comm.rank].sum())
        return explained[first : first + len(Q)]

    def _deviation(
        self, F: NDArray[np.float64], W: NDArray[np.float64], explained: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Standard deviations from W = k' A^-1 F, shape (q, p), and k' A^-1 k; the drift adds its own uncertainty."""
        share = 1.0 - explained + self.nugget / self.sill
        if len(self.beta):
            gap = F - W
            share = share + np.einsum("ij,ij->i", gap, np.linalg.solve(self.gram, gap.T).T)
        return np.asarray(np.sqrt(self.sill * np.maximum(share, 0.0)))

    def _solver(self, near: Field) -> KrigingSystem:
        """The system of the points, built once; collective."""
        if self._system is None:
            self._system = self.system(near, self._limit(near.comm))
        return self._system

    def _windowed(self, near: Field) -> Windows:
        """All points, and a tree of them, built once; collective."""
        if self._windows is None:
            assert self.window is not None
            self._windows = Windows(near, self.correlation, self.window, self._limit(near.comm))
        return self._windows

    def _limit(self, comm: Communicator) -> int:
        """Bytes that a rank may use; collective."""
        return memory.limit_per_rank(comm) if self.memory_limit is None else self.memory_limit

    def system(self, near: Field, limit: int) -> KrigingSystem:
        """The system of these points; collective."""
        if self.radius is None:
            return DenseSystem(near, near.points.noise, self.correlation)
        return NearSystem(near, near.points.noise, self.correlation, self.neighbours, limit)

    def _settled(self, comm: Communicator) -> Field:
        """The points on the ranks of their regions, with copies of those nearby; collective, done once."""
        if self._field is None or self._field.comm.mpi is not comm.mpi:
            radius = math.inf if self.radius is None else self.radius
            self._field, self._system, self._windows = Field.spread(self.points, radius, comm), None, None
            self.points = self._field.owned
        return self._field

    @contextmanager
    def ranks(self, comm: CommLike, call: str) -> Iterator[Communicator]:
        """`comm`, or the ranks that hold the model, after checking that all make the same call; collective."""
        with collective(self.comm if comm is None else comm) as ranks:
            if ranks.size > 1:
                with ranks.uncounted():
                    word = f"{type(self).__name__}.{call}"
                    require_same({"call": Unquoted(word), "model": Unquoted(self.identity)}, ranks)
            with ranks.agreed():
                if ranks.size != len(self.sizes):
                    raise InputError("other ranks hold the model: save it, and load it on the ranks that use it")
            yield ranks

    # -- files -----------------------------------------------------------------------------

    def save(self, path: str | Path, comm: CommLike = None) -> None:
        """Write the model to one HDF5 file; collective, by default on the ranks that trained or loaded it."""
        with self.ranks(comm, "save") as ranks:
            cut = blocks(len(self.points), PIECE) or [(0, 0)]
            mine = [self.points.subset(np.arange(lo, hi)) for lo, hi in cut]
            counts = ranks.allgather(np.array([len(mine)], np.int64))
            owners = np.repeat(np.arange(ranks.size), counts)
            first = int(counts[: ranks.rank].sum())
            parts: dict[int, dict[str, Rows]] = {first + k: dict(vars(piece)) for k, piece in enumerate(mine)}
            shared: dict[str, Rows] = {
                "beta": self.beta, "gram": self.gram, "center": np.array(self.drift.center),
                "scale": np.array(self.drift.scale),
            }  # fmt: skip
            model_file.save(path, FAMILY, self._attributes(), shared, parts, owners, ranks)

    def _attributes(self) -> dict[str, Any]:
        names = ("range", "sill", "nugget", "taper", "radius", "window", "likelihood", "neighbours", "tol", "source")
        return {
            **{name: getattr(self, name) for name in (*names, "exposed")},
            "kernel": self.kernel.stored(),
            "space": asdict(self.space),
            "drift": {name: getattr(self.drift, name) for name in ("degree", "columns", "ignored")},
        }

    @classmethod
    def load(cls, path: str | Path, comm: CommLike = None) -> Self:
        """Read a model on any number of ranks; collective.

        Raises
        ------
        InputError
            The file is missing, damaged, not a model, or one of another family.
        """
        with collective(comm) as ranks:
            model = model_file.load(path, {FAMILY: cls.of_file}, ranks)
            model.sizes = ranks.allgather(np.array([len(model.points)], np.int64))
            model.identity = described(path) if ranks.size > 1 else ""
        model.comm = comm
        return model

    @classmethod
    def of_file(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts) -> Self:
        """Check the contents of a file, and build the model."""
        sizes: dict[str, int] = {}
        model_file.check(SHARED, shared, sizes)
        part_sizes = {"v": sizes["p"] + 1}
        for number, arrays in parts.held.items():
            model_file.check(PART, arrays, part_sizes, f"part {number}: ")
            part_sizes = {name: part_sizes[name] for name in ("v", "c")}
        for name in ("range", "sill", "nugget", "tol"):
            require(is_real(attributes[name]) and attributes[name] >= 0, f"{name} {attributes[name]!r}")
        kernel, space = Kernel(**attributes.pop("kernel")), dict(attributes.pop("space"))
        space["anisotropy"] = tuple(space["anisotropy"])
        window = attributes.pop("window", None)  # files of earlier versions have none
        stored = attributes.pop("drift")
        drift = Drift(
            int(stored["degree"]), tuple(stored["columns"]), tuple(stored["ignored"]), len(shared["center"]),
            tuple(shared["center"].tolist()), tuple(shared["scale"].tolist()),
        )  # fmt: skip
        require(attributes.setdefault("likelihood", "gaussian") in LIKELIHOODS, "a likelihood of another version")
        require(drift.functions(np.zeros((1, drift.width))).shape[1] == sizes["p"], "a drift of other functions")
        held = list(parts.held.values())
        if held:
            points = PointColumns(*(np.concatenate([arrays[name] for arrays in held]) for name in PART))
        else:  # this rank reads no part of the file
            d = 3 if space["geographic"] else len(drift.coordinates)
            empty = np.zeros(0), np.zeros(0, np.int64)
            points = PointColumns(np.zeros((0, d)), *empty, np.zeros((0, sizes["p"] + 1)))
        return cls(
            **attributes, kernel=kernel, window=None if window is None else tuple(window), space=Space(**space),
            drift=drift, beta=shared["beta"], gram=shared["gram"], points=points,
            sizes=np.array([len(points)]),
        )  # fmt: skip


def normal_interval(
    mean: NDArray[np.float64], std: NDArray[np.float64], coverage: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper ends of the intervals around `mean` that contain this share of a normal distribution."""
    half = float(ndtri((1.0 + coverage) / 2.0)) * std
    return mean - half, mean + half


# -- contents of the file --------------------------------------------------------------------------------

SHARED: Layout = {
    "beta": Array("float64", ("p",), "kriging: coefficients of the drift"),
    "gram": Array("float64", ("p", "p"), "F' A^-1 F of the drift's functions F, with A the covariances over the sill"),
    "center": Array("float64", ("d",), "middle of the training rows, by which the drift's functions are scaled"),
    "scale": Array("float64", ("d",), "half the extent of the training rows"),
}
PART: Layout = {
    "X": Array("float64", ("m", "c"), "coordinates of the points, in which the correlation depends on distance alone"),
    "noise": Array("float64", ("m",), "variance of each value's noise, over the sill"),
    "place": Array("int64", ("m",), "places of the points in the shuffled order"),
    "values": Array("float64", ("m", "v"), "A^-1 (y - F beta) and A^-1 F, or for windows y - F beta and F; v is p + 1"),
}


# -- unconditional draws ----------------------------------------------------------------------------------

# A draw is f = K^(1/2) z in distribution, with z standard normal numbers. With the sparse factor G of the inverse,
# G K G' is close to the identity, and f = K G' (G K G')^(-1/2) z has exactly the covariance K. Lanczos' method computes
# the root in a few products (E. Chow, Y. Saad: Preconditioned Krylov subspace methods for sampling multivariate
# Gaussian distributions. SIAM J. Sci. Comput. 36, 2014). For dense systems, a Cholesky factor is used. The numbers z
# depend on the seed, the number of the draw, and the place of a point in the shuffled order, but not on the ranks.

JITTER = 1e-10  # variance of noise, over the sill, that keeps K definite where places are close
FIELD, NOISE, SLOPES = 0, 1, 2  # streams of normal numbers
_ITERATIONS = 30  # iterations that the memory of a batch is planned for: twice the 15 of a hard system


def normals(place: NDArray[np.int64], seed: int, draw: int, stream: int) -> NDArray[np.float64]:
    """Standard normal numbers, shape (n,), that depend on nothing but a point's place, the seed, draw and stream."""
    with np.errstate(over="ignore"):
        key = np.zeros(1, np.uint64)
        for word in (seed, draw, stream):
            key = mix64(key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(word + 1))
        words = mix64(mix64(place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key) ^ key)
    return np.asarray(ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53))


def _joint_field(near: Field, Q: NDArray[np.float64], place: NDArray[np.int64]) -> tuple[Field, NDArray[np.int64]]:
    """One field of the points of `near` and of places `Q`, shape (q, d), on the ranks of their regions; collective.

    It has no duplicates: the second result is the number of each point, and then of each place, among its own points.
    """
    owned = near.owned
    X, places = np.concatenate([owned.X, Q]), np.concatenate([owned.place, place])
    at, which = np.unique(X, axis=0, return_inverse=True)
    which = which.reshape(-1)
    least = np.full(len(at), np.iinfo(np.int64).max)
    np.minimum.at(least, which, places)
    number = np.arange(len(at), dtype=np.float64)[:, None]
    points = PointColumns(at, np.full(len(at), JITTER), least, number)
    field = Field.arranged(points.packed(), X.shape[1], near.regions, near.radius, near.comm)
    back = np.empty(len(at), np.int64)
    back[field.owned.values[:, 0].astype(np.int64)] = np.arange(len(at))
    return field, back[which]


class Draws:
    """Draws of a field of mean 0 and variance 1 at its points and at other places; construction is collective.

    Parameters
    ----------
    near : Field
        The points.
    Q : ndarray, shape (q, d)
        New places in the region of this rank, in the coordinates of the points.
    place : ndarray of int64, shape (q,)
        Their places in the shuffled order, after those of the points.
    correlation : Correlation
    neighbours : int
        Most neighbours of a point in the factor.
    tol : float
        Relative error of a draw.
    seed : int
    limit : int
        Bytes that a rank may use.

    Attributes
    ----------
    batch : int
        Number of draws that fit into memory at once.
    """

    def __init__(
        self, near: Field, Q: NDArray[np.float64], place: NDArray[np.int64], correlation: Correlation, neighbours: int,
        tol: float, seed: int, limit: int,
    ) -> None:  # fmt: skip
        self._n_owned, self._seed, self.batch = near.n_owned, seed, 16
        self._field, self._which = _joint_field(near, Q, place)
        if math.isinf(near.radius):
            self._root = _dense_root(self._field, correlation, limit)
            return
        self._root = _near_root(self._field, correlation, neighbours, tol, limit)
        room = np.array([limit // 4 // (8 * _ITERATIONS * max(1, len(self._field.points)))])
        with near.comm.uncounted():
            self.batch = int(np.clip(near.comm.allreduce(room, "min")[0], 1, 16))

    def __call__(self, numbers: range) -> tuple[Vectors, Vectors]:
        """Draws by number: values at this rank's points, shape (t, n_owned), and at new places, (t, q); collective."""
        place = self._field.owned.place
        Z = np.stack([normals(place, self._seed, number, FIELD) for number in numbers])
        values = self._root(Z)[:, self._which]
        return values[:, : self._n_owned], values[:, self._n_owned :]


Root = Callable[[Vectors], Vectors]  # the root times each row of an array, shape (t, n_owned); collective


def _near_root(field: Field, correlation: Correlation, neighbours: int, tol: float, limit: int) -> Root:
    """The sparse root K G' (G K G')^(-1/2) of the matrix of correlations; collective.

    The function raises an InputError on all ranks if its iterations do not converge.
    """
    system = NearSystem(field, field.points.noise, correlation, neighbours, limit)

    def root(Z: Vectors) -> Vectors:
        solved, iterations, change = inverse_root(
            lambda V: system.lower(system.product(system.upper(V))), Z, system.add_up, tol
        )
        if not change <= tol:
            with field.comm.agreed():
                raise InputError(
                    f"simulation: a draw still changes by {change:.1e} after {iterations} iterations, above {tol:g}: "
                    "places are too close for the range; use fewer places, more --neighbors, or a larger --tol"
                )
        return system.product(system.upper(solved))

    return root


def _dense_root(field: Field, correlation: Correlation, limit: int) -> Root:
    """The Cholesky factor of all correlations, on every rank; collective."""
    points, comm = field.owned, field.comm
    all_points = comm.allgather(np.column_stack([points.X, points.noise, points.place]))
    order, m = np.argsort(all_points[:, -1], kind="stable"), len(all_points)
    all_points = all_points[order]
    with comm.agreed():
        memory.require(
            16 * m * m, limit, f"the dense matrix of {m:,} points and places", "use fewer places, or --solver cg"
        )
    mine = np.searchsorted(all_points[:, -1].astype(np.int64), points.place)
    X = np.ascontiguousarray(all_points[:, :-2])
    with comm.agreed():
        L = _factor(correlation.matrix(X, X), all_points[:, -2])

    def root(Z: Vectors) -> Vectors:
        all_Z = comm.allgather(np.ascontiguousarray(Z.T))[order]
        return np.ascontiguousarray((L @ all_Z)[mine].T)

    return root


def _factor(K: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cholesky factor of `K` plus the least multiple (1, 10, 100, ...) of `noise` that makes it positive definite."""
    size = 1.0
    while size < 1e5:
        K[np.diag_indices(len(K))] = 1.0 + size * noise
        try:
            return np.asarray(cholesky(K, lower=True, check_finite=False))
        except LinAlgError:
            size *= 10.0
    raise InputError("simulation: the covariance of points and places is singular; use fewer places")


_LEAST_EIGENVALUE = 1e-14  # smallest eigenvalue used, relative to the largest


def inverse_root(
    product: Callable[[Vectors], Vectors], Z: Vectors, add_up: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    tol: float, max_iterations: int = 300,
) -> tuple[Vectors, int, float]:  # fmt: skip
    """``M^(-1/2) z`` for each row z of `Z`, shape (t, n_local), with M symmetric positive definite; collective.

    Parameters
    ----------
    product : callable
        M times each row of an array like `Z`.
    Z : ndarray
    add_up : callable
        Sums each number over ranks, with the same bits on all ranks.
    tol : float
        Relative change between two iterations that ends them.
    max_iterations : int
        Most iterations.

    Returns
    -------
    first_columns : ndarray, shape (t, n_local)
    iterations : int
    change : float
        Largest relative change in the last iteration.

    Notes
    -----
    In the basis V of the Krylov space of z, M is a tridiagonal matrix T, and the result is |z| V T^(-1/2) e_1. Each
    iteration stores 8 t n_local bytes of V, and takes a product and two sums of t numbers over ranks. Errors fall as
    (1 - 2 / sqrt(condition))^iterations (Frommer, Guettel, Schweitzer, SIAM J. Matrix Anal. Appl. 35, 2014).
    """
    t = len(Z)
    size = np.sqrt(add_up(np.einsum("ij,ij->i", Z, Z)))
    basis = [Z / np.where(size > 0, size, 1.0)[:, None]]
    diagonal, beside = np.zeros((0, t)), np.zeros((0, t))
    last, change = np.zeros((0, t)), np.inf
    while True:
        V = basis[-1]
        W = product(V)
        if len(beside):
            W -= beside[-1][:, None] * basis[-2]
        a = add_up(np.einsum("ij,ij->i", V, W))
        W -= a[:, None] * V
        diagonal = np.vstack([diagonal, a])
        first_columns = np.stack([_first_column(diagonal[:, j], beside[:, j]) for j in range(t)], axis=1)
        gap = first_columns.copy()
        gap[:-1] -= last
        change = float((np.linalg.norm(gap, axis=0) / np.linalg.norm(first_columns, axis=0)).max(initial=0.0))
        if change <= tol or len(basis) == max_iterations:
            break
        last = first_columns
        b = np.sqrt(add_up(np.einsum("ij,ij->i", W, W)))
        beside = np.vstack([beside, b])
        basis.append(W / np.where(b > 0, b, 1.0)[:, None])
    out = np.zeros_like(Z)
    for coefficients, V in zip(first_columns, basis, strict=True):
        out += (size * coefficients)[:, None] * V
    return out, len(basis), change


def _first_column(diagonal: NDArray[np.float64], beside: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first column of T^(-1/2), for a symmetric tridiagonal matrix T."""
    values, vectors = eigh_tridiagonal(diagonal, beside)
    values = np.maximum(values, _LEAST_EIGENVALUE * max(float(values[-1]), 1e-300))
    return np.asarray(vectors @ (vectors[0] / np.sqrt(values)))
