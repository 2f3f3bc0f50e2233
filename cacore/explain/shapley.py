"""Shapley values of kernel expansions, exactly, for kernels that are a product over the features.

Let k_ij(z) be the j-th factor of the kernel of row z with support vector i. The game of a row x and a baseline b lets a
feature j of a coalition have the factor k_ij(x), and any other the factor k_ij(b). The Shapley value of feature j is

    phi_j = sum_i alpha_i (k_ij(x) - k_ij(b)) integral_0^1 prod_{l != j} ((1 - t) k_il(b) + t k_il(x)) dt,

the multilinear extension of the game along its diagonal (Owen, Multilinear extensions of games, 1972). The integrand is
a polynomial of degree d - 1, for which Gauss and Legendre's rule with ceil(d / 2) nodes is exact. Products without one
feature come from products of those before it and of those after it, since a factor may be 0.

The Shapley interaction index of two features (Grabisch and Roubens, 1999) is the mean of the mixed second difference,

    I_jk = sum_i alpha_i (k_ij(x) - k_ij(b)) (k_ik(x) - k_ik(b)) integral_0^1 prod_{l != j, k} (...) dt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from cacore.arrays import Doubles, Longs
from cacore.data.rows import AnyRows, dense, in_memory
from cacore.errors import InputError
from cacore.kernels import Kernel
from cacore.kernels.evaluate import Parameters, multiply
from cacore.kernels.registry import KINDS
from cacore.machine import threads
from cacore.svm.decision import Expansion

_EXACT = 16  # nodes up to which the exact rule is used without asking for fewer
_AGREE = 1e-13  # largest difference between two rules, relative to the largest value, with which the first one serves
_ADD_UP = 1e-12  # largest difference of a row's sum of values from what it must be, relative to the largest value
_LANES = 4096  # support vectors of a block times players: a block's arrays stay in cache
_BASELINES = 1 << 22  # bytes of the baselines' factors of a block


@dataclass(frozen=True)
class Game:
    """Baselines and players.

    Attributes
    ----------
    baselines : ndarray, shape (b, d), or None
        Standardised rows, over which the values are averaged. None: a feature that is absent has the factor 1.
    player : ndarray of int64, shape (d,)
        Player of each feature, from 0 to g - 1. Features of one player enter a coalition together.
    interactions : bool
        True if the interactions of pairs of players are asked for.
    """

    baselines: NDArray[np.float64] | None
    player: NDArray[np.int64]
    interactions: bool = False

    @property
    def players(self) -> int:
        """Number of players, g."""
        return int(self.player.max(initial=-1)) + 1

    @property
    def pairs(self) -> int:
        """Number of pairs of players whose interactions are asked for."""
        return self.players * (self.players - 1) // 2 if self.interactions else 0

    def base(self, f: Expansion) -> NDArray[np.float64]:
        """Value of the empty coalition, shape (q,): the mean of f over the baselines."""
        if self.baselines is None:
            return np.asarray(f.weights.sum(axis=0) + f.b)
        return np.asarray(f.at(self.baselines).mean(axis=0))


def require_factors(kernel: Kernel | None) -> None:
    """Raise an InputError if the kernel is no product over the features."""
    if kernel is None or kernel.declared.factor is None:
        name = "given" if kernel is None else kernel.kind
        products = ", ".join(kind.name for kind in KINDS.values() if kind.factor)
        raise InputError(
            f"Shapley values in closed form need a kernel that is a product over the features ({products}), and the "
            f"kernel is {name}: use sklearn.inspection.permutation_importance, or shap's samplers"
        )


def values(f: Expansion, Z: AnyRows, game: Game) -> NDArray[np.float64]:
    """Shapley values of the players for each row.

    Parameters
    ----------
    f : Expansion
    Z : ndarray or CSR, shape (n, d)
        Standardised rows.
    game : Game

    Returns
    -------
    ndarray of float64, shape (n, g, q)
        In each row and column of the weights, their sum is the value of f less that of the empty coalition.

    Raises
    ------
    InputError
        The kernel is no product over the features.

    Notes
    -----
    About 3 n b m g^2 flops for b baselines and m support vectors, on all threads, and n g q numbers. Beyond 64 players,
    fewer nodes are used if on a few rows half as many change nothing. A row whose values do not add up to its value of
    f then has more nodes, up to those of the exact rule.
    """
    return _values(f, Z, game)[0]


def interactions(f: Expansion, Z: AnyRows, game: Game) -> NDArray[np.float64]:
    """Interaction indices of the pairs (0, 1), (0, 2), ..., (1, 2), ... of players for each row; see :func:`values`.

    Shape (n, g (g - 1) / 2, q); about g / 4 times the flops of :func:`values`.
    """
    require_factors(f.kernel)
    nodes = _values(f, Z, game)[1] if game.players > 2 * _EXACT else np.full(Z.shape[0], _exact(game))
    out = np.zeros((Z.shape[0], game.pairs, f.weights.shape[1]))
    for count in np.unique(nodes):
        rows = np.flatnonzero(nodes == count)
        out[rows] = _on_all_threads(f, Z[rows], game, int(count), game.pairs, True)
    return out


def _values(f: Expansion, Z: AnyRows, game: Game) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Values of the players for each row, and the number of nodes with which they add up."""
    require_factors(f.kernel)
    out, used = np.zeros((Z.shape[0], game.players, f.weights.shape[1])), np.zeros(Z.shape[0], np.int64)
    rows, enough = np.arange(Z.shape[0]), _exact(game)
    nodes = _nodes(f, Z, game) if out.size and len(f.weights) else enough
    while len(rows):
        Z_remaining = Z if len(rows) == len(out) else Z[rows]
        out[rows], used[rows] = _on_all_threads(f, Z_remaining, game, nodes, game.players, False), nodes
        if nodes >= enough:
            break
        off = np.abs(out[rows].sum(axis=1) - (f.at(in_memory(Z_remaining)) - game.base(f)))
        rounding = 64 * np.finfo(np.float64).eps * np.abs(f.weights).sum(axis=0)
        rows = rows[(off > np.maximum(_ADD_UP * np.abs(out[rows]).max(axis=1), rounding)).any(axis=1)]
        nodes = min(2 * nodes, enough)
    return out, used


def _on_all_threads(f: Expansion, Z: AnyRows, game: Game, nodes: int, width: int, pairs: bool) -> NDArray[np.float64]:
    """Values, or those of `pairs`, by a rule of so many nodes, shape (n, width, q)."""
    out = np.zeros((Z.shape[0], width, f.weights.shape[1]))
    if out.size and len(f.weights):
        cut = threads.blocks(len(out), -(-len(out) // threads.current()))
        threads.for_blocks(lambda lo, hi: _block(f, Z[lo:hi], game, nodes, out[lo:hi], pairs), cut)
    return out


def warm_up() -> None:
    """Compile the code of this module."""
    f = Expansion(np.zeros((1, 1)), np.ones((1, 1)), np.zeros(1), Kernel())
    values(f, np.ones((1, 1)), Game(np.zeros((1, 1)), np.zeros(1, np.int64)))


def _exact(game: Game) -> int:
    """Number of nodes of the exact rule."""
    return -(-game.players // 2)


def _nodes(f: Expansion, Z: AnyRows, game: Game) -> int:
    """Number of nodes: enough to be exact, or so many that half of them make no difference on a few rows."""
    enough = _exact(game)
    few = Game(None if game.baselines is None else game.baselines[:2], game.player)
    rows = Z[:: max(1, Z.shape[0] // 3)]
    nodes, before = _EXACT, None
    while nodes < enough:
        values = np.zeros((rows.shape[0], game.players, f.weights.shape[1]))
        _block(f, rows, few, nodes, values, False)
        if before is not None and (_largest(values - before) <= _AGREE * _largest(values)).all():
            return nodes
        nodes, before = 2 * nodes, values
    return enough


def _largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest magnitude of each output."""
    return np.asarray(np.abs(values).max(axis=(0, 1)))


def _block(f: Expansion, Z: AnyRows, game: Game, nodes: int, out: NDArray[np.float64], pairs: bool) -> None:
    """Write the values of some rows, or those of `pairs`, to `out`."""
    assert f.kernel is not None
    X, points = in_memory(f.X), np.ascontiguousarray(dense(Z), np.float64)
    places, shares = np.polynomial.legendre.leggauss(nodes)
    g, factor = game.players, f.kernel.factor(np.dtype(np.float64))
    lanes = int(np.clip(_LANES // max(g, out.shape[1]), 8, 128)) // 8 * 8
    baselines = np.zeros((1, 0)) if game.baselines is None else game.baselines
    together = max(1, _BASELINES // (8 * g * lanes))
    for lo, hi in threads.blocks(len(f.weights), lanes):
        columns = np.ascontiguousarray(dense(X[lo:hi]).T, np.float64)
        weights = np.ascontiguousarray(f.weights[lo:hi].T) / len(baselines)
        for first, last in threads.blocks(len(baselines), together):
            absent = np.ones((last - first, g, hi - lo))
            if game.baselines is not None:
                _factors(columns, baselines[first:last], factor, game.player, absent)
            rule = 0.5 + 0.5 * places, 0.5 * shares
            _add(columns, weights, points, absent, factor, game.player, *rule, pairs, out)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _factors(
    columns: Doubles, rows: Doubles, factor: Parameters, player: Longs, out: Doubles
) -> None:  # pragma: no cover - compiled
    """Multiply `out`, float64 (n, g, m), by the players' factors of n rows with m support vectors, `columns` (d, m)."""
    for r in range(rows.shape[0]):
        for k in range(columns.shape[0]):
            multiply(out[r, player[k]], rows[r, k], columns[k], factor)


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _add(
    columns: Doubles, weights: Doubles, rows: Doubles, absent: Doubles, factor: Parameters, player: Longs,
    places: Doubles, shares: Doubles, pairs: bool, out: Doubles,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Add the values, or those of `pairs`, of a block of support vectors.

    Parameters
    ----------
    columns : float64, shape (d, m)
        Support vectors, feature by feature.
    weights : float64, shape (q, m)
    rows : float64, shape (n, d)
    absent : float64, shape (b, g, m)
        Factors of the baselines.
    factor : tuple
        From :meth:`cacore.kernels.Kernel.factor`.
    player : int64, shape (d,)
    places, shares : float64, shape (nodes,)
        The rule on [0, 1].
    pairs : bool
    out : float64, shape (n, g, q), or (n, g (g - 1) / 2, q)
    """
    (b, g, m), width = absent.shape, out.shape[1]
    here, mixed, before, behind = np.empty((1, g, m)), np.empty((g, m)), np.empty((g, m)), np.empty((g, m))
    inner, total, after = np.empty((width, m)), np.empty((width, m)), np.empty(m)
    for r in range(rows.shape[0]):
        here[:] = 1.0
        _factors(columns, rows[r : r + 1], factor, player, here)
        total[:] = 0.0
        for c in range(b):
            inner[:] = 0.0
            for node in range(places.size):
                t, share = places[node], shares[node]
                if pairs:
                    _without_two(here[0], absent[c], t, share, mixed, before, behind, after, inner)
                else:
                    _without_one(here[0], absent[c], t, share, mixed, before, after, inner)
            if pairs:
                _gained_by_two(here[0], absent[c], inner, total)
            else:
                _gained_by_one(here[0], absent[c], inner, total)
        for j in range(width):
            for k in range(weights.shape[0]):
                value = 0.0
                for i in range(m):
                    value += weights[k, i] * total[j, i]
                out[r, j, k] += value


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _gained_by_one(
    here: Doubles, absent: Doubles, inner: Doubles, total: Doubles
) -> None:  # pragma: no cover - compiled
    """Add the differences of each player's factors, times the integrals without it, to `total`; all float64 (g, m)."""
    for j in range(here.shape[0]):
        u, v, s, into = here[j], absent[j], inner[j], total[j]
        for i in range(u.size):
            into[i] += (u[i] - v[i]) * s[i]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _gained_by_two(
    here: Doubles, absent: Doubles, inner: Doubles, total: Doubles
) -> None:  # pragma: no cover - compiled
    """:func:`_gained_by_one` for pairs of players; `inner` and `total` are (g (g - 1) / 2, m)."""
    g, k = here.shape[0], 0
    for first in range(g):
        for second in range(first + 1, g):
            u, v, w, x, s, into = here[first], absent[first], here[second], absent[second], inner[k], total[k]
            for i in range(u.size):
                into[i] += (u[i] - v[i]) * (w[i] - x[i]) * s[i]
            k += 1


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _without_one(
    here: Doubles, absent: Doubles, t: float, share: float, mixed: Doubles, before: Doubles, after: Doubles,
    inner: Doubles,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Add `share` times the product of all players' factors but one's, mixed at t, to `inner`; all float64 (g, m).

    `mixed`, `before` (g, m) and `after` (m,) are overwritten.
    """
    g, m = here.shape
    after[:] = 1.0
    for j in range(g):
        u, v, f, p = here[j], absent[j], mixed[j], before[j]
        for i in range(m):
            p[i] = after[i]
            f[i] = v[i] + t * (u[i] - v[i])
            after[i] *= f[i]
    after[:] = share
    for j in range(g - 1, -1, -1):
        f, p, s = mixed[j], before[j], inner[j]
        for i in range(m):
            s[i] += p[i] * after[i]
            after[i] *= f[i]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _without_two(
    here: Doubles, absent: Doubles, t: float, share: float, mixed: Doubles, before: Doubles, behind: Doubles,
    between: Doubles, inner: Doubles,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """:func:`_without_one` for the products without two players; `inner` is float64 (g (g - 1) / 2, m)."""
    g, m = here.shape
    between[:] = share
    for j in range(g):
        u, v, f, p = here[j], absent[j], mixed[j], before[j]
        for i in range(m):
            p[i] = between[i]
            f[i] = v[i] + t * (u[i] - v[i])
            between[i] *= f[i]
    between[:] = 1.0
    for j in range(g - 1, -1, -1):
        f, p = mixed[j], behind[j]
        for i in range(m):
            p[i] = between[i]
            between[i] *= f[i]
    k = 0
    for first in range(g):
        between[:] = before[first]
        for second in range(first + 1, g):
            f, p, s = mixed[second], behind[second], inner[k]
            for i in range(m):
                s[i] += between[i] * p[i]
                between[i] *= f[i]
            k += 1
