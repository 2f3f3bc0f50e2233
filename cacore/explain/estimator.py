"""Estimators that explain their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cacore.data.asking import asking
from cacore.data.rows import RowsLike

if TYPE_CHECKING:
    from cacore.explain.explanation import Explanation, Groups


class Explains:
    """Base of the estimators with a fitted `model_` that has the method `explain`."""

    def explain(
        self, X: RowsLike, background: RowsLike | str | None = None, groups: Groups | None = None,
        interactions: bool = False,
    ) -> Explanation:  # fmt: skip
        """Exact Shapley values of each feature for the answer to each row of `X`; with `comm`, collective.

        Parameters and result are those of the model, see :meth:`partition.model.InParts.explain`: `background` are the
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
            found: Explanation = vars(self)["model_"].explain(X, background, groups, interactions=interactions)
            return found
        with asking(self, "explain") as comm:
            model: Any = vars(self)["model_"]
            return model.explain(X, background, groups, comm, interactions)  # type: ignore[no-any-return]
