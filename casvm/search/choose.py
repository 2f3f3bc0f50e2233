"""Search for C and gamma, for all parts together or per part: cross-validation inside the parts, in rounds of folds.

After each round, one reduction adds up the counts of all parts, and settings that are significantly worse than the best
are dropped. No rows are sent, and test rows are not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import nbytes
from cacore.errors import InputError
from cacore.machine import threads
from cacore.machine.clock import working_time
from cacore.tuning import folds, race
from cacore.tuning.results import Results
from cacore.tuning.scorers import TRUE, scores
from casvm.options import SVMOptions
from casvm.search.grid import Settings, settings
from casvm.search.part import LOOSE, ClassFolds, bytes_needed, judge
from casvm.search.pieces import Piece, check_settings, over_pieces, pieces
from partition.redistribute import Parts

if TYPE_CHECKING:
    from cacore.io.checkpoint import Kept


def search(
    parts: Parts, classes: NDArray[np.generic], P: int, options: SVMOptions, comm: Communicator
) -> Results | None:
    """Choose C and gamma by cross-validation; collective.

    Parameters
    ----------
    parts : Parts
        This rank's parts, with the columns "code" of the class and "C", the factor of C. Not changed.
    classes : ndarray, shape (k,)
    P : int
        Number of parts on all ranks.
    options : SVMOptions
    comm : Communicator

    Returns
    -------
    Results or None
        None if only the default grid was requested, and either a class has too few rows for folds or every part has one
        row.

    Raises
    ------
    InputError
        On all ranks: more folds than a class has rows, a two-class score for more classes, or insufficient memory.

    Notes
    -----
    The cost is that of :func:`casvm.search.part.judge` for every piece. With more than 6,000 rows in all, a part of
    more than 3,000 rows is cut into pieces of about 2,000 neighbouring rows (random rows if the kernel is precomputed);
    so is a part whose matrices do not fit. There are two or three reductions of 3 k numbers per setting and fold, or P
    times as many with `per_part`.
    """
    with comm.phase("search"):
        return _searched(parts, classes, P, options, comm)


def _searched(
    parts: Parts, classes: NDArray[np.generic], P: int, options: SVMOptions, comm: Communicator
) -> Results | None:
    k = len(classes)
    counts = comm.allreduce(np.bincount(parts["code"], minlength=k).astype(np.int64))
    with comm.agreed():
        count = folds.usable(options.cv, counts, classes)
        if count < 2 and options.names_settings:
            raise InputError(
                f"C, gamma: several values are compared by cross-validation, but class {classes[counts.argmin()]} has "
                "one row only; give one value, or leave out the class"
            )
        scores(options.scoring, np.zeros((3, k)))
    if count < 2:
        return None
    begun = working_time()
    searched = pieces(parts, P, lambda rows: bytes_needed(rows, k), options, comm)
    compared = settings(options, parts.X, [one.rows for one in searched], comm)
    with comm.agreed():
        _require(compared, count, P if options.per_part else 1, k, options.memory_limit - nbytes(parts.X))
    results = _Search(parts, compared, searched, count, k, options).run(P, int(counts.sum()), comm)
    if results is None:
        if options.names_settings:
            raise InputError(
                "C, gamma: several values are compared inside the parts, but these have one row each; use fewer parts"
            )
        return None
    with comm.uncounted():
        results.seconds = float(comm.allreduce(np.array([working_time() - begun]), "max")[0])
    return results


def _require(compared: Settings, count: int, groups: int, k: int, room: int) -> None:
    """Refuse more settings than memory can hold the counts of."""
    total = len(compared.Cs) * len(compared.kernels)
    copies = 2 * groups + threads.current()  # each group's counts and their sum over ranks; one piece per thread
    each = copies * count * 3 * k * 8
    check_settings(total, each, room, f"comparing {total:,} settings of C and gamma")


class _Search:
    """Rounds of folds over this rank's pieces."""

    def __init__(
        self, parts: Parts, compared: Settings, pieces: list[Piece], count: int, k: int, options: SVMOptions
    ) -> None:  # fmt: skip
        self.parts, self.settings, self.pieces, self.k, self.options = parts, compared, pieces, k, options
        self.shape = (len(compared.kernels), len(compared.Cs), count)
        self.solved = self.stopped = 0
        self.tol = max(LOOSE, float(options.tol))
        steps = len(compared.Cs) * len(compared.kernels) * count * sum(one.cost for one in pieces)
        self._done, self._advance = 0, options.progress("choosing C and gamma", steps)

    def run(self, P: int, n: int, comm: Communicator) -> Results | None:
        """Run all rounds; `n` is the number of rows on all ranks. None if no row could be left out. Collective."""
        per_part, name = self.options.per_part, self.options.scoring
        groups = P if per_part else 1
        total = np.zeros((groups, *self.shape, 3, self.k), np.int64)
        alive = np.ones((groups, *self.shape[:2]), np.bool_)
        done = 0
        for number, these in enumerate(race.rounds(self.shape[2], n // groups)):
            self._round(number, these, alive, total)
            done += len(these)
            comm.wait()
            total[:, :, :, these] = comm.allreduce(total[:, :, :, these])
            for group, counts in enumerate(total):
                flat = counts.sum(axis=2).reshape(-1, 3, self.k)
                if flat[..., TRUE, :].any():  # a part may not have left out any row yet
                    alive[group] = race.survivors(name, flat, alive[group].ravel()).reshape(alive[group].shape)
            self._tell(alive, total, done)
        with comm.uncounted():
            solved, stopped = comm.allreduce(np.array([self.solved, self.stopped])).tolist()
        # Folds whose only rows are in parts of one row carry no information.
        total = total[:, :, :, total[..., TRUE, :].any(axis=(0, 1, 2, 4))]
        if not total.size:
            return None
        found = Results(self.settings.axes, self._scores(total.sum(axis=0)), name, solved=solved, stopped=stopped)
        if per_part:
            some = ~alive.all(axis=0).T.ravel()  # tried on all folds in some parts only
            found.scores[some, 1:] = np.nan
            self._choose_each(found, total)
        else:
            found.choose()
        return found

    def _round(self, number: int, these: list[int], alive: NDArray[np.bool_], total: NDArray[np.int64]) -> None:
        """Add the counts of these folds, for the remaining settings, to `total`."""
        todo = np.zeros((len(alive), *self.shape), np.bool_)
        todo[..., these] = alive[..., None]

        def group_of(piece: Piece) -> int:
            return piece.part if self.options.per_part else 0

        def judged(piece: Piece) -> Kept:
            task = self._task(piece, todo[group_of(piece)])
            found = judge(task, self.settings.kernels, self.settings.Cs, self.k, self.tol)
            return {"counts": found.counts[:, :, these], "steps": np.array([found.solved, found.stopped])}

        def advance(piece: Piece) -> None:
            steps = int(todo[group_of(piece)].sum()) * piece.cost
            self._done += steps
            self._advance(steps)

        with over_pieces(self.pieces, f"search-{number}", judged, self.options.checkpoint, advance) as found:
            for piece, kept in found:
                total[group_of(piece)][:, :, these] += kept["counts"]
                solved, stopped = kept["steps"].tolist()
                self.solved, self.stopped = self.solved + solved, self.stopped + stopped

    def _tell(self, alive: NDArray[np.bool_], total: NDArray[np.int64], done: int) -> None:
        """Show the number of remaining settings, the best setting so far, and the remaining work."""
        left, groups = alive.sum(axis=(1, 2)), alive.shape[0]
        steps = sum(int(left[one.part if groups > 1 else 0]) * one.cost for one in self.pieces)
        settings = len(self.settings.Cs) * len(self.settings.kernels)
        label = f"choosing C and gamma: {int(alive.any(axis=0).sum())} of {settings} settings left"
        if groups == 1:
            score = np.where(alive[0], scores(self.options.scoring, total[0].sum(axis=2)), -np.inf)
            g, ell = np.unravel_index(int(np.argmax(score)), score.shape)
            gamma = f" gamma {self.settings.kernels[g].gamma:.3g}" if "gamma" in self.settings.axes else ""
            label += f", best C {self.settings.Cs[ell]:.3g}{gamma}: {score[g, ell]:.4f}"
        self._advance(0, label, self._done + steps * (self.shape[2] - done))

    def _task(self, piece: Piece, todo: NDArray[np.bool_]) -> ClassFolds:
        codes = self.parts["code"][piece.rows]
        fold = folds.stratified(codes, self.shape[2], piece.first)
        return ClassFolds(self.parts.X[piece.rows], codes, self.parts["C"][piece.rows], fold, todo)

    def _scores(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Scores, shape (settings, folds); settings in the order of the axes, C before gamma."""
        return scores(self.options.scoring, counts).transpose(1, 0, 2).reshape(-1, counts.shape[-3])

    def _choose_each(self, found: Results, total: NDArray[np.int64]) -> None:
        """Choose the best setting of each part, and compute the score of all these choices together."""
        each, best = [], np.zeros(total.shape[3:], np.int64)
        for counts in total:
            one = Results(found.axes, self._scores(counts), found.scoring)
            # A small part may have no rows in some folds; these carry no information on its settings.
            one.scores = one.scores[:, counts[..., TRUE, :].any(axis=(0, 1, 3))]
            setting = int(one.order[0]) if one.scores.size else 0
            each.append(one.settings[setting])
            best += counts.transpose(1, 0, 2, 3, 4).reshape(-1, *best.shape)[setting]
        found.chosen = {name: np.array([one[name] for one in each]) for name in found.axes}
        found.chosen_score = float(np.nanmean(scores(found.scoring, best)))
