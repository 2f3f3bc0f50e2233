"""What the scikit-learn faces of the families share: scikit-learn's own checks, refused on all ranks alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, validate_data

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.errors import InputError


def validated(estimator: BaseEstimator, *args: Any, **kwargs: Any) -> Any:
    """scikit-learn's ``validate_data``; what it refuses, all ranks refuse."""
    try:
        return validate_data(estimator, *args, **kwargs)
    except ValueError as error:
        raise InputError(str(error)) from error


def checked_weights(sample_weight: ArrayLike, n: int) -> NDArray[np.float64]:
    """One finite weight of at least 0 a row; a rank's may all be 0."""
    try:
        weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, ensure_min_samples=0)
    except ValueError as error:
        raise InputError(f"sample_weight: {error}") from error
    if weights.shape != (n,):
        raise InputError(f"sample_weight has shape {weights.shape}; {n} rows need {n} weights")
    if (weights < 0).any():
        raise InputError("sample_weight: negative weights cannot be used")
    return np.asarray(weights)


def shared_seed(random_state: Any, comm: Communicator) -> int:
    """A seed that all ranks share, also when `random_state` is None."""
    drawn = check_random_state(random_state).randint(2**31 - 1)
    return int(comm.bcast(np.array([drawn], np.int64))[0])


def rows_to_predict(X: Any, dtype: str, n_features: int) -> Rows:
    """Rows as a model of so many features has them: dense or CSR, of its dtype, all numbers finite.

    Raises
    ------
    InputError
    """
    try:
        X = check_array(X, accept_sparse="csr", dtype=dtype, order="C", ensure_min_samples=0)
    except ValueError as error:
        raise InputError(str(error)) from error
    if X.shape[1] != n_features:
        raise InputError(f"{X.shape[1]} features in the rows to predict, {n_features} in the model")
    return X
