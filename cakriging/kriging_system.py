"""The kriging system (rho(X, X) + D) x = b with D diagonal, and its two solvers.

:class:`NearSystem` is sparse and distributed over ranks: conjugate gradients on near points, preconditioned by a sparse
factor of the inverse. :class:`DenseSystem` is factored on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from cacore.errors import InputError
from cacore.io.checkpoint import Kept, Unfinished
from cacore.linalg.cg import State, Vectors, iterate
from cacore.machine import memory
from cakriging.inverse_factor import InverseFactor
from cakriging.near_matrix import ENTRY, Correlation, NearMatrix
from cakriging.space import Field

DENSE = 4096  # points up to which the matrix is dense and factored
_CHECKED = 8  # right-hand sides of a dense system whose residuals are computed
_ACCURATE = 1e-6  # largest relative residual of a dense system, unless a larger tolerance is given
_PASSES = 6  # most runs of conjugate gradients, each from the recomputed residual of the last


class KrigingSystem(Protocol):
    """A solver of the kriging system for this rank's points."""

    field: Field

    def solve(self, B: Vectors, tol: float, checkpoint: Unfinished | None = None) -> tuple[Vectors, float]:
        """Solutions for right-hand sides `B`, shape (t, n_owned), and the largest relative residual; collective.

        `checkpoint` saves states of the iteration; a later call continues from there, with the same bits.

        Raises
        ------
        InputError
            On all ranks: the residual is too large.
        """
        ...

    def facts(self) -> dict[str, object]:
        """Entries of the report; collective."""
        ...


class NearSystem:
    """The sparse system, solved by preconditioned conjugate gradients; construction is collective.

    Parameters
    ----------
    field : Field
    noise : ndarray, shape (points,)
        Diagonal of D, for own and borrowed points, in units of the sill.
    correlation : Correlation
    neighbours : int
        Most neighbours of a point in the preconditioner.
    limit : int
        Bytes that a rank may use.

    Attributes
    ----------
    iterations : int
        Iterations so far.
    fetched, returned : ndarray of int64, shape (2,)
        Number of vectors exchanged so far, and number of exchanges, each of several vectors: entries fetched from other
        ranks, and contributions returned to them.
    matrix : NearMatrix
    factor : InverseFactor

    Notes
    -----
    An iteration exchanges the halo's entries of each vector three times: for the product with K, for G, and back for
    G'. Two Allreduces, of 2 t + 1 and 2 t numbers, add up inner products. :meth:`predicted` gives the bytes.
    """

    def __init__(
        self, field: Field, noise: NDArray[np.float64], correlation: Correlation, neighbours: int, limit: int
    ) -> None:
        self.field, self.noise, self.correlation = field, noise[: field.n_owned], correlation
        self.neighbours, self.iterations = neighbours, 0
        self.fetched, self.returned = np.zeros(2, np.int64), np.zeros(2, np.int64)
        points, cubes = field.points, field.cubes()
        self._check(limit)
        room = limit // 2 - (ENTRY + 16) * (neighbours + 1) * field.n_owned
        self.matrix = NearMatrix(points.X[: field.n_owned], cubes, correlation, max(0, room), field.inner)
        self.factor = InverseFactor(
            points.X, field.n_owned, noise, points.place, cubes, correlation, neighbours, field.inner
        )  # fmt: skip

    def _check(self, limit: int) -> None:
        """Raise a MemoryLimitError if the factor does not fit; the matrix of pairs need not be stored."""
        n, m = self.field.n_owned, self.neighbours
        need = n * (ENTRY * (m + 1) + 8 * 24) + 16 * len(self.field.points)
        with self.field.comm.agreed():
            memory.require(need, limit, f"the preconditioner of {n:,} points", "use fewer --neighbors, or more ranks")

    def product(self, V: Vectors, which: NDArray[np.int64] | None = None) -> Vectors:
        """See :meth:`cacore.linalg.cg.LinearSystem.product`."""
        out = self._rows_of(self.matrix.product, V)
        out += V * self.noise
        return out

    def _rows_of(self, multiply: Callable[..., None], V: Vectors) -> Vectors:
        """Rows of `multiply` for own points; those of inner points are computed while the halo travels. Collective."""
        field, out = self.field, np.empty_like(V)
        arriving = field.halo.begin(V)
        multiply(arriving.every, out, 0, field.inner)
        multiply(arriving.wait(), out, field.inner, field.n_owned)
        self.fetched += (len(V), 1)
        return out

    def precondition(
        self, R: Vectors, which: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> tuple[Vectors, NDArray[np.float64]]:
        """See :meth:`cacore.linalg.cg.LinearSystem.precondition`: ``G' G r``."""
        return self.upper(self.lower(R)), self.add_up(sums)

    def lower(self, V: Vectors) -> Vectors:
        """``G v`` for each row v of `V`, shape (t, n_owned); collective."""
        return self._rows_of(self.factor.apply, V)

    def upper(self, U: Vectors) -> Vectors:
        """``G' u`` for each row u of `U`, shape (t, n_owned); collective, overlapped like :meth:`lower`."""
        field, total = self.field, np.zeros((len(self.field.points), len(U)))
        self.factor.add_transposed(U, total, field.inner, field.n_owned)
        returning = field.halo.begin_home(total[field.n_owned :])
        self.factor.add_transposed(U, total[: field.n_owned], 0, field.inner)
        returning.add(total[: field.n_owned])
        self.returned += (len(U), 1)
        return np.ascontiguousarray(total[: field.n_owned].T)

    def add_up(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """See :meth:`cacore.linalg.cg.LinearSystem.add_up`."""
        return self.field.comm.allreduce(sums)

    def solve(self, B: Vectors, tol: float, checkpoint: Unfinished | None = None) -> tuple[Vectors, float]:
        """See :meth:`KrigingSystem.solve`."""
        size = np.sqrt(self.add_up(np.einsum("ij,ij->i", B, B)))
        target = tol * np.where(size > 0, size, 1.0)
        X, R, first, saved = np.zeros_like(B), B.copy(), 0, None
        if checkpoint is not None and (stored := checkpoint.get()) is not None:
            X, first, self.iterations = stored.pop("X"), int(stored.pop("turn")), int(stored.pop("before"))
            saved = State(**{name: stored[name] for name in vars(State.first(R))})
        for turn in range(first, _PASSES):
            state, saved = State.first(R) if saved is None else saved, None
            about = {"X": X, "turn": np.array(turn), "before": np.array(self.iterations)}

            def keep(state: State, about: Kept = about) -> None:
                if checkpoint is not None:
                    checkpoint.put_if_due(**about, **state.arrays())

            iterate(self, state, lambda state, _, late: state.residual[state.which] <= target[state.which], keep=keep)
            self.iterations += int(state.iterations.max(initial=0))
            X += state.x
            R = B - self.product(X)
            norms = np.sqrt(self.add_up(np.einsum("ij,ij->i", R, R)))
            if (norms <= target).all():
                break
        worst = float((norms / np.where(size > 0, size, 1.0)).max())
        if not worst <= tol:
            with self.field.comm.agreed():
                raise InputError(
                    f"conjugate gradients reached a relative residual of {worst:.1e}, above {tol:g}: the system is "
                    "nearly singular; use a larger --nugget, more --neighbors, or a larger --tol"
                )
        return X, worst

    def predicted(self) -> NDArray[np.int64]:
        """Predicted bytes and messages that this rank has sent in products and preconditioners, shape (2,)."""
        lent, borrowed = self.field.halo.counts
        (out, outs), (home, homes) = self.fetched.tolist(), self.returned.tolist()
        return np.array([
            8 * (out * int(lent.sum()) + home * int(borrowed.sum())),
            outs * np.count_nonzero(lent) + homes * np.count_nonzero(borrowed),
        ])  # fmt: skip

    def facts(self) -> dict[str, object]:
        """Entries of the report; collective."""
        field, factor = self.field, self.factor
        lent = field.halo.counts[0]
        neighbours = np.count_nonzero(lent)
        mine = [
            self.matrix.nnz,
            factor.nnz,
            field.n_owned,
            lent.sum(),
            neighbours,
            self.matrix.nbytes + ENTRY * factor.nnz,
        ]
        with field.comm.uncounted():
            sums = field.comm.allreduce(np.array([*mine, *self.predicted()], np.int64)).tolist()
        nnz, entries, n, halo, pairs, nbytes, sent, messages = sums
        return {
            "solver": "cg", "iterations": [self.iterations], "pairs": nnz, "pairs_per_point": nnz / n,
            "pairs_kept": self.matrix.stored, "neighbors": entries / n - 1.0, "halo": halo, "bytes": nbytes,
            "halo_bytes_per_iteration": 24 * halo, "halo_messages_per_iteration": 3 * pairs,
            "predicted_bytes": sent, "predicted_messages": messages,
        }  # fmt: skip


class DenseSystem:
    """The dense system of few points, factored on every rank; construction is collective.

    Notes
    -----
    n^3/3 flops and 16 n^2 bytes on every rank; a solution gathers n numbers per right-hand side. The residual is that
    of the first 8 right-hand sides.
    """

    def __init__(self, field: Field, noise: NDArray[np.float64], correlation: Correlation) -> None:
        self.field, comm = field, field.comm
        points = field.owned
        all_points = comm.allgather(np.column_stack([points.X, noise[: field.n_owned], points.place]))
        self._order = np.argsort(all_points[:, -1], kind="stable")
        all_points = all_points[self._order]
        counts = comm.allgather(np.array([field.n_owned], np.int64))
        self._mine = slice(int(counts[: comm.rank].sum()), int(counts[: comm.rank + 1].sum()))
        self.X, self.noise = np.ascontiguousarray(all_points[:, :-2]), all_points[:, -2]
        self._K = correlation.matrix(self.X, self.X)
        self._K[np.diag_indices(len(self._K))] = 1.0 + self.noise
        with comm.agreed():
            try:
                self._factor = cho_factor(self._K, lower=True, check_finite=False)
            except LinAlgError:
                raise InputError(
                    "the covariance matrix is singular in double precision: give a --nugget above 0, or a smaller range"
                ) from None

    def solve(self, B: Vectors, tol: float, checkpoint: Unfinished | None = None) -> tuple[Vectors, float]:
        """See :meth:`KrigingSystem.solve`; there is no state to save."""
        all_B = self.field.comm.allgather(np.ascontiguousarray(B.T))[self._order]
        X = cho_solve(self._factor, all_B, check_finite=False)
        B_checked, X_checked = all_B[:, :_CHECKED], X[:, :_CHECKED]  # a product with K costs as much as a solution
        size = np.linalg.norm(B_checked, axis=0)
        worst = float(
            (np.linalg.norm(B_checked - self._K @ X_checked, axis=0) / np.where(size > 0, size, 1.0)).max(initial=0.0)
        )
        with self.field.comm.agreed():
            if not worst <= max(tol, _ACCURATE):
                raise InputError(
                    f"the covariance matrix is nearly singular: its solution has a relative residual of {worst:.1e}, "
                    f"above {max(tol, _ACCURATE):g}; give a --nugget above 0, a smaller range, or a larger --tol"
                )
        home = np.empty_like(X)
        home[self._order] = X
        return np.ascontiguousarray(home[self._mine].T), worst

    def facts(self) -> dict[str, object]:
        """Entries of the report."""
        return {"solver": "cholesky", "iterations": [0], "pairs": len(self.X) ** 2, "bytes": self._K.nbytes}
