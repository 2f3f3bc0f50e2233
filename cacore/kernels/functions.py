"""The kernels of the package (Tables 2.1 and 3.1), one declaration each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cacore.kernels.registry import KernelKind, distance, exp, register


def _linear_derivative(t: Any, gamma: float, coef0: float, degree: int) -> Any:
    return np.ones_like(t)


register(KernelKind("linear", "x.z", False, None, _linear_derivative, libsvm="linear"))


def _polynomial(row: Any, a: Any, b: Any, gamma: Any, coef0: Any, degree: Any) -> None:  # pragma: no cover
    for j in range(row.size):
        x = gamma * row[j] + coef0
        value, left = row.dtype.type(1.0), degree
        while left:  # squarings and products, as LIBSVM: 31 of them at most
            if left & 1:
                value *= x
            left >>= 1
            x *= x
        row[j] = value


def _polynomial_derivative(t: Any, gamma: float, coef0: float, degree: int) -> Any:
    return degree * gamma * (gamma * t + coef0) ** max(degree - 1, 0)


register(
    KernelKind(
        "polynomial", "(gamma x.z + coef0)^degree", False, _polynomial, _polynomial_derivative,
        ("gamma", "coef0", "degree"), ("poly",), "polynomial",
    )
)  # fmt: skip


def _gaussian(row: Any, a: Any, b: Any, gamma: Any, coef0: Any, degree: Any) -> None:  # pragma: no cover
    for j in range(row.size):
        row[j] = exp(-gamma * distance(row[j], a, b[j]))


def _gaussian_derivative(t: Any, gamma: float, coef0: float, degree: int) -> Any:
    return -gamma * np.exp(-gamma * t)


register(
    KernelKind(
        "gaussian", "exp(-gamma |x-z|^2)", True, _gaussian, _gaussian_derivative, ("gamma",), ("rbf",), "rbf"
    )
)  # fmt: skip


def _sigmoid(row: Any, a: Any, b: Any, gamma: Any, coef0: Any, degree: Any) -> None:  # pragma: no cover
    for j in range(row.size):
        row[j] = math.tanh(gamma * row[j] + coef0)


def _sigmoid_derivative(t: Any, gamma: float, coef0: float, degree: int) -> Any:
    return gamma * (1.0 - np.tanh(gamma * t + coef0) ** 2)


register(
    KernelKind(
        "sigmoid", "tanh(gamma x.z + coef0)", False, _sigmoid, _sigmoid_derivative, ("gamma", "coef0"), (), "sigmoid"
    )
)  # fmt: skip
