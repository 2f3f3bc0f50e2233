"""A round of Dis-SMO in blocks, for kernels most of whose values vanish: each rank solves some blocks, at one bias.

A working set of many thousands of rows is cut into blocks of neighbours. Rows of different blocks hardly know each
other, so the blocks are solved side by side. What they share is the bias b: at a given b a block is solved without a
constraint on its sum, and b is moved until the sums of all blocks nearly cancel. Between a b where the sum rises and
one where it falls lies a change that keeps it; an exact line search along this change makes up for what the blocks did
not know of each other. Each round cuts along other directions, so that neighbours which one cut separates meet in the
next.

Related: Hsieh, Si and Dhillon, Communication-efficient parallel block minimization for kernel machines
(arXiv 1608.02010), whose blocks are fixed and whose dual has no bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.machine.threads import blocks, for_blocks
from casvm.solver.near_columns import NearColumns
from casvm.solver.pair import Index, Pairs, Vector

# Most rows per block. Smaller blocks separate more neighbours: 40,000 rows of covtype in blocks of 470 take 67 rounds
# that move 770,000 rows, in blocks of 1,024 about 36 that move 440,000. So some ranks may have none.
BLOCK = 1024
# With fewer ranks, or more rows per rank, pairs on all ranks at once take no longer: covtype on 4 ranks, 100,000 rows
# of it on 16. More blocks take more rounds.
LEAST_RANKS, _MOST = 16, 4096
_RELAX, _FLOOR = 0.005, 0.05  # violation that a round leaves in its blocks: share of the largest one, of the tolerance
_DIRECTIONS = 32
_BIASES = 8  # most values of b per round
_SHARE = 0.5  # first step of b, as a share of the violation that a round leaves
_STIFFEST = 4.0

_Found = dict[bool, tuple[float, float, Vector]]  # for a rising and a falling sum: by how much, b, and beta


@dataclass(frozen=True)
class Change:
    """The change of a round to its working set.

    Attributes
    ----------
    places : ndarray of int64, shape (moved,)
        Places in the working set, ascending, of all ranks' rows that move.
    beta : ndarray of float64, shape (moved,)
        Their coefficients after a full step.
    pairs : int
        Number of pairs optimised on all ranks.
    """

    places: Index
    beta: Vector
    pairs: int


class Directions:
    """Random directions along which rows are cut into blocks, the same on all ranks.

    Parameters
    ----------
    sample : ndarray, shape (s, d)
        Rows whose standard deviations scale the features.
    capacity : int
        Number of slots.
    """

    def __init__(self, sample: NDArray[np.floating], capacity: int) -> None:
        normal = np.random.default_rng(0).normal(size=(sample.shape[1], _DIRECTIONS))
        self._into = normal * np.asarray(sample, np.float64).std(axis=0)[:, None]
        self._places = np.zeros((_DIRECTIONS, capacity))

    def put(self, slots: Index, X: NDArray[np.floating]) -> None:
        """Store where these rows lie along the directions; 64 d flops per row."""
        self._places[:, slots] = (np.asarray(X, np.float64) @ self._into).T

    def blocks(self, slots: Index, count: int, first: int, last: int, seed: int) -> list[Index]:
        """Cut rows into `count` blocks of about as many rows each; return blocks `first` to `last` - 1.

        About 2 n operations for one block, and n log2(count) for all.

        Returns
        -------
        list of ndarray of int64
            Places in `slots`, ascending.
        """
        found: list[Index] = []

        def cut(rows: Index, begin: int, end: int) -> None:
            if end <= first or begin >= last:
                return
            if end - begin == 1:
                found.append(np.sort(rows))
                return
            half = (begin + end) // 2
            below = len(rows) * (half - begin) // (end - begin)
            direction = np.random.default_rng([seed, begin, end]).integers(_DIRECTIONS)
            order = np.argpartition(self._places[direction, slots[rows]], below)
            cut(rows[order[:below]], begin, half)
            cut(rows[order[below:]], half, end)

        cut(np.arange(len(slots)), 0, count)
        return found


class OwnBlocks:
    """The blocks of this rank, optimised at one bias after another.

    Parameters
    ----------
    gram : NearColumns
    slots : ndarray of int64, shape (size,)
        The working set's rows.
    places : list of ndarray of int64
        Places of this rank's blocks in the working set.
    v, beta, lower, upper : ndarray of float64, shape (size,)
    epsilon : float
        The dual's epsilon.
    stiffness : float
        Factor of the kernel values.

    Notes
    -----
    Up to BLOCK numbers per row of this rank's blocks.
    """

    def __init__(
        self, gram: NearColumns, slots: Index, places: list[Index], v: Vector, beta: Vector, lower: Vector,
        upper: Vector, epsilon: float, stiffness: float,
    ) -> None:  # fmt: skip
        self.places, self.epsilon, self.pairs = places, epsilon, 0
        self._K = gram.squares([slots[some] for some in places], 1)
        for K in self._K:
            K *= K.dtype.type(stiffness)
        self._bounds = [(lower[some], upper[some]) for some in places]
        self._state = [(v[some], beta[some]) for some in places]

    def optimise(self, b: float, tol: float, most: int) -> tuple[float, Vector]:
        """Optimise each block at this bias, with at most `most` pairs each; return the sum of beta, and beta."""
        problems = [
            self._problem(K, bounds, state, b)
            for K, bounds, state in zip(self._K, self._bounds, self._state, strict=True)
        ]

        def solve(lo: int, hi: int) -> None:
            for K, problem in zip(self._K[lo:hi], problems[lo:hi], strict=True):
                problem.optimise(K, np.arange(problem.size), tol, most)

        for_blocks(solve, blocks(len(problems), 1))
        self._state = [(problem.v[:-1].copy(), problem.beta[:-1].copy()) for problem in problems]
        self.pairs += sum(problem.iterations for problem in problems)
        beta = np.concatenate([np.zeros(0), *(beta for _, beta in self._state)])
        return float(beta.sum()), beta

    def _problem(
        self, K: NDArray[np.floating], bounds: tuple[Vector, Vector], state: tuple[Vector, Vector], b: float
    ) -> Pairs:  # fmt: skip
        """A block with one more row, without kernel values and far from its bounds, which takes and gives at b."""
        (lower, upper), (v, beta) = bounds, state
        far = 1.0 + float(np.maximum(upper, -lower).sum() + np.abs(beta).sum())
        diagonal = np.diagonal(K)[: len(v) + 1].astype(np.float64)
        return Pairs(
            np.append(v, b + self.epsilon), np.append(beta, 2 * far), np.append(lower, far), np.append(upper, 3 * far),
            diagonal, self.epsilon,
        )  # fmt: skip


def pay(n: int, ranks: int) -> bool:
    """True if rounds in blocks are faster for this number of near rows in all."""
    return ranks >= LEAST_RANKS and most_rows(n) <= _MOST * ranks


def most_rows(n: int) -> int:
    """Most rows of a working set in blocks: those that are free, and those that violate."""
    return 3 * n // 4


class OwnRows(Protocol):
    """This rank's rows of a round, optimised at one bias after another: see :class:`OwnBlocks`."""

    places: list[Index]
    pairs: int

    def optimise(self, b: float, tol: float, most: int) -> tuple[float, Vector]:
        """Optimise at this bias, with at most `most` pairs per block; return the sum of beta, and beta."""


class Rounds(ABC):
    """Rounds whose rows are divided among the ranks and solved at one bias; the same state on all ranks.

    Parameters
    ----------
    epsilon : float
        The dual's epsilon.
    comm : Communicator

    Attributes
    ----------
    stiffness : float
        Factor of the blocks' kernel values. Above 1 the blocks make smaller steps; where they hardly know of each other
        it is 1, and else it makes up for what all of them would do at once.
    b : float or None
        The bias of the last round.
    """

    def __init__(self, epsilon: float, comm: Communicator) -> None:
        self.epsilon, self.comm, self.stiffness = epsilon, comm, 1.0
        self.b: float | None = None

    @abstractmethod
    def suit(self, size: int, seed: int) -> bool:
        """True if a working set of this size, in round `seed`, should be divided."""

    @abstractmethod
    def put(self, slots: Index, X: NDArray[np.floating]) -> None:
        """Take note of rows that have arrived in these slots."""

    @abstractmethod
    def mine(
        self, gram: NearColumns, slots: Index, seed: int, v: Vector, beta: Vector, lower: Vector, upper: Vector
    ) -> OwnRows:  # fmt: skip
        """This rank's rows of a working set, whose values have shape (size,)."""

    @abstractmethod
    def _count(self, size: int) -> int:
        """Blocks on all ranks."""

    def change(self, mine: OwnRows, beta: Vector, b: float, tol: float, gap: float, most: int) -> Change | None:
        """Optimise all ranks' blocks, and find a change that keeps the sum of beta; None if there is none. Collective.

        Parameters
        ----------
        mine : OwnRows
        beta : ndarray of float64, shape (size,)
            Of the working set, before.
        b : float
            The bias to begin with if there is none of a round before.
        tol, gap : float
            The solver's tolerance, and the largest violation now.
        most : int
            Most pairs on all ranks.

        Notes
        -----
        One Allreduce of three numbers per bias, and 16 bytes per row that moves.
        """
        places = np.concatenate([np.zeros(0, np.int64), *mine.places])
        before, b = float(beta[places].sum()), b if self.b is None else self.b
        tol, most = max(_FLOOR * tol, _RELAX * gap), most // (_BIASES * self._count(len(beta)))
        found: _Found = {}
        step, pairs = 0.0, 0
        for _ in range(_BIASES):
            done, refined = mine.pairs, len(found) == 2
            after, solved = mine.optimise(b, tol, most)
            moves = float(np.count_nonzero(solved != beta[places]))
            facts = np.array([after - before, mine.pairs - done, moves])
            total, count, moved = self.comm.allreduce(facts).tolist()
            pairs += int(count)
            found[total > 0] = total, b, solved
            if total == 0 or refined:
                break
            if len(found) == 2:
                b = _between(found)
            else:
                # The larger b, the smaller the sum: about K_ii per free row and unit of b.
                step = 2 * step if step else max(abs(total) / max(moved, 1.0), _SHARE * tol)
                b += np.copysign(step, total)
        if not pairs or (total != 0 and len(found) < 2):
            return None
        if total != 0:
            (rise, _, more), (fall, _, less) = found[True], found[False]
            b, share = _between(found), -fall / (rise - fall)
            solved = np.where(more == less, more, share * more + (1.0 - share) * less)
        self.b = b
        here = np.flatnonzero(solved != beta[places])
        lines = self.comm.allgather(np.column_stack([places[here].astype(np.float64), solved[here]]))
        lines = lines[np.argsort(lines[:, 0])]
        return Change(lines[:, 0].astype(np.int64), lines[:, 1].copy(), pairs)

    def step(self, change: Vector, v: Vector, beta: Vector, total: Vector) -> tuple[float, float]:
        """The best share of a change, between 0 and 1, and what the objective gains by it. Collective.

        Parameters
        ----------
        change, v, beta, total : ndarray of float64, shape (here,)
            Of this rank's rows of the working set: full change, v and beta before it, and K times all rows' change.
        """
        kink = self.epsilon * float(np.sum(np.abs(beta + change) - np.abs(beta)))
        gain, square = self.comm.allreduce(np.array([float(change @ v) - kink, float(change @ total)])).tolist()
        if not gain > 0:
            return 0.0, 0.0
        self.stiffness = float(np.clip(self.stiffness * np.sqrt(square / gain), 1.0, _STIFFEST))
        share = min(1.0, gain / square) if square > 0 else 1.0
        return share, share * (gain - 0.5 * share * square)


class BlockRounds(Rounds):
    """Rounds in blocks of at most BLOCK rows, cut along other directions each time.

    Parameters
    ----------
    sample, capacity
        See :class:`Directions`.
    epsilon, comm
        See :class:`Rounds`.

    Attributes
    ----------
    directions : Directions
    """

    def __init__(self, sample: NDArray[np.floating], capacity: int, epsilon: float, comm: Communicator) -> None:
        super().__init__(epsilon, comm)
        self.directions = Directions(sample, capacity)

    def put(self, slots: Index, X: NDArray[np.floating]) -> None:
        """Store where these rows lie along the directions."""
        self.directions.put(slots, X)

    def suit(self, size: int, seed: int) -> bool:
        """True if a working set of this size has blocks for several ranks."""
        return size > 2 * BLOCK

    def _count(self, size: int) -> int:
        count, ranks = -(-size // BLOCK), self.comm.size
        return count if count < ranks else -(-count // ranks) * ranks

    def mine(
        self, gram: NearColumns, slots: Index, seed: int, v: Vector, beta: Vector, lower: Vector, upper: Vector
    ) -> OwnBlocks:  # fmt: skip
        """This rank's blocks of a working set, whose values have shape (size,)."""
        ranks, count = self.comm.size, self._count(len(slots))
        first, last = (count * rank // ranks for rank in (self.comm.rank, self.comm.rank + 1))
        places = self.directions.blocks(slots, count, first, last, seed)
        return OwnBlocks(gram, slots, places, v, beta, lower, upper, self.epsilon, self.stiffness)


def _between(found: _Found) -> float:
    """The bias at which the sum stays as it is, if it changes evenly between two where it rises and falls."""
    (rise, low, _), (fall, high, _) = found[True], found[False]
    return (low * -fall + high * rise) / (rise - fall)
