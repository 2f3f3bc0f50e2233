"""Explanations of models in parts: those of the parts, added up as their answers are.

The parts that answer for a row, and their weights, do not depend on a coalition: they are those of the row itself. So
the value of the empty coalition is what the row's own parts answer for the baselines, and may differ between rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, Communicator, Unquoted, collective, require_same
from cacore.data.dataset import Columns
from cacore.data.rows import AnyRows, Rows, RowsLike, dense, gather_rows
from cacore.data.shuffle import Shuffle
from cacore.data.standardize import Standardizer
from cacore.data.stored import StoredRows, in_memory
from cacore.data.validation import rows_to_predict
from cacore.errors import InputError
from cacore.explain import ABSENT
from cacore.explain.explanation import SAMPLE, Explanation, Groups, Players, answered, outcome, require_columns
from cacore.explain.shapley import Game, require_factors
from cacore.svm.decision import Expansion


class Whole(Protocol):
    """Attributes of a model that explanations use besides its functions."""

    dtype: str
    standardizer: Standardizer | None
    source: dict[str, Any]

    @property
    def n_features(self) -> int:
        """Number of features of a row."""

    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""


class Explained(Whole):
    """The part of :class:`partition.parts_model.InParts` that explains answers."""

    method: str
    route: str
    parts: dict[int, Any]

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        comm: CommLike = None, interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Shapley values of each feature for the model's answer to each row; a collective call.

        Parameters
        ----------
        X : array-like or CSR, shape (n_local, d)
            This rank's rows. Not changed.
        background : array-like or CSR, shape (b, d), or "absent", optional
            Rows over which the answer without a feature is averaged, the same on all ranks; by default up to 100 of all
            ranks' rows, drawn with a fixed seed. "absent": the kernel's factor of a feature that is absent is 1.
        groups : sequence of sequences of int or str, optional
            Numbers or names of features that enter together, such as the columns of one category.
        comm : mpi4py communicator, Communicator or None
            As for `predict`.
        interactions : bool
            Also compute the interactions of pairs of features.

        Returns
        -------
        Explanation
            For a regression and an SVM of two classes, one output: the prediction, or the decision. Otherwise one per
            target or class of a ridge regression, and one per pair of classes of an SVM, positive for the first.

        Raises
        ------
        InputError
            On all ranks: the kernel is no product over the features (gaussian, l1 and the wendland products are), the
            metric is full, or wrong rows or groups.

        Notes
        -----
        Exact, see :mod:`cacore.explain.shapley`: about 3 b m d^2 flops per row for a model of m support vectors, and
        1 + d / 4 times as many with interactions. The communication is that of a prediction with d + 1 answers, and one
        more for each pair.
        """
        with self._ranks(comm, "explain") as ranks, ranks.phase("predict"):
            _require_alike(background, groups, interactions, ranks)
            with ranks.agreed():
                if self.route == "oracle":
                    raise InputError(f"{self.method} is an oracle: it needs the true targets and cannot predict")
                held = {part: self.expansion(part) for part in self.parts}
                players = _players(self, [*held.values(), *self.everywhere()], groups)
            Z = self._received(X, ranks)
            game = Game(_baselines(self, Z, background, ranks), _of_columns(self, players), interactions)
            shape = game.players + 1 + game.pairs, len(self.outputs())
            values = self._answered(Z, ranks, shape, lambda part, rows: answered(held[part], rows, game))
            for f in self.everywhere():
                values += answered(f, Z, game)
        return outcome(values, X, players, self.outputs(), self.single_output(), interactions)

    def expansion(self, part: int) -> Expansion:
        """One of this rank's parts as a function of rows, with the outputs of :meth:`explain`."""
        raise NotImplementedError

    def everywhere(self) -> list[Expansion]:
        """Functions that every rank holds, and that are added to the parts' answers."""
        return []

    def single_output(self) -> bool:
        """True if there is a single output without an axis of its own."""
        return len(self.outputs()) == 1

    def _ranks(self, comm: CommLike, call: str) -> AbstractContextManager[Communicator]:
        raise NotImplementedError

    def _received(self, X: RowsLike | StoredRows, comm: Communicator) -> AnyRows:
        raise NotImplementedError

    def _answered(
        self, Z: AnyRows, comm: Communicator, shape: tuple[int, ...], answer: Callable[[int, Rows], NDArray[Any]]
    ) -> NDArray[np.float64]:
        raise NotImplementedError


def explained_alone(
    model: Whole, f: Expansion, X: RowsLike, background: RowsLike | str | None, groups: Groups | None, comm: CommLike,
    interactions: bool,
) -> Explanation:  # fmt: skip
    """Shapley values of this rank's rows for a model that every rank holds, a function of rows; collective."""
    with collective(comm) as ranks, ranks.phase("predict"):
        _require_alike(background, groups, interactions, ranks)
        with ranks.agreed():
            players = _players(model, [f], groups)
            Z = rows_to_predict(X, model.dtype, model.n_features, model.standardizer, model.source)
        game = Game(_baselines(model, Z, background, ranks), _of_columns(model, players), interactions)
    single = len(model.outputs()) == 1
    return outcome(answered(f, Z, game), X, players, model.outputs(), single, interactions)


def _require_alike(
    background: RowsLike | str | None, groups: Groups | None, interactions: bool, comm: Communicator
) -> None:
    """Raise an InputError on all ranks if they are given different groups or kinds of background; collective."""
    kind = background if background is None or isinstance(background, str) else Unquoted("rows")
    with comm.uncounted():
        require_same({"background": kind, "groups": groups, "interactions": interactions}, comm)


def _players(model: Whole, functions: list[Expansion], groups: Groups | None) -> Players:
    """The players, once the model has Shapley values in closed form."""
    require_columns(model.standardizer)
    for f in functions:
        require_factors(f.kernel)
    names = Columns.of_source(model.source).features or tuple(f"x{j}" for j in range(model.n_features))
    return Players.grouped(groups, names)


def _of_columns(model: Whole, players: Players) -> NDArray[np.int64]:
    """Player of each column that kernels see."""
    return players.of if model.standardizer is None else model.standardizer.of_columns(players.of)


def _baselines(
    model: Whole, Z: AnyRows, background: RowsLike | str | None, comm: Communicator
) -> NDArray[np.float64] | None:
    """Standardised rows of the background, the same on all ranks, or None; collective."""
    if background is None:
        return np.asarray(dense(sampled(Z, comm)), np.float64)
    if isinstance(background, str):
        with comm.agreed():
            if background != ABSENT:
                raise InputError(f"background = {background!r}: give rows, or {ABSENT!r}")
        return None
    with comm.agreed():
        try:
            rows = rows_to_predict(
                background, model.dtype, model.n_features, model.standardizer, model.source, "its rows"
            )  # fmt: skip
        except InputError as error:
            raise InputError(f"background: {error}") from error
        if not rows.shape[0]:
            raise InputError("background: there are no rows; give one at least")
        baselines = np.ascontiguousarray(dense(rows), np.float64)
    with comm.uncounted():
        require_same({"background": baselines}, comm)
    return baselines


def sampled(X: AnyRows, comm: Communicator) -> Rows:
    """Up to 100 of all ranks' rows, the same on every rank and for any number of ranks; collective."""
    with comm.uncounted():
        first, n = comm.offset(X.shape[0])
    chosen = Shuffle(max(n, 1), 0).row(np.arange(min(SAMPLE, n)))
    here = np.sort(chosen[(chosen >= first) & (chosen < first + X.shape[0])]) - first
    return gather_rows(in_memory(X[here]), comm)
