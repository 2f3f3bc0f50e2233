"""Explanations of predictions: players, baselines and results, and the estimators' methods that return them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.data.rows import AnyRows, RowsLike
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.explain.shapley import Game, interactions, values
from cacore.svm.decision import Expansion

Groups = Sequence[Sequence[int | str]]


@dataclass(frozen=True)
class Explanation:
    """Shapley values of this rank's rows.

    Attributes
    ----------
    values : ndarray of float64, shape (n_local, g) or (n_local, g, q)
        What each of g players adds to each of q outputs, in units of the outputs; two dimensions for a single number
        per row.
    base : ndarray of float64, shape (n_local,) or (n_local, q)
        Value without any player. With the row's values it adds up to the model's answer for the row.
    data : ndarray of float64, shape (n_local, d)
        The rows as they were given, in the features' own units.
    players : tuple of str
        Names of the features, or of groups of them.
    members : tuple of tuple of int
        The features of each player.
    outputs : tuple of str
        Names of the outputs: a target, a class, or a pair of classes.
    interactions : ndarray of float64, shape (n_local, g, g) or (n_local, g, g, q), or None
        If they were asked for: off the diagonal, half of the Shapley interaction index of two players; on it, the rest
        of a player's value. A row adds up to the player's value, as in shap's interaction values.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_friedman1
    >>> from cakrr import DKRR
    >>> X, y = make_friedman1(200, random_state=0)
    >>> model = DKRR(sigma=6.0, lam=1e-6).fit(X, y)
    >>> explanation = model.explain(X[:2], background=X[:50])  # an Explanation
    >>> bool(np.allclose(explanation.values.sum(axis=1) + explanation.base, model.predict(X[:2])))
    True
    """

    values: NDArray[np.float64]
    base: NDArray[np.float64]
    data: NDArray[np.float64]
    players: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    outputs: tuple[str, ...]
    interactions: NDArray[np.float64] | None = None

    @property
    def base_values(self) -> NDArray[np.float64]:
        """The same as `base`, under shap's name."""
        return self.base

    def importances(self) -> NDArray[np.float64]:
        """Mean of |value| over this rank's rows, shape (g,) or (g, q); 0 without rows."""
        return np.asarray(np.abs(self.values).sum(axis=0) / max(1, len(self.values)))

    def to_shap(self) -> Any:
        """The same as a `shap.Explanation`, for shap's plots.

        Raises
        ------
        InputError
            shap is not installed.
        """
        try:
            import shap
        except ImportError as error:
            raise InputError("shap is not installed: pip install shap") from error
        data = np.column_stack([self.data[:, list(each)].mean(axis=1) for each in self.members])
        outputs = None if self.values.ndim == 2 else list(self.outputs)
        return shap.Explanation(self.values, self.base, data, feature_names=list(self.players), output_names=outputs)


@dataclass(frozen=True)
class Players:
    """Players of the game: features, or groups of features.

    Attributes
    ----------
    of : ndarray of int64, shape (d,)
        Player of each feature.
    names : tuple of str
    """

    of: NDArray[np.int64]
    names: tuple[str, ...]

    @classmethod
    def grouped(cls, groups: Groups | None, names: Sequence[str]) -> Players:
        """One player for each group of features, in the place of its first feature, and one for each other feature.

        `names` are those of all features, by which `groups` may name them.

        Raises
        ------
        InputError
            A feature that does not exist, or is in two groups; an empty group.
        """
        first = np.arange(len(names))
        seen: dict[int, int] = {}
        for number, group in enumerate(_listed(groups)):
            places = [_place(feature, names) for feature in group]
            if not places:
                raise InputError(f"group {number} has no features")
            for place in places:
                if place in seen:
                    both = f"groups {seen[place]} and {number}; give it one"
                    raise InputError(
                        f"feature {names[place]} is in {both if seen[place] != number else 'a group twice'}"
                    )
                seen[place] = number
            first[places] = min(places)
        heads, of = np.unique(first, return_inverse=True)
        members = [np.flatnonzero(of == player) for player in range(len(heads))]
        return cls(of.astype(np.int64), tuple("+".join(names[int(place)] for place in each) for each in members))

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The features of each player."""
        return tuple(tuple(np.flatnonzero(self.of == player).tolist()) for player in range(len(self.names)))


def _listed(groups: Groups | None) -> list[list[int | str]]:
    """The groups as lists."""
    try:
        listed = [] if groups is None else list(groups)
        if not any(isinstance(group, str) for group in listed):
            return [list(group) for group in listed]
    except TypeError:
        pass  # refused below
    raise InputError(f"groups = {groups!r}: give a list of lists of features, such as [[0, 1], [4, 5]]")


def _place(feature: int | str, names: Sequence[str]) -> int:
    """Place of a feature, given by its number or name; a text of digits that is no name is a number."""
    if isinstance(feature, str):
        if feature in names:
            return list(names).index(feature)
        if not feature.isdecimal():
            raise InputError(f"groups: there is no feature {feature!r}; there are {', '.join(names[:8])}")
        feature = int(feature)
    try:
        place = operator.index(feature)
    except TypeError as error:
        raise InputError(f"groups: {feature!r} is neither the number nor the name of a feature") from error
    if not 0 <= place < len(names):
        raise InputError(f"groups: there is no feature {place}; they are numbered from 0 to {len(names) - 1}")
    return place


def require_columns(standardizer: Standardizer | None) -> None:
    """Raise an InputError if features are mixed before the kernel sees them."""
    if standardizer is not None and standardizer.root is not None and standardizer.root.ndim == 2:
        raise InputError(
            "Shapley values in closed form need a metric that keeps features apart, and this one is full: train with "
            "metric diagonal or lengths, or use sklearn.inspection.permutation_importance, or shap's samplers"
        )


def outcome(
    values: NDArray[np.float64], X: RowsLike, players: Players, outputs: tuple[str, ...], single: bool,
    interactions: bool,
) -> Explanation:  # fmt: skip
    """The explanation of rows, given what :func:`answered` returns."""
    g = len(players.names)
    each, base, pairs = (
        values[:, :g],
        values[:, g],
        _matrices(values[:, :g], values[:, g + 1 :]) if interactions else None,
    )
    if single:
        each, base, pairs = each[:, :, 0], base[:, 0], None if pairs is None else pairs[..., 0]
    data = np.asarray(X.toarray() if hasattr(X, "toarray") else X, np.float64)
    return Explanation(each, base, data, players.names, players.members, outputs, pairs)


def _matrices(each: NDArray[np.float64], pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """:attr:`Explanation.interactions` from the players' values and the indices of pairs."""
    g = each.shape[1]
    first, second = np.triu_indices(g, 1)
    out = np.zeros((len(each), g, *each.shape[1:]))
    out[:, first, second] = out[:, second, first] = pairs / 2.0
    out[:, np.arange(g), np.arange(g)] = each - out.sum(axis=2)
    return out


def answered(f: Expansion, Z: AnyRows, game: Game) -> NDArray[np.float64]:
    """Values of the players, that of the empty coalition, and interactions of pairs if they are asked for.

    Shape (n, g + 1, q) or (n, g + 1 + g (g - 1) / 2, q).
    """
    g = game.players
    out = np.empty((Z.shape[0], g + 1 + game.pairs, len(f.b)))
    if len(out):
        out[:, :g], out[:, g], out[:, g + 1 :] = values(f, Z, game), game.base(f), interactions(f, Z, game)
    return out


def names_of_decisions(classes: NDArray[Any]) -> tuple[str, ...]:
    """Names of an SVM's decisions: the second of two classes, or the pairs of more."""
    if len(classes) == 2:
        return (str(classes[1]),)
    return tuple(f"{first}, not {second}" for first, second in combinations(classes.tolist(), 2))


class Explains:
    """Base of the estimators with a fitted `model_` that has the method `explain`."""

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Exact Shapley values of each feature for the answer to each row of `X`; with `comm`, collective.

        Parameters and result are those of the model, see :meth:`partition.parts_model.InParts.explain`: `background`
        are the
        rows over which the answer without a feature is averaged, `groups` lists features that enter together. With
        `interactions`, the result has those of pairs of features, too.

        Raises
        ------
        InputError
            The kernel is no product over the features (gaussian, l1 and the wendland products are), the metric is full,
            wrong rows or groups, or a blend of several classifiers, whose probabilities do not add up.
        NotFittedError
        """
        if getattr(self, "comm", None) is None:
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self, "model_")
            explanation: Explanation = vars(self)["model_"].explain(X, background, groups, interactions=interactions)
            return explanation
        from cacore.data.estimators import asking  # scikit-learn, which commands do without

        with asking(self, "explain") as comm:
            model: Any = vars(self)["model_"]
            return model.explain(X, background, groups, comm, interactions)  # type: ignore[no-any-return]
