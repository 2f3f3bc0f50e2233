"""LIBSVM's problems and models as scikit-learn passes them to its C library: plain arrays and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cakernels.dropin.calls import UnsuitedError

if TYPE_CHECKING:
    from cacore.data.rows import Rows
    from cacore.kernels import Kernel


# Names of LIBSVM's problems, in the order of its numbers, and the class of scikit-learn for each.
TYPES = ("c_svc", "nu_svc", "one_class", "epsilon_svr", "nu_svr")
CLASSES = ("SVC", "NuSVC", "OneClassSVM", "SVR", "NuSVR")
KERNELS = {"linear": "linear", "poly": "polynomial", "rbf": "gaussian", "sigmoid": "sigmoid"}

Vector = NDArray[np.float64]


def _none() -> Vector:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class LibsvmShape:
    """The type of the SVM and its kernel.

    Attributes
    ----------
    svm_type : int
        Index into `TYPES`.
    kernel : str
        A key of `KERNELS`, or "precomputed".
    degree : int
    gamma, coef0 : float
    """

    svm_type: int = 0
    kernel: str = "rbf"
    degree: int = 3
    gamma: float = 0.1
    coef0: float = 0.0

    @property
    def classifies(self) -> bool:
        """True for C-SVC and nu-SVC."""
        return self.svm_type < 2

    def evaluated(self) -> Kernel | None:
        """The kernel, which is compiled on first use; None if kernel values are given."""
        from cacore.kernels import Kernel

        if self.kernel == "precomputed":
            return None
        if self.kernel not in KERNELS:
            raise UnsuitedError(f"kernel {self.kernel}")
        return Kernel(KERNELS[self.kernel], float(self.gamma), int(self.degree), float(self.coef0))


@dataclass(frozen=True, kw_only=True)
class LibsvmProblem(LibsvmShape):
    """A problem to train, as LIBSVM's svm_train gets it.

    Attributes
    ----------
    X : ndarray or CSR of float64, shape (n, d)
        Rows, or the kernel matrix, shape (n, n).
    y : ndarray of float64, shape (n,)
        Targets, or classes numbered from 0.
    C, nu, epsilon, tol : float
    class_weight : ndarray, shape (k,)
        Factor of C for each class of C-SVC.
    sample_weight : ndarray, shape (n,) or (0,)
        Rows with a weight of 0 or below are ignored; none given means 1.
    shrinking, probability : int
    cache_size : float
        In MB.
    max_iter : int
        -1 means no limit.
    random_seed : int
        Seed of the folds of `probability`.
    """

    X: Rows
    y: Vector
    C: float = 1.0
    nu: float = 0.5
    epsilon: float = 0.1
    tol: float = 1e-3
    class_weight: Vector = field(default_factory=_none)
    sample_weight: Vector = field(default_factory=_none)
    shrinking: int = 1
    probability: int = 0
    cache_size: float = 100.0
    max_iter: int = -1
    random_seed: int = 0

    def weights(self) -> Vector:
        """Weight of each row, at least 0."""
        if not len(self.sample_weight):
            return np.ones(self.X.shape[0])
        return np.maximum(self.sample_weight, 0.0)


@dataclass(frozen=True, kw_only=True)
class Expansions:
    """Support vectors and coefficients in LIBSVM's layout, for k classes, or k = 2 for regression and one class.

    Attributes
    ----------
    support : ndarray of int32, shape (s,)
    vectors : ndarray or CSR, shape (s, d)
        Empty with a precomputed kernel.
    n_support : ndarray of int32, shape (k,)
        For regression and one class, s twice.
    coef : ndarray, shape (k - 1, s)
    intercept : ndarray, shape (k (k - 1) / 2,)
    slopes, shifts : ndarray, shape (k (k - 1) / 2,) or (0,)
        A and B of the sigmoids.
    """

    support: NDArray[np.int32]
    vectors: Rows
    n_support: NDArray[np.int32]
    coef: Vector
    intercept: Vector
    slopes: Vector
    shifts: Vector


@dataclass(frozen=True, kw_only=True)
class Trained(Expansions):
    """A trained model, as LIBSVM's svm_train returns it.

    Attributes
    ----------
    status : int
        0 if the tolerance was met.
    iterations : ndarray of int32, shape (k (k - 1) / 2,)
    """

    status: int
    iterations: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class LibsvmModel(Expansions, LibsvmShape):
    """A trained model, as LIBSVM's svm_predict gets it."""
