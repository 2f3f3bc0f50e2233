"""Search for C and gamma, for all parts together or per part: cross-validation inside the parts, in rounds of folds.

1. :func:`search_classes`: the rounds. After each one, a single reduction adds up the counts of all parts, and settings
   that are significantly worse than the best are dropped. No rows are sent, and test rows are not used.
2. :func:`pieces`: a whole part, or some rows of a part whose kernel matrix does not fit in cache.
3. :func:`settings`: the settings to compare, from the user's values or a default grid scaled by the data.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore import tuning
from cacore.comm import Communicator
from cacore.data.holdout import stratified, usable
from cacore.data.rows import AnyRows, Rows, nbytes
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint, Kept, remembered
from cacore.kernels import Kernel
from cacore.kernels.given import Precomputed
from cacore.machine import memory, threads
from cacore.machine.clock import working_time
from cacore.svm.options import DualOptions
from cacore.svm.problem import numeric_gamma
from cacore.tuning import TRUE, Results, scores, spaced
from casvm.options import GRID, SVMOptions
from casvm.search.cross_validation import COEFFICIENTS, LOOSE, ClassFolds, bytes_needed, judge
from casvm.svm_fit import predicted_cost
from partition.algorithms import divide
from partition.redistribute import Parts


def search_classes(
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
    The cost is that of :func:`casvm.search.cross_validation.judge` for every piece. With more than 6,000 rows in all,
    a part whose two largest classes have more than 3,000 rows is cut into pieces of about 2,000 neighbouring rows
    (random rows if the kernel is precomputed); so is a part whose matrices do not fit. There are two or three
    reductions of 3 k numbers per setting and fold, or P times as many with `per_part`.
    """
    k = len(classes)
    with comm.phase("search"):
        counts = comm.allreduce(np.bincount(parts["code"], minlength=k).astype(np.int64))
        with comm.agreed():
            folds = usable(options.cv, counts, classes)
            if folds < 2 and options.names_settings:
                raise InputError(
                    f"C, gamma: several values are compared by cross-validation, but class {classes[counts.argmin()]} "
                    "has one row only; give one value, or leave out the class"
                )
            scores(options.scoring, np.zeros((3, k)))  # refuses a score of two classes for more
        if folds < 2:
            return None
        begun = working_time()
        searched = pieces(parts, P, options, comm, parts["code"])
        compared = settings(options, parts.X, [piece.rows for piece in searched], comm)
        with comm.agreed():
            total = len(compared.Cs) * len(compared.kernels)
            # Counts of each group of parts and their sum over ranks, and of one piece per thread.
            copies = 2 * (P if options.per_part else 1) + threads.current()
            room, what = options.memory_limit - nbytes(parts.X), f"comparing {total:,} settings of C and gamma"
            check_settings(total, copies * folds * 3 * k * 8, room, what)
        results = _Search(parts, compared, searched, folds, k, options).run(P, int(counts.sum()), comm)
        if results is not None:
            with comm.uncounted():
                results.seconds = float(comm.allreduce(np.array([working_time() - begun]), "max")[0])
        elif options.names_settings:
            raise InputError(
                "C, gamma: several values are compared inside the parts, but these have one row each; use fewer parts"
            )
        return results


class _Search:
    """Rounds of folds over this rank's pieces."""

    def __init__(
        self, parts: Parts, compared: Settings, pieces: list[Piece], folds: int, k: int, options: SVMOptions
    ) -> None:  # fmt: skip
        self.parts, self.settings, self.pieces, self.k, self.options = parts, compared, pieces, k, options
        self.shape = (len(compared.kernels), len(compared.Cs), folds)
        self.solved, self.stopped = 0, np.zeros(self.shape[:2], np.int64)
        self.tol = max(LOOSE, float(options.tol))
        steps = len(compared.Cs) * len(compared.kernels) * folds * sum(piece.cost for piece in pieces)
        self._done, self._advance = 0, options.progress("choosing C and gamma", steps)

    def run(self, P: int, n: int, comm: Communicator) -> Results | None:
        """Run all rounds; `n` is the number of rows on all ranks. None if no row could be left out. Collective."""
        per_part, name = self.options.per_part, self.options.scoring
        groups = P if per_part else 1
        total = np.zeros((groups, *self.shape, 3, self.k), np.int64)
        alive = np.ones((groups, *self.shape[:2]), np.bool_)
        done = 0
        for number, fold_numbers in enumerate(tuning.rounds(self.shape[2], n // groups)):
            self._round(number, fold_numbers, alive, total)
            done += len(fold_numbers)
            comm.wait()
            total[:, :, :, fold_numbers] = comm.allreduce(total[:, :, :, fold_numbers])
            for group, counts in enumerate(total):
                flat = counts.sum(axis=2).reshape(-1, 3, self.k)
                if flat[..., TRUE, :].any():  # a part may not have left out any row yet
                    alive[group] = tuning.survivors(name, flat, alive[group].ravel()).reshape(alive[group].shape)
            self._tell(alive, total, done)
        with comm.uncounted():
            solved, *stopped = comm.allreduce(np.append(self.solved, self.stopped.T))
        # Folds whose only rows are in parts of one row carry no information.
        total = total[:, :, :, total[..., TRUE, :].any(axis=(0, 1, 2, 4))]
        if not total.size:
            return None
        results = Results(
            self.settings.axes, self._scores(total.sum(axis=0)), name, solved=int(solved), stopped=np.array(stopped)
        )
        if per_part:
            incomplete = ~alive.all(axis=0).T.ravel()  # tried on all folds in some parts only
            results.scores[incomplete, 1:] = np.nan
            self._choose_each(results, total)
        else:
            results.choose()
        return results

    def _round(self, number: int, fold_numbers: list[int], alive: NDArray[np.bool_], total: NDArray[np.int64]) -> None:
        """Add the counts of these folds, for the remaining settings, to `total`."""
        todo = np.zeros((len(alive), *self.shape), np.bool_)
        todo[..., fold_numbers] = alive[..., None]

        def group_of(piece: Piece) -> int:
            return piece.part if self.options.per_part else 0

        def judge_piece(piece: Piece) -> Kept:
            task = self._task(piece, todo[group_of(piece)])
            results = judge(task, self.settings.kernels, self.settings.Cs, self.k, self.tol)
            return {**results, "counts": results["counts"][:, :, fold_numbers]}

        def advance(piece: Piece) -> None:
            steps = int(todo[group_of(piece)].sum()) * piece.cost
            self._done += steps
            self._advance(steps)

        with over_pieces(self.pieces, f"search-{number}", judge_piece, self.options.checkpoint, advance) as results:
            for piece, result in results:
                total[group_of(piece)][:, :, fold_numbers] += result["counts"]
                self.solved += int(result["solved"])
                self.stopped += result["stopped"]

    def _tell(self, alive: NDArray[np.bool_], total: NDArray[np.int64], done: int) -> None:
        """Show the number of remaining settings, the best setting so far, and the remaining work."""
        remaining, groups = alive.sum(axis=(1, 2)), alive.shape[0]
        steps = sum(int(remaining[piece.part if groups > 1 else 0]) * piece.cost for piece in self.pieces)
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
        fold = stratified(codes, self.shape[2], piece.first)
        return ClassFolds(self.parts.X[piece.rows], codes, self.parts["C"][piece.rows], fold, todo)

    def _scores(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Scores, shape (settings, folds); settings in the order of the axes, C before gamma."""
        return scores(self.options.scoring, counts).transpose(1, 0, 2).reshape(-1, counts.shape[-3])

    def _choose_each(self, results: Results, total: NDArray[np.int64]) -> None:
        """Choose the best setting of each part, and compute the score of all these choices together."""
        each, best = [], np.zeros(total.shape[3:], np.int64)
        for counts in total:
            part_results = Results(results.axes, self._scores(counts), results.scoring)
            # A small part may have no rows in some folds; these carry no information on its settings.
            part_results.scores = part_results.scores[:, counts[..., TRUE, :].any(axis=(0, 1, 3))]
            setting = int(part_results.order[0]) if part_results.scores.size else 0
            each.append(part_results.settings[setting])
            best += counts.transpose(1, 0, 2, 3, 4).reshape(-1, *best.shape)[setting]
        results.chosen = {name: np.array([choice[name] for choice in each]) for name in results.axes}
        results.chosen_score = float(np.nanmean(scores(results.scoring, best)))


# Reasoned, not measured, but for WHOLE.
ROWS = 2000  # approximate number of rows per piece; its kernel matrix takes 16 MB in single precision
MOST = 3000  # a larger part is cut into pieces, since its kernel matrix does not fit in cache
# Up to this number of rows in all, parts stay whole: their pieces would choose too small a gamma. Of 100 settings on
# 5,000 rows of covtype, three pieces chose one with an accuracy of 80.52 %, all rows together one with 80.98 %
# (python -m benchmarks.svm_search --grid-search 5000).
WHOLE = 6000
_LEAST = 100  # the matrices of a piece of this number of rows must fit in memory
_SETTING = 500  # bytes per setting in the results


@dataclass(frozen=True)
class Piece:
    """A part, or some rows of a large part, on which settings are compared.

    Attributes
    ----------
    part : int
    rows : ndarray of int64, shape (m,)
        Local row numbers.
    first : int
        Number of rows in all previous pieces, on all ranks; dealing of folds continues from there, so that no fold is
        empty.
    name : str
        Name in a checkpoint; contains the maximum size of a piece, which depends on the memory of the run.
    """

    part: int
    rows: NDArray[np.int64]
    first: int
    name: str

    @property
    def cost(self) -> int:
        """Predicted cost per setting, in arbitrary units."""
        return int(predicted_cost(np.array(float(len(self.rows)))))


def pieces(
    parts: Parts, P: int, options: DualOptions, comm: Communicator, codes: NDArray[np.int64] | None = None
) -> list[Piece]:
    """This rank's pieces, part by part; collective.

    The problem of a piece, which is that of its two largest classes, has at most :data:`MOST` or :data:`WHOLE` rows, or
    fewer if memory is short. `codes` are the classes of the rows; None for a regression.
    """
    sizes = np.zeros(P, np.int64)
    sizes[parts.parts] = np.diff(parts.bounds)
    sizes = comm.allreduce(sizes)
    max_rows = MOST if sizes.sum() > WHOLE else WHOLE
    with comm.agreed():
        room = options.memory_limit - nbytes(parts.X)
        while max_rows > _LEAST and bytes_needed(max_rows) * threads.current() > room:
            max_rows //= 2
        need = bytes_needed(_LEAST) * threads.current()
        what = f"a kernel matrix of {_LEAST} rows in each thread"
        memory.require(need, room, what, "allow more memory (--memory-limit) or use fewer threads (--threads)")
    max_rows = int(comm.allreduce(np.array([max_rows]), "min")[0])
    before = np.cumsum(sizes) - sizes
    result: list[Piece] = []
    for number, rows in parts:
        classes = np.sort(np.unique(codes[rows], return_counts=True)[1]) if codes is not None else np.zeros(0, np.int64)
        m = rows.stop - rows.start
        fits = SETTINGS * m * len(classes) * np.dtype(np.float32).itemsize <= COEFFICIENTS
        problem = int(classes[-2:].sum()) if len(classes) > 1 and fits else m
        labels = _cut(parts.X[rows], max_rows, options) if problem > max_rows else np.zeros(m, np.int32)
        first = int(before[number])
        for piece in range(int(labels.max(initial=0)) + 1):
            chosen = rows.start + np.flatnonzero(labels == piece)
            result.append(Piece(number, chosen, first, f"{number:06d}-{piece:04d}-of-{max_rows}"))
            first += len(chosen)
    return result


def _cut(X: Rows, max_rows: int, options: DualOptions) -> NDArray[np.int32]:
    """Piece of each row of a large part; a piece consists of neighbouring rows, since kernels depend on near rows.

    With a precomputed kernel there are no distances, and rows are dealt at random.
    """
    m = X.shape[0]
    count = -(-m // min(ROWS, max_rows))
    if isinstance(options.kernel, Precomputed):
        return np.asarray(np.random.default_rng(options.seed).permutation(m) % count, np.int32)
    return divide("kbalance", count, X, Communicator(), options.seed).labels


def over_pieces(
    pieces: list[Piece], name: str, judge: Callable[[Piece], Kept], checkpoint: Checkpoint | None,
    advance: Callable[[Piece], None],
) -> AbstractContextManager[Iterator[tuple[Piece, Kept]]]:  # fmt: skip
    """Context with an iterator of pieces, largest first, each with the result of ``judge(piece)``.

    If there are enough pieces, they run in parallel; otherwise the kernels of one piece do. A checkpoint stores the
    result under `name` and the piece's name, and a result found there is used; ``advance(piece)`` is called after each
    piece.
    """
    order, lock = sorted(pieces, key=lambda piece: -len(piece.rows)), threading.Lock()

    def work(piece: Piece) -> tuple[Piece, Kept]:
        result = remembered(checkpoint, f"{name}-{piece.name}", lambda: judge(piece))
        with lock:
            advance(piece)
        return piece, result

    return threads.in_order(work, [(piece,) for piece in order], len(order) >= 2 * threads.current())


def check_settings(total: int, each: int, room: int, what: str) -> None:
    """Refuse more settings than fit in `room` bytes; each takes `each` bytes besides its results."""
    memory.require(total * (each + _SETTING), room, what, "compare fewer values")


# Reasoned, not measured: C in ratios of 2.8 (quick: 10), gamma of 2.2 (quick: 5.7).
SETTINGS, QUICK = 10, 5  # number of values of C and of gamma in the default grid
_C = 0.1, 1000.0
_GAMMA = 0.25, 256.0  # in units of 1 / median squared distance within a part; the best values are far above 1
_NORMAL = 1e-300  # smallest distance of which 256 over it is a number
_SAMPLE = 256  # rows of a part whose distances are sampled


@dataclass(frozen=True)
class Settings:
    """Values of C, ascending, kernels that differ in gamma, ascending, and for regression values of epsilon."""

    Cs: tuple[float, ...]
    kernels: tuple[Kernel, ...]
    epsilons: tuple[float, ...] = ()

    @property
    def axes(self) -> dict[str, tuple[float, ...]]:
        """Values of each parameter; without gamma if the kernel has none."""
        epsilons = {"epsilon": self.epsilons} if self.epsilons else {}
        gammas = {"gamma": tuple(kernel.gamma for kernel in self.kernels)} if self.kernels[0].has("gamma") else {}
        return {"C": self.Cs, **epsilons, **gammas}


def settings(options: SVMOptions, X: AnyRows, pieces: list[NDArray[np.int64]], comm: Communicator) -> Settings:
    """The settings to compare; collective.

    Parameters
    ----------
    options : SVMOptions
    X : ndarray, CSR or rows in a file, shape (n_local, d)
        This rank's rows; of each piece, a sample is read.
    pieces : list of ndarray of int64
        The rows of each piece that is searched.
    comm : Communicator
    """
    count = QUICK if options.quick else SETTINGS
    if options.C == GRID:
        Cs = tuple(spaced(*_C, count))
    else:
        Cs = options.C if isinstance(options.C, tuple) else (float(options.C),)
    return Settings(Cs, kernels(options, X, pieces, _GAMMA, count, comm))


def kernels(
    options: DualOptions, X: AnyRows, pieces: list[NDArray[np.int64]], ends: tuple[float, float], count: int,
    comm: Communicator,
) -> tuple[Kernel, ...]:  # fmt: skip
    """One kernel per gamma; collective.

    A default grid has `count` values of gamma between `ends`, in units of 1 over the median squared distance within a
    piece.
    """
    kind = options.kernel_with(1.0).declared
    gammas: Any = options.gamma
    if gammas != GRID:
        if not isinstance(gammas, tuple):
            gammas = (numeric_gamma(X, gammas, comm, options.kernel),)
    elif kind.of_distance and kind.has_width:
        distance = _median(options.kernel_with(1.0), X, pieces, comm)  # squared, unless gamma is 1 / length
        low, high = (np.sqrt(times) if kind.per_length else times for times in ends)
        gammas = tuple(spaced(low / distance, high / distance, count))
    else:
        gammas = (numeric_gamma(X, "scale", comm, options.kernel) if kind.has_width else 1.0,)
    return tuple(options.kernel_with(gamma) for gamma in gammas)


def _median(kernel: Kernel, X: AnyRows, pieces: list[NDArray[np.int64]], comm: Communicator) -> float:
    """Median over all pieces of the median distance, as the kernel defines it, between rows of a piece; collective.

    Returns 1 if all rows are equal. Each rank sends its medians to all ranks.

    Raises
    ------
    InputError
        On all ranks: the distances are so small or large that gammas around 1 over them overflow or vanish.
    """
    medians = np.array([_typical(kernel, X[rows[:: -(-len(rows) // _SAMPLE)]]) for rows in pieces])
    distances = comm.allgather(medians)
    distances = distances[distances > 0]
    distance = float(np.median(distances)) if len(distances) else 1.0
    with comm.uncounted(), comm.agreed():
        if not _NORMAL < distance < 1 / _NORMAL:
            raise InputError(
                f'gamma = "grid": the distances of the features are so {"small" if distance < 1 else "large"}, about '
                f"{distance:g}, that 1 over them is no number of double precision; standardise the features"
            )
    return distance


def _typical(kernel: Kernel, X: Rows) -> float:
    if kernel.separable:  # Euclidean distances, in units in which standardised features have the natural width
        d = X.shape[1]
        return _typical(Kernel("laplacian"), X) / math.sqrt(d) * kernel.declared.typical_distance(d)
    points = kernel.points(X.astype(np.float64))
    compared = kernel.arguments(points, points)
    apart = compared[np.triu_indices(len(points), 1)]
    if kernel.declared.per_length and kernel.shifts:
        apart = np.sqrt(apart)
    apart = apart[apart > 1e-12 * apart.max(initial=0.0)]
    return float(np.median(apart)) if len(apart) else 0.0
