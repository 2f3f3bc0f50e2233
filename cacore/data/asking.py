"""The doors of the estimators: all ranks make the same call, with the same parameters, before anything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from cacore.comm import Communicator, Unquoted, collective, require_same

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


def same_fit(estimator: BaseEstimator, comm: Communicator, own: tuple[str, ...] = ()) -> None:
    """Raise an InputError on all ranks if they fit estimators of other classes or parameters; collective.

    `own` names parameters of which each rank has its own.
    """
    if comm.size > 1:
        parameters = estimator.get_params(deep=False)
        for name in ("comm", *own):
            parameters.pop(name, None)
        _same_call(estimator, "fit", comm, parameters)


@contextmanager
def asking(estimator: BaseEstimator, call: str, **arguments: Any) -> Iterator[Communicator]:
    """Provide the communicator for a call of a fitted estimator, once all ranks make the same call; collective.

    Raises
    ------
    InputError
        On all ranks: another call, other arguments, or an estimator that only some ranks have fitted.
    NotFittedError
        No rank has fitted the estimator.
    """
    fitted = hasattr(estimator, "model_")
    if fitted or estimator.comm is not None:
        with collective(estimator.comm) as comm:
            _same_call(estimator, call, comm, {"fitted": fitted, **arguments})
            if fitted:
                yield comm
                return
    check_is_fitted(estimator, "model_")


def _same_call(estimator: BaseEstimator, call: str, comm: Communicator, given: dict[str, Any]) -> None:
    with comm.uncounted():
        require_same({"call": Unquoted(f"{type(estimator).__name__}.{call}"), **given}, comm)
