"""The training rows of a search, what is known of them, and the rows of them that judge the candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.encoding import FIRST_LEVEL
from cacore.data.holdout import Holdout, stratified
from cacore.data.labels import all_classes, class_codes, require_classes
from cacore.data.rows import Rows, dense, is_sparse
from cacore.data.standardize import levels_of
from cacore.errors import InputError

# Reasoned, not measured.
FOLDED = 5_000  # number of rows up to which candidates are judged by cross-validation
FOLDS = 5
GROUPS = FOLDS  # of the judged rows: what is fitted to some of them is judged by the others
HELD, _MOST_HELD = 0.15, 10_000  # share of more rows than that which is held out, and their maximum number
REGRESSION, CLASSIFICATION = ("regression", "classification")
_FEW = 20  # most different whole numbers that are taken for classes


@dataclass(frozen=True)
class Data:
    """This rank's training rows, and facts about all of them.

    Attributes
    ----------
    X : ndarray or CSR, shape (n_local, d)
    y : ndarray, shape (n_local,) or (n_local, t)
        Targets, or labels of any type.
    weights : ndarray of float64, shape (n_local,), or None
    task : {"regression", "classification"}
    n : int
        Number of rows on all ranks.
    classes : ndarray
        The labels, ascending; empty for a regression.
    columns : int
        Number of features if those with few levels had a column for each; see :mod:`cacore.data.standardize`.
    kinds : str
        Kinds of the features, see :class:`cacore.data.encoding.Columns`; empty if unknown.
    """

    X: Rows
    y: NDArray[Any]
    weights: NDArray[np.float64] | None
    task: str
    n: int
    classes: NDArray[np.generic]
    columns: int = 0
    kinds: str = ""

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @property
    def one_unit(self) -> bool:
        """True if numbers may have one unit, such as pixels, and need no standardisation; beside words they do."""
        return FIRST_LEVEL not in self.kinds

    @property
    def sparse(self) -> bool:
        """True if the rows are a sparse matrix."""
        return is_sparse(self.X)

    @classmethod
    def of(
        cls, X: Rows, y: NDArray[np.generic], weights: NDArray[np.float64] | None, task: str | None,
        comm: Communicator, kinds: str = "",
    ) -> Data:  # fmt: skip
        """Rows with their task, guessed from the targets if it is None; collective."""
        task = task or guessed(y, comm)
        classes = all_classes(y, comm) if task == CLASSIFICATION else np.zeros(0)
        with comm.agreed():
            if task == CLASSIFICATION:
                require_classes(classes, way="use --task regression, or AutoKernelRegressor")
        with comm.uncounted():
            n = comm.offset(X.shape[0])[1]
        with comm.agreed():
            if n < 2:
                raise InputError(f"n_samples = {n}: a search needs at least 2 rows, one of them to judge by")
        return cls(X, y, weights, task, n, classes, _columns(X, comm), kinds)

    def targets(self, rows: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Targets and weights of this rank's rows in a mask; without weights, 1 for each row."""
        y = self.y[rows]
        return y, np.ones(len(y)) if self.weights is None else self.weights[rows]

    def subset(self, rows: NDArray[np.bool_]) -> tuple[Rows, NDArray[Any], NDArray[np.float64] | None]:
        """Rows, targets and weights of this rank's rows in a mask."""
        return self.X[rows], self.y[rows], None if self.weights is None else self.weights[rows]


def _columns(X: Rows, comm: Communicator) -> int:
    """Number of features, with a column for each level of those that have few; collective."""
    with comm.uncounted():
        if not comm.all(not is_sparse(X)):
            return int(X.shape[1])
        levels = levels_of(dense(X), comm)
    return int(X.shape[1]) if levels is None else len(levels.feature)


def guessed(y: NDArray[np.generic], comm: Communicator) -> str:
    """Task that targets suggest: classes if they are words or a few whole numbers, otherwise a regression; collective.

    Whole numbers are taken for classes if there are at most 20 different ones.
    """
    with comm.uncounted():
        if not comm.all(y.dtype.kind in "biuf"):
            return CLASSIFICATION
        distinct = np.unique(y) if y.ndim == 1 else np.zeros(_FEW + 1)
        if not comm.all(len(distinct) <= _FEW and bool((distinct == np.rint(distinct)).all())):
            return REGRESSION
        values = all_classes(distinct, comm)
    return CLASSIFICATION if 2 <= len(values) <= _FEW else REGRESSION


_COUNTED = 100  # most different whole numbers of a target that may as well be classes
_RARE = 10  # times as many rows in the largest class as in the smallest one, from which on accuracy says little


def target_notes(data: Data, name: str, by_accuracy: bool, comm: Communicator) -> list[str]:
    """Notes on whole numbers, which may be classes, and on rare classes of a choice by accuracy; collective.

    `name` is that of the target whose task was guessed; empty if the user has chosen the task.
    """
    notes, values = [], data.classes
    numbers = data.y.dtype.kind in "biuf" and data.y.ndim == 1
    with comm.uncounted():
        if name and numbers and data.task == REGRESSION:
            distinct = np.unique(data.y)
            few = len(distinct) <= _COUNTED and bool((distinct == np.rint(distinct)).all())
            values = all_classes(distinct, comm) if comm.all(few) else values
        counts = comm.allreduce(np.bincount(class_codes(data.y, data.classes), minlength=len(data.classes))
                                if len(data.classes) else np.zeros(1, np.int64))  # fmt: skip
    if name and numbers and len(values) > 2:
        ends, k = f"target {name}: {values[0]:g} to {values[-1]:g}", len(values)
        if data.task == REGRESSION:
            notes.append(f"{ends}, taken as a number; --task classification makes {k} classes")
        else:
            notes.append(f"{ends}, taken as {k} classes; --task regression takes it as a number")
    if by_accuracy and counts.max() >= _RARE * counts.min():
        least, most = int(counts.argmin()), int(counts.argmax())
        shares = [f"{data.classes[c].item()!r} {100 * counts[c] / counts.sum():.3g} %" for c in (least, most)]
        notes.append(
            f"classes of unequal size: {shares[0]} of the rows, {shares[1]}: accuracy says little of the small ones; "
            "--metric-name balanced_accuracy or average_precision"
        )
    return notes


@dataclass(frozen=True)
class Split:
    """Division of the rows into those that judge and those that train, the same on any number of ranks.

    Attributes
    ----------
    fold : ndarray of int64, shape (n_local,)
        Number of the fold that holds a row out; -1 for rows that are never held out.
    order : ndarray of int64, shape (n_local,)
        Place of each row among all training rows in a random order, from 0; for held-out rows, of the first fold if
        there are several, a negative number of its own.
    folds : int
        Number of folds; 1 if the rows are split once.
    n_train : int
        Number of rows that train a candidate at most.
    """

    fold: NDArray[np.int64]
    order: NDArray[np.int64]
    folds: int
    n_train: int

    @classmethod
    def of(cls, data: Data, seed: int, comm: Communicator) -> Split:
        """Folds of few rows, stratified by class, or one random split of many; collective."""
        with comm.uncounted():
            shuffled = Holdout.shuffled(data.X.shape[0], seed, comm)
        place, n = shuffled.place, shuffled.n
        if n > FOLDED:
            held = min(int(HELD * n), _MOST_HELD)
            return cls(np.where(place < held, 0, -1), place - held, 1, n - held)
        codes = class_codes(data.y, data.classes) if len(data.classes) else np.zeros(len(place), np.int64)
        all_codes = np.empty(n, np.int64)  # in shuffled order
        with comm.uncounted():
            all_codes[comm.allgather(place)] = comm.allgather(codes)
        folds = min(FOLDS, n)
        if len(data.classes):
            folds = max(2, min(folds, int(np.bincount(all_codes).min())))
        fold = stratified(all_codes, folds)
        order = np.where(fold == 0, -np.cumsum(fold == 0), np.cumsum(fold != 0) - 1)
        return cls(fold[place], order[place], folds, n - int(np.bincount(fold).max()))

    def once(self, comm: Communicator) -> Split:
        """The first fold's split alone; collective."""
        with comm.uncounted():
            n_train = int(comm.allreduce(np.array([np.count_nonzero(self.fold != 0)]))[0])
        return Split(np.where(self.fold == 0, 0, -1), self.order, 1, n_train)

    def held(self, fold: int) -> NDArray[np.bool_]:
        """Mask of this rank's rows that judge the candidates of this fold."""
        return np.asarray(self.fold == fold)

    def training(self, fold: int, rows: int) -> NDArray[np.bool_]:
        """Mask of this rank's rows that train in this fold, `rows` of all ranks; all of them if there are folds."""
        if self.folds > 1:
            return np.asarray(self.fold != fold)
        return np.asarray((self.order >= 0) & (self.order < rows))

    def validation_rows(self, folds: int) -> NDArray[np.bool_]:
        """Mask of this rank's rows that judge candidates in the first `folds` folds."""
        return np.asarray((self.fold >= 0) & (self.fold < folds))

    def groups(self, folds: int) -> NDArray[np.int64]:
        """Number below `GROUPS` of each of this rank's :meth:`validation_rows`, the same on any number of ranks."""
        return np.asarray(self.order[self.validation_rows(folds)] % GROUPS)

    def sizes(self) -> tuple[int, ...]:
        """Numbers of rows on which candidates are trained, ascending: a quarter each of the next one."""
        sizes = [self.n_train]
        while self.folds == 1 and sizes[0] >= STEP * SMALLEST:
            sizes.insert(0, sizes[0] // STEP)
        return tuple(sizes)


SMALLEST = 1_000  # least number of rows of a sample
STEP = 4  # rows of a sample over those of the next smaller one: of a rung over the one below, in the race
