"""Models in parts: the base of all of them, with their ranks, their file, and prediction of rows on other ranks.

Routing comes second: the parts whose models predict a row, and the weights of their predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, Communicator, Unquoted, collective, require_same
from cacore.data.rows import AnyRows, Rows, RowsLike, check_alike, exchange_rows, gather_rows, is_sparse
from cacore.data.standardize import Standardizer
from cacore.data.stored import StoredRows
from cacore.data.validation import features_of, rows_to_predict
from cacore.errors import InputError
from cacore.explain.explanation import Explanation, Groups, answered, outcome
from cacore.explain.shapley import Game
from cacore.files import described
from cacore.io import model_file
from cacore.io.model_file import STANDARDIZER, Array, Layout, check_rows, require
from cacore.kernels import Kernel, Points
from cacore.machine.threads import blocks, for_blocks, rows_in
from cacore.svm.decision import Expansion
from partition.base import PartRows
from partition.explain import baselines_of, of_columns, players_of, require_alike

# Arrays of every model in parts: P parts, d features. C is P, or 0 for pieces of one model.
SHARED: Layout = {
    "centers": Array("float64", ("C", "d"), "centres of the parts, in standardised features"),
    "sizes": Array("int64", ("P",), "number of training rows of each part"),
    **STANDARDIZER,
}
ROUTES = ("nearest", "soft", "all", "sum", "oracle")
_FAR = 1e4  # |mean| over the range of the centres from which a feature of sparse rows is shifted
_BLOCK_BYTES = 1 << 22  # squared distances of a block of rows
_GATHERED_ROWS = 1 << 16  # rows sent to all models at a time: bounds the memory for other ranks' rows

Answer = Callable[[int, Rows], NDArray[Any]]  # (number of a part, rows) -> the part's answers
Model = TypeVar("Model", bound="InParts")


@dataclass(kw_only=True)
class InParts:
    """A model of P parts, of which this rank holds some: the base of the families' models.

    Attributes
    ----------
    method : str
    route : {"nearest", "soft", "all", "sum", "oracle"}
        Models that predict a row. "nearest": the model of the nearest centre. "soft": the weighted mean of the models
        of the nearest centres. "all": the mean of all P models, which suits random parts, whose centres carry little
        information; weighted if there is a `soft`. "sum": the parts are pieces of one model. "oracle": the model with
        the smallest error, given the true targets.
    centers : ndarray, shape (P, d)
        Centres in standardised features; (0, d) for pieces.
    sizes : ndarray of int64, shape (P,)
    owners : ndarray of int64, shape (P,)
        Rank of each part.
    standardizer : Standardizer or None
    dtype : str
        Floating-point type of the rows.
    soft : Soft or None
        Weights of the route "soft", and of "all" if it is weighted.
    divisions : int
        Number of divisions of the rows into parts. The parts of all divisions are numbered one after the other, and
        predictions are averaged over the divisions.
    parts : dict of int to the family's model of a part
        Models of this rank's parts.
    source : dict
        How the training file was read: target column and number of the first feature.
    comm : Communicator or None
        The ranks that hold the parts; not part of a copy or a pickle.
    identity : str
        For a model that several ranks trained or loaded together, a name that is the same on all of them and differs
        between models.
    """

    family: ClassVar[str]  # name in the file
    shared_arrays: ClassVar[Layout] = SHARED
    part_arrays: ClassVar[Layout]

    method: str
    route: str
    centers: NDArray[np.float64]
    sizes: NDArray[np.int64]
    owners: NDArray[np.int64]
    standardizer: Standardizer | None
    dtype: str
    soft: Soft | None = None
    divisions: int = 1
    parts: dict[int, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    comm: CommLike = field(default=None, repr=False, compare=False)
    identity: str = field(default="", repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "comm": None}

    def described(self) -> dict[str, object]:
        """Entries of the report about the model."""
        raise NotImplementedError

    @property
    def n_features(self) -> int:
        """Number of features of a row to predict."""
        return self.n_columns if self.standardizer is None else self.standardizer.n_features

    @property
    def n_columns(self) -> int:
        """Number of columns of a standardised row, which is larger if features have a column per level."""
        return int(self.centers.shape[1])

    def add(self, other: Self) -> None:
        """Add the parts of a model that was trained on another division of the same rows."""
        P = len(self.sizes)
        self.parts |= {P + part: part_model for part, part_model in other.parts.items()}
        for name in ("centers", "sizes", "owners"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        self.divisions += 1

    def save(self, path: str | Path, comm: CommLike = None) -> None:
        """Write the model to one HDF5 file; collective, by default on the ranks that trained or loaded it."""
        attributes, shared, parts = self.stored()
        with self._ranks(comm, "save") as ranks:
            with ranks.agreed():
                self._check_ranks(ranks)
            model_file.save(path, self.family, attributes, shared, parts, self.owners, ranks)

    def stored(self) -> tuple[dict[str, Any], dict[str, Rows], dict[int, dict[str, Rows]]]:
        """The contents of the model's file: attributes, shared arrays, and arrays of this rank's parts."""
        attributes = {name: getattr(self, name) for name in ("method", "route", "dtype", "source")}
        attributes["soft"] = None if self.soft is None else asdict(self.soft)
        if self.divisions > 1:
            attributes["divisions"] = self.divisions
        more, arrays = self._stored()
        shared: dict[str, Rows] = {"centers": self.centers, "sizes": self.sizes, **arrays}
        if self.standardizer is not None:
            shared.update(self.standardizer.arrays)
        return attributes | more, shared, {number: self._stored_part(number) for number in self.parts}

    @classmethod
    def load(cls, path: str | Path, comm: CommLike = None) -> Self:
        """Read a model on any number of ranks; collective.

        Raises
        ------
        InputError
            The file is missing, damaged, not a model, or one of another family.
        """
        return load_one_of((cls,), path, comm)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Rows]]:
        """The family's attributes and shared arrays for the file."""
        raise NotImplementedError

    def _stored_part(self, number: int) -> dict[str, Rows]:
        """Arrays of one of this rank's parts for the file."""
        part = vars(self.parts[number])
        return {name: part[name] for name in self.part_arrays if part.get(name) is not None}

    @classmethod
    def of_file(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts) -> Self:
        """Check the contents of a file, see :meth:`stored`, and build the model."""
        P = len(parts.owners)
        sizes = {"P": P, "C": 0 if attributes["route"] == "sum" else P, **cls._shared_sizes(attributes)}
        model_file.check(cls.shared_arrays, shared, sizes)
        for number, arrays in parts.held.items():
            part_sizes = {"d": sizes["d"], **cls._part_sizes(attributes, shared, number)}
            model_file.check(cls.part_arrays, arrays, part_sizes, f"part {number}: ")
        return cls._from_contents(attributes, shared, parts)

    @classmethod
    def _shared_sizes(cls, attributes: dict[str, Any]) -> dict[str, int]:
        """Sizes of arrays that follow from the family's attributes."""
        return {}

    @classmethod
    def _part_sizes(cls, attributes: dict[str, Any], shared: dict[str, Any], number: int) -> dict[str, int]:
        """Sizes of a part's arrays that are known without reading it."""
        raise NotImplementedError

    @classmethod
    def _from_contents(cls, attributes: dict[str, Any], shared: dict[str, Any], parts: model_file.StoredParts) -> Self:
        """Build the model from its file's contents; removes the family's own items from `attributes` and `shared`."""
        soft = attributes.pop("soft")
        model = cls(
            **attributes, centers=shared["centers"], sizes=shared["sizes"], owners=parts.owners, parts=parts.held,
            standardizer=Standardizer.stored(shared), soft=None if soft is None else Soft(**soft),
        )  # fmt: skip
        model._check()
        return model

    def _check(self) -> None:
        """Refuse inconsistent fields; families add their own checks."""
        soft = self.soft
        require(self.route in ROUTES, f"route {self.route!r}")
        require(soft is None or self.route in ("soft", "all"), f"weights of models, and route {self.route!r}")
        require(len(self.owners) and self.sizes.min() >= 0, "no parts, or sizes below 0")
        if soft is not None or self.route == "soft":
            require(soft is not None and soft.k >= 1 and soft.t >= 0, "soft routing without k and t")
        fits = isinstance(self.divisions, int) and self.divisions >= 1 and len(self.sizes) % self.divisions == 0
        require(fits, f"divisions {self.divisions!r} of {len(self.sizes)} parts")
        check_rows(self.dtype, self.source, self.standardizer, self.n_features)

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        comm: CommLike = None, interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Shapley values of each feature for the model's answer to each row; a collective call.

        Parameters
        ----------
        X : array-like or CSR, shape (n_local, d)
            This rank's rows. Not changed.
        background : array-like or CSR, shape (b, d), or "absent", optional
            Rows over which the answer without a feature is averaged, the same on all ranks; by default up to 100 of all
            ranks' rows, drawn with a fixed seed. "absent": the kernel's factor of a feature that is absent is 1.
        groups : sequence of sequences of int or str, optional
            Numbers or names of features that enter together, such as the columns of one category.
        comm : mpi4py communicator, Communicator or None
            As for `predict`.
        interactions : bool
            Also compute the interactions of pairs of features.

        Returns
        -------
        Explanation
            For a regression and an SVM of two classes, one output: the prediction, or the decision. Otherwise one per
            target or class of a ridge regression, and one per pair of classes of an SVM, positive for the first.

        Raises
        ------
        InputError
            On all ranks: the kernel is no product over the features (gaussian, l1 and the wendland products are), the
            metric is full, or wrong rows or groups.

        Notes
        -----
        Exact, see :mod:`cacore.explain.shapley`: about 3 b m d^2 flops per row for a model of m support vectors, and
        1 + d / 4 times as many with interactions. The communication is that of a prediction with d + 1 answers, and one
        more for each pair.
        """
        with self._ranks(comm, "explain") as ranks, ranks.phase("predict"):
            require_alike(background, groups, interactions, ranks)
            with ranks.agreed():
                if self.route == "oracle":
                    raise InputError(f"{self.method} is an oracle: it needs the true targets and cannot predict")
                held = {part: self.expansion(part) for part in self.parts}
                players = players_of(self, [*held.values(), *self.everywhere()], groups)
                X = features_of(X, self.source)
            Z = self.standardized(X, ranks)
            game = Game(baselines_of(self, Z, background, ranks), of_columns(self, players), interactions)
            shape = game.players + 1 + game.pairs, len(self.outputs())
            values = self._answered(Z, ranks, shape, lambda part, rows: answered(held[part], rows, game))
            for f in self.everywhere():
                values += answered(f, Z, game)
        return outcome(values, X, players, self.outputs(), self.single_output(), interactions)

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that :meth:`explain` explains."""
        raise NotImplementedError

    def expansion(self, part: int) -> Expansion:
        """One of this rank's parts as a function of rows, with the outputs of :meth:`explain`."""
        raise NotImplementedError

    def everywhere(self) -> list[Expansion]:
        """Functions that every rank holds, and that are added to the parts' answers."""
        return []

    def single_output(self) -> bool:
        """True if there is a single output without an axis of its own."""
        return len(self.outputs()) == 1

    def _answer(self, part: int, rows: Rows) -> NDArray[Any]:
        """Answer of one of this rank's parts for the rows, shape (len(rows), ...)."""
        raise NotImplementedError

    def _answered(
        self, Z: AnyRows, comm: Communicator, shape: tuple[int, ...] = (), answer: Answer | None = None
    ) -> NDArray[np.float64]:
        """Prediction, by the model's route, for each of this rank's rows, shape (n_local, *shape); collective.

        A part's answer is that of `answer`, by default :meth:`_answer`. With "sum" and "all", every row is sent to
        every rank. Otherwise each row is sent to the ranks of its models, and the answers are sent back.
        """
        ask, P = answer or self._answer, len(self.sizes)
        if self.route == "sum" or (self.route == "all" and P > 1):
            total = visit(Z, partial(self._sum_of_parts, shape, ask), comm, shape)
            return total / P if self.route == "all" and self.soft is None else total
        if self.soft is None and self.divisions == 1:
            labels = nearest(Z, self.centers) if P > 1 else np.zeros(Z.shape[0], np.int32)
            return self._asked(Z, labels, comm, shape, ask)
        values, weights = self._weighted(Z, comm, shape, ask)
        return np.asarray(np.einsum("ij...,ij->i...", values, weights))

    def _sum_of_parts(self, shape: tuple[int, ...], answer: Answer, rows: Rows) -> NDArray[np.float64]:
        """Sum of the answers of this rank's parts, weighted if there is a `soft`."""
        total = np.zeros((rows.shape[0], *shape))
        weights = None if self.soft is None else self.soft.of_all(rows, self.centers)
        for number in self.parts:
            answers = answer(number, rows)
            total += answers if weights is None else weights[:, number].reshape(-1, *(1,) * len(shape)) * answers
        return total

    def _asked(
        self, Z: AnyRows, labels: NDArray[np.int32], comm: Communicator, shape: tuple[int, ...] = (),
        answer: Answer | None = None,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Answer of part ``labels[i]`` for row i, shape (n_local, *shape); collective.

        A part's answer is that of `answer`, by default :meth:`_answer`. Each row is sent to the owner of its part,
        unless that is this rank, and the answer is sent back.
        """
        # Sorted by owner, and by part within an owner, so that a part's rows are one block.
        toward = self.owners[labels]
        send = np.lexsort((labels, toward))
        counts = np.bincount(toward, minlength=comm.size).astype(np.int64)
        rows = exchange_rows(Z[send], counts, comm)
        parts, received = comm.alltoall(labels[send], counts)
        place = np.argsort(parts, kind="stable")
        values = np.empty((len(parts), *shape))
        for part in self.parts:
            here = place[np.searchsorted(parts[place], part) : np.searchsorted(parts[place], part, side="right")]
            if here.size:
                values[here] = (answer or self._answer)(part, rows[here])
        home, _ = comm.alltoall(values, received)
        out = np.empty_like(home)
        out[send] = home
        return out

    def _weighted(
        self, Z: AnyRows, comm: Communicator, shape: tuple[int, ...] = (), answer: Answer | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Answers of the models of the nearest centres, nearest first, and their weights; see :meth:`_asked`.

        The shapes are (n_local, D k, *shape) and (n_local, D k) for D divisions; k is 1 without weights.
        """
        soft, P = self.soft or Soft(1, 0.0), len(self.centers) // self.divisions
        nearest_of_divisions = [
            closest(Z, self.centers[lo : lo + P], min(soft.k, P)) for lo in range(0, len(self.centers), P)
        ]
        labels = np.hstack([parts + np.int32(i * P) for i, (parts, _) in enumerate(nearest_of_divisions)])
        n, k = labels.shape
        values = self._asked(Z[np.arange(n).repeat(k)], labels.ravel(), comm, shape, answer)
        weights = np.hstack([soft.weights(squares) for _, squares in nearest_of_divisions]) / self.divisions
        return values.reshape(n, k, *shape), weights

    @contextmanager
    def _ranks(self, comm: CommLike, call: str) -> Iterator[Communicator]:
        """The given ranks, or those that trained or loaded the model, once all make the same call; collective."""
        with collective(self.comm if comm is None else comm) as ranks:
            if ranks.size > 1:
                with ranks.uncounted():
                    require_same(
                        {"call": Unquoted(f"{type(self).__name__}.{call}"), "model": Unquoted(self.identity)}, ranks
                    )
            yield ranks

    def _check_ranks(self, comm: Communicator) -> None:
        if comm.size <= int(self.owners.max()) or len(self.parts) != np.count_nonzero(self.owners == comm.rank):
            raise InputError("other ranks hold the model: save it, and load it on the ranks that use it")

    def standardized(self, X: RowsLike | StoredRows, comm: Communicator) -> AnyRows:
        """This rank's rows, checked with the same result on all ranks, and standardised."""
        with comm.agreed(own_rows=True):
            Z = rows_to_predict(X, self.dtype, self.n_features, self.standardizer, self.source)
            self._check_ranks(comm)
        check_alike(Z, comm)
        return Z


def load_one_of(kinds: Sequence[type[Model]], path: str | Path, comm: CommLike = None) -> Model:
    """Read a model of any of these kinds; collective. See :meth:`InParts.load`."""
    with collective(comm) as ranks:
        model = model_file.load(path, {kind.family: kind.of_file for kind in kinds}, ranks)
        model.identity = described(path) if ranks.size > 1 else ""
    model.comm = comm
    return model


def one_piece_a_rank(shared: dict[str, Any], parts: model_file.StoredParts, join: Callable[[list[Any]], Any]) -> None:
    """Merge the pieces of one model that each rank has read into one piece per rank, with `join`."""
    ranks = np.unique(parts.owners)
    if parts.held:
        rank = int(np.searchsorted(ranks, parts.owners[next(iter(parts.held))]))
        parts.held = {rank: join(list(parts.held.values()))}
    shared["sizes"] = np.bincount(parts.owners, shared["sizes"])[ranks].astype(np.int64)
    parts.owners = ranks


def visit(
    X: AnyRows, answer: Callable[..., NDArray[np.float64]], comm: Communicator, shape: tuple[int, ...] = (),
    op: str = "sum", column: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Sum or minimum of all ranks' answers for each row, shape (n_local, *shape); collective.

    ``answer(rows)`` returns the combined answer of this rank's models, shape (len(rows), *shape). If `column`, shape
    (n_local,), has one number per row, the call is ``answer(rows, values)``. `op` is "sum" or "min".

    Every row is sent to every rank, and one reduction of the answers follows, for 65,536 rows at a time.
    """
    out = np.empty((X.shape[0], *shape))
    longest = int(comm.allreduce(np.array([X.shape[0]]), "max")[0])
    for lo, hi in blocks(longest, max(1, _GATHERED_ROWS // comm.size)):
        block = X[lo:hi]
        first, _ = comm.offset(block.shape[0])
        rows = gather_rows(block, comm)
        values: tuple[Any, ...] = () if column is None else (comm.allgather(column[lo:hi]),)
        total = comm.allreduce(np.ascontiguousarray(answer(rows, *values)), op)
        out[lo:hi] = total[first : first + block.shape[0]]
    return out


def nearest(X: AnyRows, centers: NDArray[np.float64]) -> NDArray[np.int32]:
    """Index of the nearest centre of each row; ties go to the lower index.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
    centers : ndarray, shape (P, d)

    Returns
    -------
    ndarray of int32, shape (n,)

    Notes
    -----
    2 n P d flops on all threads; memory for one block per thread. Local: every rank routes its own rows.
    """
    labels = np.full(X.shape[0], -1, np.int32)
    if X.shape[0]:
        PartRows(X, Communicator(), seed=0).step(centers, labels, sums=False)
    return labels


def closest(X: AnyRows, centers: NDArray[np.float64], k: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Indices of the k nearest centres of each row, nearest first, and the squared distances to them.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
    centers : ndarray, shape (P, d)
    k : int
        At most P.

    Returns
    -------
    parts : ndarray of int32, shape (n, k)
    squares : ndarray of float64, shape (n, k)

    Notes
    -----
    2 n P d flops on all threads; memory for one block per thread.
    """
    parts, squares = np.empty((X.shape[0], k), np.int32), np.empty((X.shape[0], k))

    def keep(lo: int, hi: int, squared: NDArray[np.float64]) -> None:
        order = np.argsort(squared, axis=1, kind="stable")[:, :k]
        parts[lo:hi] = order
        squares[lo:hi] = np.maximum(np.take_along_axis(squared, order, axis=1), 0.0)

    _squared(X, centers, keep)
    return parts, squares


def distances(X: AnyRows, centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distances of the rows to all centres, shape (n, P), as float64: 2 n P d flops on all threads."""
    distances = np.empty((X.shape[0], len(centers)))

    def keep(lo: int, hi: int, squared: NDArray[np.float64]) -> None:
        np.sqrt(np.maximum(squared, 0.0), out=distances[lo:hi])

    _squared(X, centers, keep)
    return distances


def _squared(X: AnyRows, centers: NDArray[np.float64], keep: Callable[[int, int, NDArray[np.float64]], None]) -> None:
    """Call ``keep(lo, hi, squares)`` for blocks of rows; rounding may make a squared distance negative."""
    mean = centers.mean(axis=0)
    shift: NDArray[np.float64] | None = mean
    if is_sparse(X):  # only where all centres lie together and far from 0, so that rows stay sparse
        far = (np.abs(mean) > _FAR * np.ptp(centers, axis=0)) & (len(centers) > 1)
        shift = np.where(far, mean, 0.0) if far.any() else None
    middle, linear = Points(centers, shift), Kernel("linear")

    def rows(lo: int, hi: int) -> None:
        points = Points(X[lo:hi].astype(np.float64), shift)
        keep(lo, hi, points.squares[:, None] + middle.squares - 2.0 * linear.block(points, middle))

    widest = len(centers) if is_sparse(X) else max(centers.shape)
    for_blocks(rows, blocks(X.shape[0], rows_in(_BLOCK_BYTES, widest)))


@dataclass(frozen=True)
class Soft:
    """Soft routing: the models of the k nearest centres answer, with weights exp(-(d^2 - d_min^2)/t).

    Attributes
    ----------
    k : int
    t : float
        Increase in squared distance, relative to the nearest centre, at which the weight falls to 1/e.
    """

    k: int
    t: float

    def weights(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights of the models for each row, with sum 1.

        Parameters
        ----------
        squares : ndarray, shape (n, K)
            Squared distances to the K nearest centres, ascending; from the (k+1)-th on, weights are 0.
        """
        with np.errstate(over="ignore"):  # for a tiny t the quotient overflows, and the weight is 0 as it should be
            weights = np.exp(-(squares - squares[:, :1]) / max(self.t, np.finfo(float).tiny))
        weights[:, self.k :] = 0.0
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def scaled(self, unit: float, P: int) -> Soft:
        """Return this routing with t multiplied by `unit`, and with k at most P."""
        return Soft(min(self.k, P), self.t * unit)

    def of_all(self, X: AnyRows, centers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights of all P models for each row, shape (n, P), in the order of the centres."""
        parts, squares = closest(X, centers, len(centers))
        weights = np.empty_like(squares)
        np.put_along_axis(weights, parts, self.weights(squares), axis=1)
        return weights


# Default, if held-out rows do not choose k and t; t is in units of :func:`gap`. Ridge regression compares the settings
# with it, and then the routes around it (:data:`cakrr.methods.choose.SOFT_TRIED`).
SOFT = Soft(4, 0.35)


def gap(X: AnyRows, centers: NDArray[np.float64], comm: Communicator) -> float:
    """Mean of d_2^2 - d_1^2 over all ranks' rows, d_1 and d_2 to the two nearest centres: a unit for t; collective."""
    _, squares = closest(X, centers, 2)
    total = comm.allreduce(np.array([(squares[:, 1] - squares[:, 0]).sum(), len(squares)]))
    return float(total[0] / max(total[1], 1.0))


def double_variance(X: AnyRows, centers: NDArray[np.float64], comm: Communicator) -> float:
    """Twice the variance of all ranks' rows about their centres: with this t, weights are probabilities; collective.

    Suppose that each part's rows are Gaussian about its centre, with the same variance s^2 in the directions in which
    rows vary. The probability that a row belongs to a part is then proportional to exp(-d^2 / (2 s^2)), so t = 2 s^2.
    For covariance S, d^2 has mean tr S and variance 2 tr S^2. With s^2 = tr S^2 / tr S, t is the variance of d^2 over
    its mean, where d is the distance to the nearest centre. On this scale the centres of random parts almost coincide,
    and the centres of clusters are far apart.
    """
    _, squares = closest(X, centers, 1)
    n, total, square = comm.allreduce(np.array([len(squares), squares.sum(), np.vdot(squares, squares)]))
    return float(max(square - total**2 / max(n, 1.0), 0.0) / total) if total > 0 else 0.0
