"""Observations that are linear in a function f(x) = sum_j c_j k(x, z_j): values, sums of values, gradients.

Each observation knows its rows of the least-squares problem for the coefficients c: kernel values, sums of them over
groups, or derivatives by the inputs. Blocks of observations are the `rows` of :class:`cakrr.SubsetKRR`::

    def rows(share, shares):
        for cluster in clusters[share::shares]:
            yield observe.sums(cluster.features, np.zeros(len(cluster), int)), cluster.energy, 1.0
            slopes = observe.gradients(cluster.features, along=cluster.derivatives, groups=cluster.moved)
            yield slopes, -cluster.forces, 0.1
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cacore.data.rows import Rows, RowsLike, dense, is_sparse
from cacore.errors import InputError
from cacore.kernels import Kernel, Points
from cacore.kernels.gradients import slope
from cacore.kernels.registry import GIVEN, L1, SQUARED

_NEAR = 1e-12  # squared distance, in units of the kernel's width, at which a smooth kernel has its slope of distance 0


class Observation(ABC):
    """One or several numbers that are linear in f."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of numbers, the rows of the problem."""

    @abstractmethod
    def rows(self, kernel: Kernel, centers: Rows) -> NDArray[np.float64]:
        """Rows of the problem, shape (len(self), M), for the coefficients of these centres."""


@dataclass(frozen=True)
class _Values(Observation):
    X: Rows

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def rows(self, kernel: Kernel, centers: Rows) -> NDArray[np.float64]:
        right = kernel.points(centers)
        out = np.empty((len(self), len(right)))
        kernel.fill(kernel.points(self.X, like=right), right, out)
        return out


@dataclass(frozen=True)
class _Sums(Observation):
    of: Observation
    groups: NDArray[np.int64]
    count: int

    def __len__(self) -> int:
        return self.count

    def rows(self, kernel: Kernel, centers: Rows) -> NDArray[np.float64]:
        out = np.zeros((self.count, centers.shape[0]))
        np.add.at(out, self.groups, self.of.rows(kernel, centers))
        return out


@dataclass(frozen=True)
class _Gradients(Observation):
    X: NDArray[np.float64]
    along: NDArray[np.float64] | None

    def __len__(self) -> int:
        n, d = self.X.shape
        return int(n * (d if self.along is None else self.along.shape[1]))

    def rows(self, kernel: Kernel, centers: Rows) -> NDArray[np.float64]:
        require_smooth(kernel)
        d, Z = self.X.shape[1], dense(centers).astype(np.float64)
        shift = Z.mean(axis=0) if kernel.shifts else np.zeros(d)
        at, places = self.X - shift, Z - shift
        new_points, center_points = Points(at), Points(places)
        if kernel.separable:
            return self._of_factors(kernel, new_points, center_points)
        slopes = np.asarray(kernel.derivative(kernel.arguments(new_points, center_points)), np.float64)
        if self.along is None:  # along every feature: d k / d x_i
            steps = places.T[None] if kernel.declared.of != SQUARED else at[:, :, None] - places.T
        else:
            steps = self.along @ places.T
            if kernel.declared.of == SQUARED:
                steps = np.einsum("nkd,nd->nk", self.along, at)[:, :, None] - steps
        factor = 2.0 if kernel.declared.of == SQUARED else 1.0
        return np.asarray(factor * slopes[:, None] * steps).reshape(len(self), len(Z))

    def _of_factors(self, kernel: Kernel, new_points: Points, center_points: Points) -> NDArray[np.float64]:
        """:meth:`rows` of a product over the features."""
        values = kernel.arguments(new_points, center_points)
        columns = zip(dense(new_points.X).T, dense(center_points.X).T, strict=True)
        steps = np.stack([values * slope(kernel, x, z) for x, z in columns], axis=1)
        if self.along is not None:
            steps = self.along @ steps
        return steps.reshape(len(self), len(center_points))


def require_smooth(kernel: Kernel) -> None:
    """Raise an InputError if the kernel has no gradient everywhere: it has a tip (`laplacian`, `l1`), or a callable."""
    declared, name = kernel.declared, kernel.kind
    if declared is GIVEN:
        raise InputError("observe.gradients: a callable kernel has no derivative; name a kernel")
    rough = declared.of == L1 or (declared.separable and float(kernel.derivative(np.zeros(1))[0]) != 0.0)
    if declared.of == SQUARED:
        at, near = (float(np.asarray(kernel.derivative(np.array([t])))[0]) for t in (0.0, _NEAR / kernel.gamma))
        rough = abs(near - at) > 1e-3 * max(abs(near), abs(at))
    if rough:
        raise InputError(
            f"observe.gradients: the {name} kernel has no gradient where rows meet; use gaussian, matern52, matern32 "
            "or rational"
        )


def values(X: RowsLike) -> Observation:
    """Values f(x) at the rows of `X`, shape (n, d), dense or CSR: n numbers, n M kernel values.

    Examples
    --------
    >>> import numpy as np
    >>> from cakrr import SubsetKRR, observe
    >>> x = np.linspace(0, 6, 40)[:, None]
    >>> rows = iter([(observe.values(x), np.sin(x[:, 0]))])
    >>> model = SubsetKRR(centers=x[::4], sigma=1.0, lam=1e-10, select="gcv", standardize=False, rows=rows).fit()
    >>> bool(abs(model.predict([[1.0]])[0] - np.sin(1.0)) < 1e-2)
    True
    """
    return _Values(_checked(X))


def sums(X: RowsLike, groups: ArrayLike) -> Observation:
    """Sums of f over groups of the rows of `X`, shape (n, d), such as energies as sums over atoms.

    `groups`, shape (n,), has the number of each row's group, from 0. There are max(groups) + 1 numbers; n M kernel
    values.

    Examples
    --------
    >>> import numpy as np
    >>> from cakrr import observe
    >>> atoms = np.random.default_rng(0).normal(size=(5, 3))
    >>> energies = observe.sums(atoms, groups=[0, 0, 1, 1, 1])  # two molecules, of two and of three atoms
    >>> len(energies)
    2
    """
    return _grouped(values(X), groups)


def gradients(X: RowsLike, along: ArrayLike | None = None, groups: ArrayLike | None = None) -> Observation:
    """Derivatives of f by the inputs, at the rows of `X`, shape (n, d).

    Parameters
    ----------
    X : array-like, shape (n, d)
    along : array-like, shape (n, k, d), optional
        k directions for every row: the numbers are grad f(x_i) . along[i, j], n k of them, row after row. Without it,
        the d partial derivatives of every row.
    groups : array-like of int, shape (n, k) or (n, d), optional
        Number of the group, from 0, to which each of these belongs; the numbers are then sums over groups. With
        along[i, j] = d x_i / d r_g, and group g, they are derivatives of sum_i f(x_i) by the coordinate r_g.

    Raises
    ------
    InputError
        Shapes do not match. When rows are computed: the kernel has no gradient everywhere (:func:`require_smooth`).

    Notes
    -----
    n M derivatives of the kernel, and 2 n k M d flops; 8 n k M bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from cakrr import SubsetKRR, observe
    >>> x = np.linspace(0, 6, 40)[:, None]
    >>> rows = iter([(observe.values(x[:1]), np.zeros(1)), (observe.gradients(x), np.cos(x[:, 0]))])
    >>> model = SubsetKRR(centers=x[::4], sigma=1.0, lam=1e-10, select="gcv", standardize=False, rows=rows).fit()
    >>> bool(abs(model.predict([[1.0]])[0] - np.sin(1.0)) < 0.05)  # from one value and slopes
    True
    """
    X = np.asarray(dense(_checked(X)), np.float64)
    n, d = X.shape
    directions = None if along is None else np.asarray(along, np.float64)
    if directions is not None and (directions.ndim != 3 or directions.shape[::2] != (n, d)):
        raise InputError(f"observe.gradients: along has shape {directions.shape}; ({n}, k, {d}) is needed")
    observation = _Gradients(X, directions)
    return observation if groups is None else _grouped(observation, groups)


def _grouped(of: Observation, groups: ArrayLike) -> Observation:
    numbers = np.asarray(groups).ravel()
    if len(numbers) != len(of) or (len(numbers) and (numbers.dtype.kind not in "iu" or numbers.min() < 0)):
        raise InputError(
            f"observe: groups has {len(numbers)} entries of type {numbers.dtype}; {len(of)} whole numbers from 0 are "
            "needed"
        )
    return _Sums(of, numbers.astype(np.int64), int(numbers.max(initial=-1)) + 1)


def _checked(X: RowsLike) -> Rows:
    rows = X.tocsr() if hasattr(X, "tocsr") else np.asarray(X)
    if rows.ndim != 2:
        raise InputError(f"observe: X has shape {rows.shape}; (rows, features) is needed")
    if not is_sparse(rows) and rows.dtype.kind not in "fiub":
        raise InputError(f"observe: X has type {rows.dtype}; numbers are needed")
    return rows.astype(np.float64)
