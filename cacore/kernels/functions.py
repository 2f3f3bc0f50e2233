"""The kernels of the package, one declaration each: those of Tables 2.1 and 3.1, and more kernels of a distance.

In formulas |x-z| is the Euclidean distance and |x-z|_1 the l1 distance. Kernels that decay with distance do not reach 0
but end at a tiny positive value, which avoids denormal numbers (:func:`cacore.kernels.evaluate.exp64`). Wendland's
kernels are exactly 0 beyond their radius: the radial ones of |x-z|, the products of the largest |x_k-z_k|.
"""

from __future__ import annotations

import math

import numpy as np

from cacore.arrays import Reals
from cacore.kernels.registry import (
    FEATURES,
    L1,
    PRODUCT,
    SQUARED,
    KernelKind,
    distance,
    exp,
    exp_near,
    length,
    register,
)


def _linear_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    return np.ones_like(t)


register(KernelKind("linear", "x.z", PRODUCT, None, _linear_derivative, libsvm="linear"))


def _polynomial(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    for j in range(row.size):
        x = gamma * row[j] + coef0
        value, exponent = row.dtype.type(1.0), degree
        while exponent:  # exponentiation by squaring, as in LIBSVM: at most 31 steps
            if exponent & 1:
                value *= x
            exponent >>= 1
            x *= x
        row[j] = value


def _polynomial_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    return degree * gamma * (gamma * t + coef0) ** max(degree - 1, 0)


register(
    KernelKind(
        "polynomial", "(gamma x.z + coef0)^degree", PRODUCT, _polynomial, _polynomial_derivative,
        ("gamma", "coef0", "degree"), ("poly",), "polynomial",
    )
)  # fmt: skip


def _gaussian(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    for j in range(row.size):
        row[j] = exp(-gamma * distance(row[j], a, b[j]))


def _gaussian_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    return -gamma * np.exp(-gamma * t)


def _gaussian_factor(
    row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int
) -> None:  # pragma: no cover - compiled
    for j in range(row.size):
        gap = a - b[j]
        row[j] *= exp(-gamma * (gap * gap))


register(
    KernelKind(
        "gaussian", "exp(-gamma |x-z|^2)", SQUARED, _gaussian, _gaussian_derivative, ("gamma",), ("rbf",), "rbf",
        factor=_gaussian_factor,
    )
)  # fmt: skip


def _sigmoid(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    # As vector code, 2 ns instead of 9 per value: Pade's approximant [7/6] near 0, whose error is below the rounding up
    # to the end, and (1 - q) / (1 + q) with q = exp(-2 |x|) beyond it.
    real, unit, end = row.dtype.type, row.dtype.type(1.0), row.dtype.type(0.5)
    for j in range(row.size):
        x = gamma * row[j] + coef0
        size = abs(x)
        q, near = exp(-real(2.0) * size), min(size, end)
        s = near * near
        above = near * (real(135135.0) + s * (real(17325.0) + s * (real(378.0) + s)))
        below = real(135135.0) + s * (real(62370.0) + s * (real(3150.0) + s * real(28.0)))
        value = above / below if size < end else (unit - q) / (unit + q)
        row[j] = math.copysign(value, x) if x == x else x


def _sigmoid_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    return gamma * (1.0 - np.tanh(gamma * t + coef0) ** 2)


register(
    KernelKind(
        "sigmoid", "tanh(gamma x.z + coef0)", PRODUCT, _sigmoid, _sigmoid_derivative, ("gamma", "coef0"), (), "sigmoid"
    )
)  # fmt: skip


def _laplacian(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    for j in range(row.size):
        row[j] = exp(-gamma * length(row[j], a, b[j]))


def _laplacian_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    r = np.sqrt(t)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(t > 0, -gamma / (2.0 * r) * np.exp(-gamma * r), 0.0)


register(
    KernelKind(
        "laplacian", "exp(-gamma |x-z|)", SQUARED, _laplacian, _laplacian_derivative, ("gamma",), per_length=True
    )
)  # fmt: skip

# Largest r: beyond it exp(-r) no longer decreases, so its polynomial factor must not grow. They are the negated limits
# of exp, `_LEAST64` and `_LEAST32` of cacore/kernels/evaluate.py, and stand in cakernels/onnx/kernels.py as well.
_FAR64, _FAR32 = 345.0, 43.0


def _matern32(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    unit, far = row.dtype.type(1.0), row.dtype.type(_FAR32 if row.itemsize == 4 else _FAR64)
    scale = math.sqrt(row.dtype.type(6.0)) * math.sqrt(gamma)
    for j in range(row.size):
        r = min(far, scale * length(row[j], a, b[j]))
        row[j] = (unit + r) * exp_near(-r)


def _matern32_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    return -3.0 * gamma * np.exp(-np.sqrt(6.0 * gamma * t))


register(
    KernelKind(
        "matern32", "(1 + r) exp(-r), r = sqrt(6 gamma) |x-z|", SQUARED, _matern32, _matern32_derivative, ("gamma",)
    )
)  # fmt: skip


def _matern52(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    unit, third = row.dtype.type(1.0), row.dtype.type(1.0 / 3.0)
    far, scale = (
        row.dtype.type(_FAR32 if row.itemsize == 4 else _FAR64),
        math.sqrt(row.dtype.type(10.0)) * math.sqrt(gamma),
    )
    for j in range(row.size):
        r = min(far, scale * length(row[j], a, b[j]))
        row[j] = (unit + r * (unit + third * r)) * exp_near(-r)


def _matern52_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    r = np.sqrt(10.0 * gamma * t)
    return -5.0 / 3.0 * gamma * (1.0 + r) * np.exp(-r)


register(
    KernelKind(
        "matern52", "(1 + r + r^2/3) exp(-r), r = sqrt(10 gamma) |x-z|", SQUARED, _matern52, _matern52_derivative,
        ("gamma",),
    )
)  # fmt: skip


def _l1(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    for j in range(row.size):
        row[j] = exp(-gamma * row[j])


def _l1_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    return -gamma * np.exp(-gamma * t)


def _l1_factor(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    for j in range(row.size):
        row[j] *= exp(-gamma * abs(a - b[j]))


register(
    KernelKind(
        "l1", "exp(-gamma |x-z|_1)", L1, _l1, _l1_derivative, ("gamma",), per_length=True, factor=_l1_factor
    )
)  # fmt: skip


def _rational(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    unit, scale, exponent = row.dtype.type(1.0), gamma / row.dtype.type(degree), degree
    cap = row.dtype.type(1e19 if row.itemsize == 4 else 1e150)  # avoids denormal numbers, as exp does
    x = np.empty(row.size, row.dtype)
    for j in range(row.size):
        x[j] = unit + scale * distance(row[j], a, b[j])
        row[j] = unit
    while exponent:  # exponentiation by squaring, each step over the whole row: vector code
        if exponent & 1:
            for j in range(row.size):
                row[j] *= x[j]
        exponent >>= 1
        for j in range(row.size):
            x[j] *= x[j]
    for j in range(row.size):
        row[j] = unit / min(cap, row[j])


def _rational_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    return -gamma * (1.0 + gamma * t / degree) ** (-degree - 1.0)


# The relative error is about `degree` units of rounding.
register(
    KernelKind(
        "rational", "(1 + gamma |x-z|^2 / degree)^-degree", SQUARED, _rational, _rational_derivative,
        ("gamma", "degree"), least_degree=1,
    )
)  # fmt: skip


# Wendland's functions of r = gamma |x-z| (Adv. Comput. Math. 4, 1995), which are 0 from r = 1 on and have 0, 2 and 4
# continuous derivatives. With l = floor(degree / 2) + k + 1 they are positive definite for at most `degree` features.


def _wendland0(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    zero, unit = row.dtype.type(0.0), row.dtype.type(1.0)
    for j in range(row.size):
        x, exponent = max(zero, unit - gamma * length(row[j], a, b[j])), degree // 2
        value = x
        while exponent:
            value *= x
            exponent -= 1
        row[j] = value


def _wendland0_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    r, ell = gamma * np.sqrt(t), degree // 2 + 1
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(t > 0, -ell * np.maximum(0.0, 1.0 - r) ** (ell - 1) * (r < 1) * gamma**2 / (2.0 * r), 0.0)


register(
    KernelKind(
        "wendland0", "(1 - r)^l for r < 1, else 0; r = gamma |x-z|, l = floor(degree/2) + 1", SQUARED, _wendland0,
        _wendland0_derivative, ("gamma", "degree"), per_length=True, least_degree=1, limited=True,
    )
)  # fmt: skip


def _wendland2(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    zero, unit, linear = row.dtype.type(0.0), row.dtype.type(1.0), row.dtype.type(degree // 2 + 3)
    for j in range(row.size):
        r = gamma * length(row[j], a, b[j])
        x, exponent = max(zero, unit - r), degree // 2 + 2
        value = x
        while exponent:
            value *= x
            exponent -= 1
        row[j] = value * (unit + linear * r) if value > zero else zero  # r may overflow far away


def _wendland2_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    r, ell = gamma * np.sqrt(t), degree // 2 + 2
    return -(gamma**2) / 2.0 * (ell + 1.0) * (ell + 2.0) * np.maximum(0.0, 1.0 - r) ** ell


register(
    KernelKind(
        "wendland2", "(1 - r)^(l+1) (1 + (l + 1) r) for r < 1, else 0; r = gamma |x-z|, l = floor(degree/2) + 2",
        SQUARED, _wendland2, _wendland2_derivative, ("gamma", "degree"), per_length=True, least_degree=1, limited=True,
    )
)  # fmt: skip


def _wendland4(row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int) -> None:  # pragma: no cover
    zero, unit, ell = row.dtype.type(0.0), row.dtype.type(1.0), degree // 2 + 3
    linear, square = row.dtype.type(ell + 2), row.dtype.type((ell * ell + 4 * ell + 3) / 3)
    for j in range(row.size):
        r = gamma * length(row[j], a, b[j])
        x, exponent = max(zero, unit - r), ell + 1
        value = x
        while exponent:
            value *= x
            exponent -= 1
        row[j] = value * (unit + r * (linear + square * r)) if value > zero else zero


def _wendland4_derivative(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    r, ell = gamma * np.sqrt(t), degree // 2 + 3
    slope = (ell + 3.0) * (ell + 4.0) / 6.0 * (1.0 + (ell + 1.0) * r)
    return -(gamma**2) * slope * np.maximum(0.0, 1.0 - r) ** (ell + 1)


register(
    KernelKind(
        "wendland4", "(1 - r)^(l+2) (1 + (l + 2) r + (l^2 + 4 l + 3) r^2 / 3) for r < 1, else 0; r = gamma |x-z|, "
        "l = floor(degree/2) + 3", SQUARED, _wendland4, _wendland4_derivative, ("gamma", "degree"), per_length=True,
        least_degree=1, limited=True,
    )
)  # fmt: skip


# Products over the features of Wendland's functions for one dimension, positive definite for any number of features.
# Where a factor is 0, the derivative of its logarithm counts as 0: the derivative of the product is 0 there.

_LEAST = 2.0**-53  # smallest 1 - r above 0


def _wendland0_factor(
    row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int
) -> None:  # pragma: no cover - compiled
    unit = row.dtype.type(1.0)
    for j in range(row.size):
        row[j] *= unit - min(unit, gamma * abs(a - b[j]))


def _wendland0_slope(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    gap = 1.0 - np.minimum(gamma * t, 1.0)
    return -gamma * (gap > 0) / np.maximum(gap, _LEAST)


register(
    KernelKind(
        "wendland0_product", "product over k of 1 - r, or 0 for r > 1; r = gamma |x_k-z_k|", FEATURES, None,
        _wendland0_slope, ("gamma",), per_length=True, factor=_wendland0_factor,
    )
)  # fmt: skip


def _wendland2_factor(
    row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int
) -> None:  # pragma: no cover - compiled
    unit, three = row.dtype.type(1.0), row.dtype.type(3.0)
    for j in range(row.size):
        r = min(unit, gamma * abs(a - b[j]))
        x = unit - r
        row[j] *= x * x * x * (unit + three * r)


def _wendland2_slope(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    r = np.minimum(gamma * t, 1.0)
    gap = 1.0 - r
    return -12.0 * gamma * r * (gap > 0) / (np.maximum(gap, _LEAST) * (1.0 + 3.0 * r))


register(
    KernelKind(
        "wendland2_product", "product over k of (1 - r)^3 (1 + 3 r), or 0 for r > 1; r = gamma |x_k-z_k|", FEATURES,
        None, _wendland2_slope, ("gamma",), per_length=True, factor=_wendland2_factor,
    )
)  # fmt: skip


def _wendland4_factor(
    row: Reals, a: float, b: Reals, gamma: float, coef0: float, degree: int
) -> None:  # pragma: no cover - compiled
    unit, five, eight = row.dtype.type(1.0), row.dtype.type(5.0), row.dtype.type(8.0)
    for j in range(row.size):
        r = min(unit, gamma * abs(a - b[j]))
        x = unit - r
        square = x * x
        row[j] *= square * square * x * (unit + r * (five + eight * r))


def _wendland4_slope(t: Reals, gamma: float, coef0: float, degree: int) -> Reals:
    r = np.minimum(gamma * t, 1.0)
    gap, quadratic = 1.0 - r, 1.0 + r * (5.0 + 8.0 * r)
    return -14.0 * gamma * r * (1.0 + 4.0 * r) * (gap > 0) / (np.maximum(gap, _LEAST) * quadratic)


register(
    KernelKind(
        "wendland4_product", "product over k of (1 - r)^5 (1 + 5 r + 8 r^2), or 0 for r > 1; r = gamma |x_k-z_k|",
        FEATURES, None, _wendland4_slope, ("gamma",), per_length=True, factor=_wendland4_factor,
    )
)  # fmt: skip
