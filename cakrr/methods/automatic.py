"""``--solver auto``: the available solver with the lower predicted cost."""

from __future__ import annotations

import math

import numpy as np

from cacore.comm import Communicator
from cacore.data.rows import nbytes
from cacore.errors import InputError
from cacore.linalg import scalapack
from cacore.machine import memory
from cakrr.iterative import plan
from cakrr.method import RidgeMethod
from cakrr.methods.block_cyclic import matrix_bytes
from cakrr.methods.prepare import RidgeRows
from cakrr.options import RidgeOptions


def cheaper(method: RidgeMethod, prepared: RidgeRows, options: RidgeOptions, comm: Communicator) -> tuple[str, str]:
    """The available solver with the lower predicted cost, and a sentence that explains the choice; collective."""
    if told := options.of_iteration():
        return "cg", f"solver cg: {' and '.join(told)} would not apply to a factorisation"
    X, n = prepared.samples.X, comm.offset(prepared.samples.X.shape[0])[1]
    d, widths, targets = X.shape[1], options.widths(method, X.shape[1]), math.prod(prepared.samples["y"].shape[1:])
    pairs = len(widths) * len(options.lam)
    solutions = pairs + (pairs > 1)
    work = plan.Work(n, d, plan.sides(np.array(options.lam)) * targets, min(options.lam) * n, options.tol)
    direct = work.cholesky(solutions)
    iterated = work.conjugate_gradients(len(widths) + (pairs > 1))
    figures = f"{direct / 1e12:.3g} against {iterated / 1e12:.3g} Tflop predicted"
    with comm.uncounted():
        rows = float(comm.allreduce(np.array([nbytes(X)], np.int64))[0]) / n
        need = int(comm.allreduce(np.array([matrix_bytes(n, X, rows, comm)], np.int64), "max")[0])
        there = comm.all(comm.size == 1 or _has_scalapack())
    if need > options.memory_limit:
        room = f"{need / memory.GIB:.3g} GiB per rank, and the limit is {options.memory_limit / memory.GIB:.3g}"
        return "cg", f"solver cg: a factorisation needs {room}"
    if not there:
        return "cg", "solver cg: a factorisation on several ranks needs ScaLAPACK, which is not installed"
    if direct <= iterated:
        return "cholesky", f"solver cholesky: {figures}"
    return "cg", f"solver cg: {figures} for a factorisation"


def _has_scalapack() -> bool:
    try:
        scalapack.where()
    except InputError:
        return False
    return True
