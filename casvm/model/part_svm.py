"""The model of one part: one-vs-one among the part's classes, in LIBSVM's order.

If training ends in one model of all rows, the model is stored in pieces: every rank holds some of the support vectors,
and the decisions of the pieces add up. So no rank needs to hold the whole model, and all ranks share prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows, concatenate, dense, in_memory, scatter_rows
from cacore.io.model_file import Array, Layout
from cacore.kernels import Kernel
from cacore.svm.decision import counted, decisions_of_pairs, expansion, shares

# A part's arrays in a model file: k classes, s support vectors, e features, where e is d, or 0 with a precomputed
# kernel.
PART: Layout = {
    "classes": Array("int64", ("k",), "codes of the part's classes, ascending"),
    "X": Array("real", ("s", "e"), "support vectors, class by class, in standardised features", csr=True),
    "rows": Array("int64", ("s",), "row numbers of the support vectors among all training rows"),
    "coef": Array("float64", ("k - 1", "s"), "coefficients alpha y, in LIBSVM's layout"),
    "b": Array("float64", ("k (k - 1) / 2",), "intercepts of the pairs (0, 1), (0, 2), ..., (1, 2), ..."),
    "n_support": Array("int64", ("k",), "number of support vectors of each class"),
    "slopes": Array("float64", ("k (k - 1) / 2",), "A of the part's own sigmoids, one per pair", optional=True),
    "shifts": Array("float64", ("k (k - 1) / 2",), "B of these sigmoids", optional=True),
}


@dataclass
class PartSVM:
    """Support vectors and coefficients of one part.

    Attributes
    ----------
    classes : ndarray of int64, shape (k,)
        Codes of the part's classes, ascending. With a single class, every row is predicted as that class.
    X : ndarray or CSR, shape (s, d)
        Support vectors, class by class, in row order; may be stored in a file and read on demand. With a precomputed
        kernel, X has no columns.
    rows : ndarray of int64, shape (s,)
        Global row numbers of the support vectors.
    coef : ndarray of float64, shape (k - 1, s)
        Coefficients alpha y in LIBSVM's layout: for a support vector of class i, the coefficient in the pair with
        class j is in row j - 1 if i < j, and in row j if i > j.
    b : ndarray of float64, shape (k (k - 1) / 2,)
        Intercepts of the pairs (0, 1), (0, 2), ..., (1, 2), ...; a positive decision means the first class.
    n_support : ndarray of int64, shape (k,)
        Number of support vectors of each class.
    slopes, shifts : ndarray of float64, shape (k (k - 1) / 2,), or None
        A and B of the part's own sigmoids, one per pair, if it has any.
    """

    classes: NDArray[np.int64]
    X: AnyRows
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
        """True if arrays read from a file are consistent with each other and with a model of `n_classes`.

        `d` is the number of training rows if the kernel is precomputed, and otherwise None.
        """
        classes, s = self.classes, len(self.rows)
        return bool(
            len(classes) and 0 <= classes.min() <= classes.max() < n_classes and (classes[1:] > classes[:-1]).all()
            and self.n_support.min() >= 0 and self.n_support.max() <= s and self.n_support.sum() == s
            and (not s or self.rows.min() >= 0) and not (d is not None and s and self.rows.max() >= d)
        )  # fmt: skip

    def pairs(self, X: Rows, kernel: Kernel | None) -> NDArray[np.float64]:
        """Decisions of all pairs, shape (len(X), pairs); for the cost see :meth:`_of_decisions`.

        If `kernel` is None, `X` holds kernel values with all training rows, and otherwise features.
        """
        return self._of_decisions(X, kernel, lambda decisions: decisions, len(self.b))

    def _of_decisions(
        self,
        X: Rows,
        kernel: Kernel | None,
        of_decisions: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        columns: int,
    ) -> NDArray[np.float64]:
        """Result of `of_decisions`, shape (len(X), columns), for the decisions of all pairs.

        2 len(X) nnz flops, nnz the support vectors' nonzeros, and 2 len(X) s (k - 1) for s support vectors.
        """
        if len(self.classes) == 2 and kernel is not None:
            return of_decisions(expansion(kernel, in_memory(self.X), self.weights(), X, bool(self.b.all())) + self.b)
        A = self.rows if kernel is None else in_memory(self.X)
        return decisions_of_pairs(kernel, A, self.coef, self.b, self.n_support, X, of_decisions, columns)

    def scores(self, X: Rows, kernel: Kernel | None, n_classes: int) -> NDArray[np.float64]:
        """Scores of each row by this part's model alone.

        Returns
        -------
        ndarray, shape (len(X), 1) or (len(X), n_classes)
            With two classes: the decision, positive for the second. With more: the pairs' votes for each class, plus at
            most a third of a vote for the size of the decisions; -1 for a class that the part lacks.
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
        out[:, self.classes] = self._of_decisions(X, kernel, lambda decisions: counted(decisions, k), k)
        return out

    def shares(self, X: Rows, kernel: Kernel | None, n_classes: int) -> NDArray[np.float64]:
        """Shares of the classes for each row, comparable between parts with different classes.

        Returns
        -------
        ndarray, shape (len(X), 1) or (len(X), n_classes)
            With two classes: as :meth:`scores`. With more: :func:`cacore.svm.decision.shares` of the part's classes,
            which add up to 1; 0 for a class that the part lacks.
        """
        if n_classes == 2:
            return self.scores(X, kernel, n_classes)
        out, k = np.zeros((X.shape[0], n_classes)), len(self.classes)
        out[:, self.classes] = self._of_decisions(X, kernel, lambda d: shares(d, k), k) if k > 1 else 1.0
        return out

    def spread(self, n_classes: int) -> NDArray[np.float64]:
        """Coefficients in the layout of all classes, shape (n_classes - 1, s); 0 for pairs that the part lacks."""
        if len(self.classes) == n_classes:
            return self.coef
        out = np.zeros((n_classes - 1, len(self.rows)))
        codes = self.codes
        for i, code in enumerate(self.classes):
            here = codes == code
            for j, second in enumerate(self.classes):
                if i != j:
                    out[second - (second > code)][here] = self.coef[j - (j > i)][here]
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
    """Positions of the wanted row numbers in `rows`, which are all different."""
    order = np.argsort(rows)
    return order[np.searchsorted(rows, wanted, sorter=order)]


def piece(
    X: Rows, codes: NDArray[np.int64], rows: NDArray[np.int64], coef: NDArray[np.float64], b: NDArray[np.float64]
) -> PartSVM:
    """A piece of a model with these support vectors, sorted by class and row.

    Parameters
    ----------
    X : ndarray or CSR, shape (s, d)
    codes, rows : ndarray of int64, shape (s,)
        Class and global number of each row.
    coef : ndarray, shape (k - 1, s)
        As :attr:`PartSVM.coef`, for all k classes.
    b : ndarray, shape (k (k - 1) / 2,)
        The model's intercepts in one of its pieces, 0 in the others.
    """
    k = len(coef) + 1
    order = np.lexsort((rows, codes))
    counts = np.bincount(codes, minlength=k).astype(np.int64)
    return PartSVM(np.arange(k), X[order], rows[order], np.ascontiguousarray(coef[:, order]), b, counts)


def deal(whole: PartSVM | None, k: int, root: int, comm: Communicator) -> PartSVM:
    """Distribute a model from `root`: each rank's piece, with about the same number of support vectors; collective."""
    if comm.size == 1 and whole is not None:
        return whole
    s = int(comm.bcast(None if whole is None else np.array([len(whole.rows)]), root)[0])
    X: Rows | None = None
    numbers: NDArray[np.float64] | None = None
    if whole is not None:
        order = np.argsort(np.arange(s) % comm.size, kind="stable")  # deal rows of each class to all ranks
        X = whole.X[order]
        numbers = np.column_stack([whole.codes, whole.rows, whole.coef.T])[order]
    rows, table = scatter_rows(X, s, comm, root), dense(scatter_rows(numbers, s, comm, root))
    b = whole.b if whole is not None else np.zeros(k * (k - 1) // 2)
    return piece(rows, table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2:].T, b)


def join(pieces: list[PartSVM]) -> PartSVM:
    """The pieces merged into one."""
    if len(pieces) == 1:
        return pieces[0]
    codes = np.concatenate([part.codes for part in pieces])
    rows = np.concatenate([part.rows for part in pieces])
    coef = np.concatenate([part.coef for part in pieces], axis=1)
    return piece(
        concatenate([part.X for part in pieces]), codes, rows, coef, np.sum([part.b for part in pieces], axis=0)
    )
