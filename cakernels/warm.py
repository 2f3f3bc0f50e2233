"""Small trainings and files that compile what commands compile on their first run."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from time import process_time

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.io.fingerprints import row_hashes
from cacore.terminal import say

_ROWS = 2500  # so many that kernel values are single precision; `_FEW` of them need double precision
_FEW = 60

Step = tuple[str, Callable[[], object]]  # name and call


def halves() -> tuple[list[Step], list[Step]]:
    """The steps in two halves that take about as long; what an earlier step has compiled is not compiled again."""
    first: list[Step] = []
    second: list[Step] = []
    for name, step in _steps():
        half = first if name.endswith(("files", "krr", "kernels")) else second
        half.append((name, partial(_quietly, step)))
    return first, second


@contextmanager
def second_half_beside() -> Iterator[Callable[[], None]]:
    """Take the second half in a process of its own, since numba compiles on one core of a process.

    Yields a call that waits for it. The halves share functions, and of two that are written at once the cache can lose
    one. So the second half is still to be taken by the caller, who loads what there is.
    """
    process = get_context("spawn").Process(target=_second_half, daemon=True)
    process.start()
    try:
        yield process.join
    finally:
        process.kill()


def _second_half() -> None:
    """Take the steps of the second half, and end with the first process, which Ctrl-C and other signals end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_the_first, daemon=True).start()
    for name, step in halves()[1]:
        timed(name, step)


def _end_with_the_first() -> None:
    """Wait for the end of the process that started this one, and end this one in the middle of whatever it does."""
    first = parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def timed(name: str, step: Callable[[], object]) -> None:
    """Take the step and print its processor time."""
    begun = process_time()
    step()
    say(f"{name:<16} {process_time() - begun:6.1f} s")


def _quietly(step: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trainings are stopped long before they have converged
        step()


def _steps() -> Iterator[Step]:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(_ROWS, 6))
    sparse = sp.random(_ROWS, 30, 0.2, "csr", random_state=0)
    yield "files", _files
    for name, X in (("dense", dense), ("sparse", sparse), ("float32", dense.astype(np.float32))):
        yield f"{name} hashes", partial(row_hashes, X, _target(X))
        yield f"{name} krr", partial(_ridge, X)
        yield f"{name} svm", partial(_classifiers, X)
        yield f"{name} svr", partial(_regressors, X)
        yield f"{name} asygcd", partial(_asygcd, X)
    yield "kernels", _kernels


def _target(X: Rows) -> NDArray[np.float64]:
    """A number per row: the sum of its first three features."""
    return np.asarray(X[:, :3].sum(axis=1), np.float64).ravel()


def _labels(X: Rows) -> NDArray[np.int64]:
    """1 for half of the rows, and -1 for the others."""
    values = _target(X)
    return np.where(values > np.median(values), 1, -1)


def _files() -> None:
    """Read a CSV and a LIBSVM file."""
    from cacore.io.loading import load

    with tempfile.TemporaryDirectory() as folder:
        for name, line in (("rows.csv", "0.5,1.25,{}\n"), ("rows.libsvm", "{} 1:0.5 2:1.25\n")):
            path = Path(folder) / name
            path.write_text("".join(line.format(k % 2) for k in range(8)))
            load(path, Communicator())


def _ridge(X: Rows) -> None:
    """Train in parts, with the coarse model, and by conjugate gradients."""
    from cakrr import BKRR2, DKRR, TwoLevelKRR

    # Without noise the search chooses the smallest lambda, for which conjugate gradients may fail.
    y = _target(X) + np.random.default_rng(1).normal(size=X.shape[0])
    for estimator in (BKRR2(n_parts=2), TwoLevelKRR(n_parts=2), DKRR(solver="cg")):
        estimator.fit(X[:300], y[:300]).predict(X[:9])


def _classifiers(X: Rows) -> None:
    """Train in parts, by every division, and as one problem, in both precisions of kernel values."""
    from casvm import CASVC, SMOSVC, DisSMOSVC

    y = _labels(X)
    for rows in (_ROWS, _FEW):
        SMOSVC(max_iter=200).fit(X[:rows], y[:rows]).predict(X[:9])
        DisSMOSVC(max_iter=200).fit(X[:rows], y[:rows])
    for partitioner in ("kmeans", "bkm", "fcfs", "kbalance", "random"):
        CASVC(n_parts=2, partitioner=partitioner, max_iter=200).fit(X, y).predict(X[:9])


def _regressors(X: Rows) -> None:
    """Train the other problems, in both precisions of kernel values."""
    from casvm import CASVR, SMOSVR, SMONuSVR, SMOOneClassSVM

    y = _target(X)
    for rows in (_ROWS, _FEW):
        for estimator in (SMOSVR(max_iter=200), SMONuSVR(max_iter=200), SMOOneClassSVM(max_iter=200)):
            estimator.fit(X[:rows], y[:rows]).predict(X[:9])
    CASVR(n_parts=2, max_iter=200).fit(X, y).predict(X[:9])


def _asygcd(X: Rows) -> None:
    """Train in both precisions of kernel values."""
    from asygcd import AsyGCDSVC

    y = _labels(X)
    for rows in (_ROWS, _FEW):
        AsyGCDSVC(max_iter=200).fit(X[:rows], y[:rows]).predict(X[:9])


def _kernels() -> None:
    """Compile every kernel function, and explanations."""
    from cacore.explain import shapley
    from cacore.kernels import evaluate
    from cacore.kernels.registry import KINDS

    shapley.warm_up()
    evaluate.warm_up(name for name, kind in KINDS.items() if kind.row is not None)
