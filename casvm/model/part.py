"""The model of one part: one-vs-one among the classes it holds, in LIBSVM's order.

Where training ends in one model of all rows, it lies in pieces: every rank holds some of its support vectors, and their
decisions add up. No rank need hold all of it, and all ranks share the work of prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows, concatenate, scatter_rows
from cacore.data.stored import in_memory
from cacore.io.layout import Array, Layout
from cacore.kernels import Kernel
from cacore.svm.decision import counted, expansion, shares

# A part's arrays in a model's file: k classes, s support vectors of e features, which is d, or 0 where the kernel is
# precomputed.
PART: Layout = {
    "classes": Array("int64", ("k",), "codes of the part's classes, ascending"),
    "X": Array("real", ("s", "e"), "support vectors, class by class, in standardised features", csr=True),
    "rows": Array("int64", ("s",), "their numbers among all training rows"),
    "coef": Array("float64", ("k - 1", "s"), "coefficients alpha y, laid out as LIBSVM does"),
    "b": Array("float64", ("k (k - 1) / 2",), "of the pairs (0, 1), (0, 2), ..., (1, 2), ..."),
    "n_support": Array("int64", ("k",), "support vectors of each class"),
    "slopes": Array("float64", ("k (k - 1) / 2",), "A of the part's own sigmoids of its pairs", optional=True),
    "shifts": Array("float64", ("k (k - 1) / 2",), "B of them", optional=True),
}


@dataclass
class PartSVM:
    """Support vectors and coefficients of one part.

    Attributes
    ----------
    classes : ndarray of int64, shape (k,)
        Codes of the classes that the part holds, ascending. With one, every row is of that class.
    X : ndarray or CSR, shape (s, d)
        Support vectors, class by class, in the order of the rows. With a precomputed kernel, no columns.
        Or rows in a file, which are read when they are asked for.
    rows : ndarray of int64, shape (s,)
        Their global row numbers.
    coef : ndarray of float64, shape (k - 1, s)
        Coefficients alpha y as LIBSVM lays them out: those of a row of the i-th class in the pair with the
        j-th stand in line j - 1 for i < j, and in line j for i > j.
    b : ndarray of float64, shape (k (k - 1) / 2,)
        Of the pairs (0, 1), (0, 2), ..., (1, 2), ...; a positive decision is for the first.
    n_support : ndarray of int64, shape (k,)
        Support vectors of each class.
    slopes, shifts : ndarray of float64, shape (k (k - 1) / 2,), or None
        A and B of the part's own sigmoids of the pairs, where it has some.
    """

    classes: NDArray[np.int64]
    X: Rows
    rows: NDArray[np.int64]
    coef: NDArray[np.float64]
    b: NDArray[np.float64]
    n_support: NDArray[np.int64]
    slopes: NDArray[np.float64] | None = None
    shifts: NDArray[np.float64] | None = None

    @property
    def codes(self) -> NDArray[np.int64]:
        """The class of each support vector."""
        return self.classes.repeat(self.n_support)

    def fits(self, n_classes: int, d: int | None) -> bool:
        """True if a file's numbers fit together, and to a model of so many classes.

        `d` is the number of training rows where the kernel is precomputed, and None where it is not.
        """
        classes, s = self.classes, len(self.rows)
        return bool(
            len(classes) and 0 <= classes.min() <= classes.max() < n_classes and (classes[1:] > classes[:-1]).all()
            and self.n_support.min() >= 0 and self.n_support.max() <= s and self.n_support.sum() == s
            and (not s or self.rows.min() >= 0) and not (d is not None and s and self.rows.max() >= d)
        )  # fmt: skip

    def pairs(self, X: Rows, kernel: Kernel | None) -> NDArray[np.float64]:
        """Decisions of all pairs, shape (len(X), pairs): 2 len(X) nnz flops, nnz the support vectors' nonzeros.

        `X` has the support vectors' features; or, where `kernel` is None, kernel values with all training rows.
        """
        weights = self.weights()
        if kernel is None:
            return np.asarray(X)[:, self.rows] @ weights + self.b
        return expansion(kernel, in_memory(self.X), weights, X) + self.b

    def scores(self, X: Rows, kernel: Kernel | None, n_classes: int) -> NDArray[np.float64]:
        """Scores of each row by the part alone.

        Returns
        -------
        ndarray, shape (len(X), 1) or (len(X), n_classes)
            Two classes: the decision, positive for the second. More: the votes of the pairs for each class,
            and a third of a vote at most for how clear they were; -1 for a class that the part does not hold.
        """
        n, k = X.shape[0], len(self.classes)
        if n_classes == 2:
            if k == 1:
                return np.full((n, 1), 1.0 if self.classes[0] == 1 else -1.0)
            return -self.pairs(X, kernel)
        out = np.full((n, n_classes), -1.0)
        if k == 1:
            out[:, self.classes[0]] = 0.0
            return out
        out[:, self.classes] = counted(self.pairs(X, kernel), k)
        return out

    def shares(self, X: Rows, kernel: Kernel | None, n_classes: int) -> NDArray[np.float64]:
        """Shares of each row's classes, on one scale for all parts, whichever classes they hold.

        Returns
        -------
        ndarray, shape (len(X), 1) or (len(X), n_classes)
            Two classes: as :meth:`scores`. More: :func:`cacore.svm.decision.shares` of the part's classes, which
            add up to 1; 0 for a class that the part does not hold.
        """
        if n_classes == 2:
            return self.scores(X, kernel, n_classes)
        out, k = np.zeros((X.shape[0], n_classes)), len(self.classes)
        out[:, self.classes] = shares(self.pairs(X, kernel), k) if k > 1 else 1.0
        return out

    def spread(self, n_classes: int) -> NDArray[np.float64]:
        """Coefficients in the layout of all classes, shape (n_classes - 1, s); 0 for pairs that the part lacks."""
        out = np.zeros((n_classes - 1, len(self.rows)))
        codes = self.codes
        for i, code in enumerate(self.classes):
            here = codes == code
            for j, other in enumerate(self.classes):
                if i != j:
                    out[other - (other > code)][here] = self.coef[j - (j > i)][here]
        return out

    def weights(self) -> NDArray[np.float64]:
        """Coefficients of all pairs, shape (s, pairs)."""
        k = len(self.classes)
        stops = np.append(0, np.cumsum(self.n_support))
        weights = np.zeros((len(self.rows), k * (k - 1) // 2))
        for column, (i, j) in enumerate(combinations(range(k), 2)):
            first, second = slice(stops[i], stops[i + 1]), slice(stops[j], stops[j + 1])
            weights[first, column] = self.coef[j - 1, first]
            weights[second, column] = self.coef[i, second]
        return weights


def placed(wanted: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where among `rows`, which are all different, the wanted ones are."""
    order = np.argsort(rows)
    return order[np.searchsorted(rows, wanted, sorter=order)]


def piece(
    X: Rows, codes: NDArray[np.int64], rows: NDArray[np.int64], coef: NDArray[np.float64], b: NDArray[np.float64]
) -> PartSVM:
    """A piece of these support vectors, class by class and in the order of the rows.

    Parameters
    ----------
    X : ndarray or CSR, shape (s, d)
    codes, rows : ndarray of int64, shape (s,)
        Class and global number.
    coef : ndarray, shape (k - 1, s)
        As :attr:`PartSVM.coef`, of all k classes.
    b : ndarray, shape (k (k - 1) / 2,)
        The whole model's in one of its pieces, 0 in the others.
    """
    k = len(coef) + 1
    order = np.lexsort((rows, codes))
    counts = np.bincount(codes, minlength=k).astype(np.int64)
    return PartSVM(np.arange(k), X[order], rows[order], np.ascontiguousarray(coef[:, order]), b, counts)


def deal(whole: PartSVM | None, k: int, root: int, comm: Communicator) -> PartSVM:
    """Every rank's even share of the model that `root` has; collective."""
    if comm.size == 1 and whole is not None:
        return whole
    s = int(comm.bcast(None if whole is None else np.array([len(whole.rows)]), root)[0])
    X = numbers = None
    if whole is not None:
        order = np.argsort(np.arange(s) % comm.size, kind="stable")  # like cards, so that all get some of each class
        X = whole.X[order]
        numbers = np.column_stack([whole.codes, whole.rows, whole.coef.T])[order]
    X, numbers = scatter_rows(X, s, comm, root), scatter_rows(numbers, s, comm, root)
    b = whole.b if whole is not None else np.zeros(k * (k - 1) // 2)
    return piece(X, numbers[:, 0].astype(np.int64), numbers[:, 1].astype(np.int64), numbers[:, 2:].T, b)


def join(pieces: list[PartSVM]) -> PartSVM:
    """The pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    codes = np.concatenate([one.codes for one in pieces])
    rows = np.concatenate([one.rows for one in pieces])
    coef = np.concatenate([one.coef for one in pieces], axis=1)
    return piece(concatenate([one.X for one in pieces]), codes, rows, coef, np.sum([one.b for one in pieces], axis=0))
