"""Steps of an explanation that models in parts and models of one function share: players, baselines, agreement.

The parts that answer for a row, and their weights, do not depend on a coalition: they are those of the row itself. So
the value of the empty coalition is what the row's own parts answer for the baselines, and may differ between rows.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.comm import CommLike, Communicator, Unquoted, collective, require_same
from cacore.data.encoding import Columns
from cacore.data.rows import AnyRows, RowsLike, dense
from cacore.data.standardize import Standardizer
from cacore.data.validation import features_of, rows_to_predict
from cacore.errors import InputError
from cacore.explain import ABSENT
from cacore.explain.explanation import Explanation, Groups, Players, answered, outcome, require_columns
from cacore.explain.shapley import Game, require_factors
from cacore.io import training_rows
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


def explained_alone(
    model: Whole, f: Expansion, X: RowsLike, background: RowsLike | str | None, groups: Groups | None, comm: CommLike,
    interactions: bool,
) -> Explanation:  # fmt: skip
    """Shapley values of this rank's rows for a model that every rank holds, a function of rows; collective."""
    with collective(comm) as ranks, ranks.phase("predict"):
        require_alike(background, groups, interactions, ranks)
        with ranks.agreed():
            players = players_of(model, [f], groups)
            X = features_of(X, model.source)
            Z = rows_to_predict(X, model.dtype, model.n_features, model.standardizer, model.source)
        game = Game(baselines_of(model, Z, background, ranks), of_columns(model, players), interactions)
    single = len(model.outputs()) == 1
    return outcome(answered(f, Z, game), X, players, model.outputs(), single, interactions)


def require_alike(
    background: RowsLike | str | None, groups: Groups | None, interactions: bool, comm: Communicator
) -> None:
    """Raise an InputError on all ranks if they are given different groups or kinds of background; collective."""
    kind = background if background is None or isinstance(background, str) else Unquoted("rows")
    with comm.uncounted():
        require_same({"background": kind, "groups": groups, "interactions": interactions}, comm)


def players_of(model: Whole, functions: list[Expansion], groups: Groups | None) -> Players:
    """The players, once the model has Shapley values in closed form."""
    require_columns(model.standardizer)
    for f in functions:
        require_factors(f.kernel)
    columns = Columns.of_source(model.source)
    if columns.table is not None:  # the features of a column enter together
        of_table = Players.grouped(groups, columns.table.names)
        return Players(of_table.of[columns.table.column_of], of_table.names)
    return Players.grouped(groups, columns.features or tuple(f"x{j}" for j in range(model.n_features)))


def of_columns(model: Whole, players: Players) -> NDArray[np.int64]:
    """Player of each column that kernels see."""
    return players.of if model.standardizer is None else model.standardizer.of_columns(players.of)


def baselines_of(
    model: Whole, Z: AnyRows, background: RowsLike | str | None, comm: Communicator
) -> NDArray[np.float64] | None:
    """Standardised rows of the background, the same on all ranks, or None; collective."""
    if background is None:
        with comm.agreed():
            background = training_rows.background(model.source, model.n_features)
    if background is None:
        with comm.uncounted():
            count = comm.offset(Z.shape[0])[1]
        with comm.agreed():
            if count == 1:
                raise InputError(
                    "background: a single row is compared with itself, so that all values would be 0, and the model "
                    "has no training rows in it: give rows for comparison (--background DATA)"
                )
        return np.asarray(dense(training_rows.sampled(Z, comm)), np.float64)
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
