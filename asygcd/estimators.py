"""Asy-GCD as a scikit-learn classifier."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning

from asygcd.asygcd_model import AsyGCDModel
from asygcd.options import METHOD, AsyGCDFit, AsyGCDOptions
from asygcd.training import described
from cacore.arrays import usual_errors
from cacore.checks import yes_or_no
from cacore.comm import Communicator
from cacore.data.labels import all_classes
from cacore.data.rows import RowsLike
from cacore.data.validation import shared_seed
from cacore.learn.options import from_estimator
from cacore.machine import memory
from cacore.svm.classifier import KernelClassifier, printer


@dataclass(eq=False, repr=False, kw_only=True)
class AsyGCDSVC(KernelClassifier):
    """Kernel SVM without a bias, by asynchronous greedy coordinate descent on all cores (Algorithm 14).

    Parameters
    ----------
    C : float
        Upper bound of the coefficients.
    kernel : {"gaussian", "laplacian", "matern32", "matern52", "l1", "rational", "linear", "polynomial", "sigmoid"}
        scikit-learn's names "rbf" and "poly" are accepted, too; its "laplacian" is called "l1" here. Without a bias, a
        linear kernel separates the classes by a plane through the origin. Wendland's kernels, which end, are
        "wendland0", "wendland2" and "wendland4", for at most `degree` features, and "wendland0_product",
        "wendland2_product" and "wendland4_product", for any number of features.
    gamma : float or {"scale", "auto"}
        Gaussian exp(-gamma |x-z|^2); laplacian exp(-gamma |x-z|); matern32 (1 + r) exp(-r), r = sqrt(6 gamma) |x-z|;
        matern52 (1 + r + r^2/3) exp(-r), r = sqrt(10 gamma) |x-z|; l1 exp(-gamma |x-z|_1); rational
        (1 + gamma |x-z|^2 / degree)^-degree; polynomial (gamma x.z + coef0)^degree; sigmoid tanh(gamma x.z + coef0).
        "scale" is 1 / (d var(X)), its square root for laplacian, and 1 / (d std(X)) for l1; "auto" is "scale" for a
        variance of 1.
    degree : int
        At least 1 for "rational", whose rounding error grows with `degree`.
    coef0 : float
    tol : float
        Stop when the largest |projected gradient| (eq. 4.11) is at most `tol`, or at most `tol` C if C is below 1.
    class_weight : dict, "balanced" or None
    multi_class : {"ovr", "ovo"}
        With more than two classes: each class against the rest, with a shared kernel cache, or each pair of classes.
    update : {"owned", "atomic", "stochastic"}
        "owned", the fastest: each thread owns a part of the gradient and reads the others' updates from logs.
        "atomic": Algorithm 14 as published, with atomic adds. "stochastic": PSCD, which updates random coordinates and
        keeps no gradient.
    probability : bool or {"sigmoid", "isotonic"}
        Provide `predict_proba`; True means "sigmoid" (Platt scaling). The calibration is fitted to decisions for
        held-out rows of one to five folds, and each fold costs a training on the other rows. With "ovr" and more than
        two classes, the classes' probabilities are divided by their sum; with "ovo", pairs are coupled as in LIBSVM.
    threads : int or None
        Number of threads; None uses all cores available to the process.
    standardize : bool
        Scale features by the training rows' mean and standard deviation. CSR rows are scaled, not shifted.
    cache_gib : float
        Memory for kernel values, divided evenly among the threads.
    max_iter : int
        Largest number of updates of one coordinate per problem of two classes; -1 for no limit.
    max_time : float or None
        Time limit in seconds per problem of two classes.
    warm_start : bool
        Start from the coefficients of the last fit, if it had the same number of rows and the same classes.
    random_state : int, RandomState or None
        Seed of the blocks. Threads run in a different order each time, so results agree within the tolerance, not bit
        for bit.
    verbose : bool
        Print the progress about once per second.
    columns : mapping, file name or None
        What the cells of a table's columns hold, as ``--columns`` says it: `category`, `number`, `drop`, `id`, `gaps`.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    support_ : ndarray, shape (s,)
        Indices of the rows that support at least one decision.
    support_vectors_ : ndarray or CSR, shape (s, d)
        These rows, scaled if `standardize` is set.
    dual_coef_ : ndarray, shape (m, s)
        Coefficients alpha y; m is 1 for two classes, k for "ovr", k (k - 1) / 2 for "ovo".
    intercept_ : ndarray, shape (m,)
        Zeros.
    probA_, probB_ : ndarray, shape (m,)
        Parameters of the sigmoids, for decisions that are positive for the first class of a pair, or for the class
        against the rest.
    objective_, gap_, n_iter_ : ndarray, shape (m,)
        Dual objective, maximised; final violation; number of updates of one coordinate.
    fit_status_ : int
        0 if all problems met the tolerance, 1 otherwise.
    cache_hits_, cache_misses_ : ndarray of int64, shape (T,)
        Number of kernel columns that each thread found in its cache, and that it computed.
    block_sizes_ : ndarray of int64, shape (T,)
        Number of rows of each thread; with "ovo", in the last pair.
    model_ : AsyGCDModel
        `save` writes it, `load` reads it.
    n_features_in_ : int

    Notes
    -----
    About s n nnz multiplications, shared by the threads: s of the n rows ever change their coefficient, and each row
    has nnz nonzeros. See :meth:`asygcd.solver.asygcd.AsyGCD.solve`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from asygcd import AsyGCDSVC
    >>> X, y = make_moons(400, noise=0.2, random_state=0)
    >>> model = AsyGCDSVC(C=10, gamma=1.0).fit(X[:300], y[:300])
    >>> model.score(X[300:], y[300:]) > 0.9
    True
    """

    multi_class: str = "ovr"
    update: str = "owned"
    threads: int | None = None
    standardize: bool = False
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    _model = AsyGCDModel

    def fit(self, X: RowsLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on `X`, shape (n, d), dense or CSR, and labels `y`, shape (n,); neither is changed.

        Rows of weight 0 are ignored. Raises InputError, a ValueError, on invalid input; warns with ConvergenceWarning
        if a limit was reached.
        """
        with usual_errors():
            comm, train = Communicator(), self._labelled(X, y, sample_weight)
            n, used = train.X.shape[0], train.target()[train.row_weights() > 0]
            verbose, again = (yes_or_no(getattr(self, name), f"{name} =") for name in ("verbose", "warm_start"))
            options = replace(
                from_estimator(AsyGCDOptions, self, class_weight=self._class_weight(all_classes(used, comm))),
                seed=shared_seed(self.random_state, comm), memory_limit=memory.limit_per_rank(comm),
                watch=printer(described) if verbose else None, start=self._start(n, used) if again else None,
            )  # fmt: skip
            fitted = METHOD(train, options, comm)
            self._take(fitted, n)
            if fitted.note is not None:
                warnings.warn(fitted.note, ConvergenceWarning, stacklevel=2)
            return self

    def _start(self, n: int, y: NDArray[np.generic]) -> NDArray[np.float64] | None:
        if not (hasattr(self, "model_") and self._n_rows == n):
            return None
        model: AsyGCDModel = self.model_
        if model.multi_class != self.multi_class or not np.array_equal(np.unique(y), model.classes):
            return None
        start = np.zeros((n, model.coef.shape[1]))
        start[model.rows] = model.coef
        return start

    def _take(self, result: AsyGCDFit, n: int) -> None:
        self.model_, self._n_rows = result.model, n
        self.classes_, self.class_weight_ = result.model.classes, result.factors
        self.support_, self.support_vectors_ = result.model.rows, result.model.X
        self.dual_coef_ = np.ascontiguousarray(result.model.coef.T)
        self.intercept_ = np.zeros(len(self.dual_coef_))
        self.objective_ = np.array([-solution.objective for solution in result.solutions])
        self.gap_ = np.array([solution.gap for solution in result.solutions])
        self.n_iter_ = np.array([solution.iterations for solution in result.solutions])
        self.fit_status_ = int(result.note is not None)
        self.block_sizes_ = result.sizes
        counts = np.zeros((2, max(len(solution.hits) for solution in result.solutions)), np.int64)
        for solution in result.solutions:
            counts[:, : len(solution.hits)] += [solution.hits, solution.misses]
        self.cache_hits_, self.cache_misses_ = counts

    def decision_function(self, X: RowsLike) -> NDArray[np.float64]:
        """Decisions for `X`, shape (n, d): shape (n,) for two classes, positive for the second one, else (n, k)."""
        rows = self._rows(X)
        return self.model_.decision_function(rows)

    def _probabilities(self, X: RowsLike) -> NDArray[np.float64]:
        rows = self._rows(X)
        return self.model_.probabilities(rows)

    def predict(self, X: RowsLike) -> NDArray[np.generic]:
        """Labels for `X`, shape (n, d)."""
        rows = self._rows(X)
        return self.model_.predict(rows)
