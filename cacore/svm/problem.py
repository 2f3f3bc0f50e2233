"""The dual problem of a kernel SVM: its parameters, their checks, and the precision of its kernel values."""

from __future__ import annotations

import argparse
import math
from numbers import Integral
from typing import Any

import numpy as np

from cacore.comm import Communicator
from cacore.data.rows import Rows, is_sparse
from cacore.errors import InputError
from cacore.kernels import KINDS, Kernel
from cacore.machine.memory import GIB

_SMALL = 2000, 100_000  # rows, and numbers in them, whose kernel values cost next to nothing in double precision


def add_problem_options(p: argparse.ArgumentParser) -> None:
    """Options of the dual problem and its solver."""
    p.add_argument("--C", metavar="C", type=float, default=1.0, help="bound of the coefficients alpha")
    p.add_argument("--kernel", choices=KINDS, default="gaussian")
    p.add_argument("--gamma", metavar="G", default="scale", help="number, scale = 1 / (features x variance), or auto")
    p.add_argument("--degree", metavar="D", type=int, default=3, help="of the polynomial kernel")
    p.add_argument("--coef0", metavar="R", type=float, default=0.0, help="of the polynomial and sigmoid kernels")
    p.add_argument("--tol", metavar="T", type=float, default=1e-3, help="largest violation at which training stops")
    p.add_argument("--cache-gib", metavar="GIB", type=float, default=1.0, help="of kernel values that a rank keeps")
    p.add_argument("--max-iter", metavar="N", type=int, default=-1, help="pairs a part's solver may take")
    p.add_argument("--max-time", metavar="S", type=float, default=float("inf"), help="seconds it may take")
    p.add_argument("--balanced", action="store_true", help="weigh the classes so that each counts as much")


def gamma_option(args: argparse.Namespace) -> float | str:
    """``--gamma`` as a number, "scale" or "auto"."""
    try:
        return str(args.gamma) if args.gamma in ("scale", "auto") else float(args.gamma)
    except ValueError as error:
        raise InputError(f"--gamma {args.gamma}: it must be a positive number, scale or auto") from error


def cache_option(args: argparse.Namespace) -> int:
    """``--cache-gib`` in bytes."""
    if not 0 <= args.cache_gib < float("inf"):
        raise InputError(f"--cache-gib {args.cache_gib:g}: it must be a number of at least 0")
    return cache_bytes(args.cache_gib)


def cache_bytes(gib: float) -> int:
    """Of so many GiB; more than there can be is as much as there can be."""
    return int(min(gib * GIB, 2.0**62))


def described(C: float, kernel: Kernel) -> dict[str, Any]:
    """C and the kernel's parameters for a report."""
    told: dict[str, Any] = {"C": C, "kernel": kernel.kind}
    if kernel.kind != "linear":
        told["gamma"] = kernel.gamma
    if kernel.kind in ("polynomial", "sigmoid"):
        told["coef0"] = kernel.coef0
    if kernel.kind == "polynomial":
        told["degree"] = kernel.degree
    return told


def check_problem(C: float, kind: str, gamma: float | str, degree: int, coef0: float) -> None:
    """Refuse parameters of the kernel SVM that make no sense.

    Raises
    ------
    InputError
    """
    text = isinstance(gamma, str)
    checks = (
        (_positive(C), f"C = {C:g}: it must be a positive number"),
        (kind in KINDS, f"kernel {kind!r}: choose one of {', '.join(KINDS)}"),
        (
            gamma in ("scale", "auto") if text else _positive(gamma),
            f"gamma = {gamma!r}: it must be a positive number, 'scale' or 'auto'",
        ),
        (whole(degree, 0), f"degree = {degree!r}: it must be a whole number of at least 0"),
        (math.isfinite(coef0), f"coef0 = {coef0:g}: it must be a finite number"),
    )
    for good, message in checks:
        if not good:
            raise InputError(message)


def whole(value: Any, least: int, may_be_none: bool = False) -> bool:
    """Whether this is a whole number of at least `least`."""
    return (value is None and may_be_none) or (isinstance(value, Integral) and int(value) >= least)


def _positive(value: Any) -> bool:
    return math.isfinite(value) and value > 0


def numeric_gamma(X: Rows, gamma: float | str, comm: Communicator) -> float:
    """Gamma as a number; "scale" is one Allreduce of 3 numbers."""
    if not isinstance(gamma, str):
        return float(gamma)
    if gamma == "auto":
        return 1.0 / X.shape[1]
    values = X.data if is_sparse(X) else X
    shift = float(comm.bcast(np.array([values.flat[0] if values.size and not is_sparse(X) else 0.0]))[0])
    about = values.ravel() - shift if not is_sparse(X) else values
    count = X.shape[0] * X.shape[1]
    total, square, count = comm.allreduce(
        np.array([about.sum(dtype=np.float64), np.einsum("i,i->", about, about, dtype=np.float64), count])
    )
    variance = square / count - (total / count) ** 2
    return float(1.0 / (X.shape[1] * variance)) if variance > 0 else 1.0


def precision(n: int, sample: Rows, kernel: Kernel, C: float, tol: float) -> Any:
    """float64 for few rows, and where the rounding of C K_ij in single precision comes near the tolerance.

    `n` rows, of which `sample` is a part; `C` is the largest bound.
    """
    if n <= _SMALL[0] and n * sample.shape[1] <= _SMALL[1]:
        return np.float64
    largest = float(np.abs(kernel.diagonal(sample)).max())
    return np.float64 if 8 * np.finfo(np.float32).eps * C * largest > tol else np.float32
