"""Dis-SMO on rows of many ranks, and the same problem on one process."""

from __future__ import annotations

import numpy as np

from cacore.kernels import Kernel
from cacore.limits import Limits
from cacore.svm.dual import Dual
from cacore.svm.options import GIB
from casvm.dissmo import dissmo
from casvm.options import SVMOptions
from casvm.solver import smo
from casvm.solver.kernel_rows import KernelRows
from helpers.distributed import by_one, labelled

N, T_ROWS, GAMMA, C = 157, 41, 0.4, 2.0  # 157 is no multiple of any number of ranks
KERNEL, LIMITS, PLENTY = Kernel("gaussian", gamma=GAMMA), Limits(1e-3), 1 << 24


def train(X, y, my=None, comm=None, weights=None, **options):
    """On this rank's rows `my` of all ranks', or all rows on one rank."""
    given = SVMOptions(**{"gamma": GAMMA, "C": C, "tol": 1e-3, "cache_gib": PLENTY / GIB, **options})
    return dissmo(labelled(X, y, my, weights), given, comm)


def signs(y):
    return np.where(y == 0, 1.0, -1.0)


def serial(X, y, kernel=KERNEL, bound=C):
    """The exact solution."""
    dual = Dual.classification(y, np.full(len(y), bound))
    return by_one(lambda: smo.solve(KernelRows(X, kernel, "float64", PLENTY), dual, Limits(1e-6)))
