"""Kernel values of distant rows left out: where K is cut, its near tiles, and the systems into which it falls apart.

Each rank orders its rows so that neighbours follow each other, first by gaps in single features (between classes of a
one-hot feature, say), then as the leaves of a k-d tree. Boxes of at most `BOX` consecutive rows say which tiles of K
are left out, and bound what is lost. Rows that no chain of near boxes connects form *islands*: K is block diagonal, and
every island is a system of its own, with a factor and iterations of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.kernels import Kernel
from cacore.kernels.near import spatial_groups, spatial_order, squared_cutoff
from cacore.near.boxes import Boxes, Index, Runs

BOX = 256  # most rows of a box, which is the height of a strip of tiles
SHARE = 0.1  # share of the tolerance that the cut may use; cakrr.iterative.systems leaves the rest to the iteration
LEAST = 1024  # rows of a system: smaller islands are solved together, since each has a factor of its own
_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly
_GAP = 1e-3  # kernel value across a gap at which boxes end
_LEVELS = np.append(2.0 ** -np.arange(4.0, 61.0), 0.0)  # kernel values at which K may be cut; 0: where it ends


@dataclass(frozen=True)
class KernelCut:
    """A cut of K: tiles of rows farther apart than a radius are left out.

    Attributes
    ----------
    squared : float
        Squared radius; infinity if nothing is left out.
    bound : float
        Bound on the spectral norm of what is left out.
    allowed : float
        The largest bound that was allowed.
    share : float
        Share of the pairs of rows that are computed.
    """

    squared: float
    bound: float
    allowed: float
    share: float


@dataclass(frozen=True)
class Tiles:
    """Boxes of the rows of one system, on all ranks, and the squared radius within which tiles are computed.

    Attributes
    ----------
    ends : list of ndarray of int64
        Borders of each rank's boxes among its rows, shape (boxes + 1,).
    boxes : list of Boxes
    squared : float
    """

    ends: list[Index]
    boxes: list[Boxes]
    squared: float

    def near(self, rank: int, rank_of_columns: int) -> list[list[tuple[int, int]]]:
        """Ranges of rows of `rank_of_columns` that each box of `rank` is near."""
        runs, ends = self.boxes[rank].near(self.boxes[rank_of_columns], self.squared), self.ends[rank_of_columns]
        first, last = ends[runs.first].tolist(), ends[runs.last].tolist()
        return [
            list(zip(first[a:b], last[a:b], strict=True))
            for a, b in zip(runs.starts[:-1].tolist(), runs.starts[1:].tolist(), strict=True)
        ]

    @property
    def pairs(self) -> int:
        """Number of pairs of rows that are computed."""
        boxes = _joined_boxes(self.boxes)
        counts = np.concatenate([np.diff(ends) for ends in self.ends])
        return int(counts @ _near_rows(boxes.near(boxes, self.squared), counts))


@dataclass(frozen=True)
class Island:
    """Rows that form a system of their own.

    Attributes
    ----------
    rows : ndarray of int64
        This rank's rows of it, in the order of their boxes.
    features : ndarray of int64
        The features that vary on the island: distances need no others.
    tiles : Tiles
    """

    rows: Index
    features: Index
    tiles: Tiles


def islands(
    X: NDArray[np.floating], kernel: Kernel, allowed: float, comm: Communicator
) -> tuple[list[Island], KernelCut]:  # fmt: skip
    """Cut K so that the norm of what is left out is at most `allowed`, and find the systems that remain; collective.

    Parameters
    ----------
    X : ndarray, shape (n_local, d)
        This rank's rows.
    kernel : Kernel
        A function of the Euclidean distance that decreases, or a product over the features.
    allowed : float

    Returns
    -------
    islands : list of Island
        Together all rows; the same number on all ranks.
    cut : KernelCut

    Notes
    -----
    About n d log2(n / `BOX`) operations for the order, shared by the ranks, and 6 d B^2 for B boxes on each of them.
    One Allgather of 2 d + 1 numbers per box.
    """
    order, ends, boxes, counts, owner = _everywhere(X, kernel, comm)
    d, per_rank = X.shape[1], np.bincount(owner, minlength=comm.size)
    squared, bound = _cut(boxes, counts, kernel, allowed)
    systems = _systems(boxes.near(boxes, squared).joined(), counts)
    systems_found, pairs = [], 0
    starts = np.concatenate([[0], np.cumsum(np.diff(ends))])
    for system in range(int(systems.max(initial=-1)) + 1):
        inside = [np.flatnonzero((systems == system) & (owner == rank)) for rank in range(comm.size)]
        all_of_it = np.concatenate(inside)
        varies = np.flatnonzero(boxes.lower[:, all_of_it].min(axis=1) < boxes.upper[:, all_of_it].max(axis=1))
        features = varies if len(varies) else np.zeros(min(1, d), np.int64)
        tiles = Tiles(
            [np.concatenate([[0], np.cumsum(counts[part])]) for part in inside],
            [boxes.subset(part, features) for part in inside], squared,
        )  # fmt: skip
        here = inside[comm.rank] - int(per_rank[: comm.rank].sum())
        rows = np.concatenate([np.zeros(0, np.int64), *(order[starts[box] : starts[box + 1]] for box in here.tolist())])
        systems_found.append(Island(rows, features, tiles))
        pairs += tiles.pairs
    n = int(counts.sum())
    return systems_found, KernelCut(squared, bound, allowed, pairs / max(1, n * n))


def owners(X: NDArray[np.floating], kernel: Kernel, allowed: float, comm: Communicator) -> Index:
    """Rank that each of this rank's rows should move to, so that few near rows are on different ranks; collective.

    The boxes of every island are put in spatial order and divided among all ranks, into stretches of equal work: that
    of a box is the number of its near pairs. Islands are solved one after the other, so each needs all ranks.

    Parameters
    ----------
    X, kernel, allowed
        As of :func:`islands`.

    Returns
    -------
    ndarray of int64, shape (n_local,)

    Notes
    -----
    As costly as :func:`islands`. Boxes of rows that are anywhere on the ranks are wider than those after the move.
    """
    order, ends, boxes, counts, owner = _everywhere(X, kernel, comm)
    runs = boxes.near(boxes, _cut(boxes, counts, kernel, allowed)[0])
    work = (counts * _near_rows(runs, counts)).astype(np.float64)
    systems, middles = _systems(runs.joined(), counts), (boxes.lower + boxes.upper).T / 2.0
    rank = np.zeros(len(boxes), np.int64)
    for system in range(int(systems.max(initial=-1)) + 1):
        members = np.flatnonzero(systems == system)
        members = members[spatial_order(middles[members], 1)]
        work_before = np.cumsum(work[members])
        turn = _GOLDEN * system  # the few boxes of small islands are not always the same rank's
        rank[members] = np.floor(((work_before - work[members] / 2.0) / work_before[-1] + turn) % 1.0 * comm.size)
    toward = np.empty(len(X), np.int64)
    toward[order] = np.repeat(rank[owner == comm.rank], np.diff(ends))
    return toward


def _everywhere(
    X: NDArray[np.floating], kernel: Kernel, comm: Communicator
) -> tuple[Index, Index, Boxes, Index, Index]:  # fmt: skip
    """Order this rank's rows, and gather the boxes of all ranks, rank by rank: 2 d + 1 numbers each; collective.

    Returns the order of this rank's rows and the borders of its boxes; then all boxes, and the number of rows and the
    rank of each.
    """
    d = X.shape[1]
    order, ends = _ordered(X, kernel)
    mine = Boxes.of_rows(X[order], ends, kernel.separable)
    table = np.concatenate([mine.lower, mine.upper, np.diff(ends)[None].astype(np.float64)]).T
    per_rank = comm.allgather(np.array([len(mine)], np.int64), np.ones(comm.size, np.int64))
    table_of_all = comm.allgather(np.ascontiguousarray(table), per_rank)
    lower, upper = (np.ascontiguousarray(side.T) for side in (table_of_all[:, :d], table_of_all[:, d:-1]))
    boxes, counts = Boxes(lower, upper, kernel.separable), table_of_all[:, -1].astype(np.int64)
    return order, ends, boxes, counts, np.repeat(np.arange(comm.size), per_rank)


def _near_rows(runs: Runs, counts: Index) -> Index:
    """Number of rows in the boxes near each box, shape (boxes,)."""
    total = np.concatenate([[0], np.cumsum(counts)])
    each = np.concatenate([[0], np.cumsum(total[runs.last] - total[runs.first])])
    return np.asarray(each[runs.starts[1:]] - each[runs.starts[:-1]])


def _joined_boxes(sets: list[Boxes]) -> Boxes:
    lower, upper = (np.concatenate([getattr(boxes, side) for boxes in sets], axis=1) for side in ("lower", "upper"))
    return Boxes(lower, upper, sets[0].separable)


def _ordered(X: NDArray[np.floating], kernel: Kernel) -> tuple[Index, Index]:
    """An order of the rows, and the borders of their boxes, none of which spans a gap."""
    n = len(X)
    if not n:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    span = X.max(axis=0).astype(np.float64) - X.min(axis=0)
    labels = _by_gaps(X, span, np.sqrt(squared_cutoff(kernel, float(span @ span), _GAP)))
    by_label = np.argsort(labels, kind="stable")
    pieces, ends, at = [], [0], 0
    for rows in np.split(by_label, np.flatnonzero(np.diff(labels[by_label])) + 1):
        order, borders = spatial_groups(X[rows], BOX)
        pieces.append(rows[order])
        ends += (at + borders[1:]).tolist()
        at += len(rows)
    return np.concatenate(pieces), np.array(ends, np.int64)


def _by_gaps(X: NDArray[np.floating], span: NDArray[np.float64], gap: float) -> Index:
    """Labels of rows that no gap wider than `gap` in any feature separates; all 0 if these would be too many."""
    n, labels, count = len(X), np.zeros(len(X), np.int64), 1
    max_groups = max(BOX, n // BOX)
    for feature in np.flatnonzero(span > gap).tolist():
        column = np.sort(X[:, feature])
        middle = np.flatnonzero(np.diff(column) > gap)
        if not len(middle):
            continue
        labels = labels * (len(middle) + 1) + np.searchsorted(column[middle], X[:, feature], side="left")
        count *= len(middle) + 1
        if count > 1 << 40:
            labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
            count = int(labels.max()) + 1
            if count > max_groups:
                break
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return labels if labels.max(initial=0) < max_groups else np.zeros_like(labels)


def _cut(boxes: Boxes, counts: Index, kernel: Kernel, allowed: float) -> tuple[float, float]:
    """The smallest squared radius whose bound is allowed, and that bound."""
    if not len(boxes):
        return np.inf, 0.0
    span = boxes.upper.max(axis=1) - boxes.lower.min(axis=1)
    squares = np.array([squared_cutoff(kernel, float(span @ span), level) for level in _LEVELS.tolist()])
    squares = np.unique(squares[np.isfinite(squares)])
    bounds = boxes.left_out(counts, kernel, squares)
    good = np.flatnonzero(bounds <= allowed)
    return (float(squares[good[0]]), float(bounds[good[0]])) if len(good) else (np.inf, 0.0)


def _systems(component: Index, counts: Index) -> Index:
    """Number of the system of each box: components, of which small ones are put together."""
    rows = np.bincount(component, counts).astype(np.int64)
    system, number, filled = np.zeros(len(rows), np.int64), -1, LEAST
    for component_number, size in enumerate(rows.tolist()):
        if size >= LEAST:
            continue
        if filled >= LEAST:
            number, filled = number + 1, 0
        system[component_number] = number
        filled += size
    large = np.flatnonzero(rows >= LEAST)
    system[large] = number + 1 + np.arange(len(large))
    return system[component]
