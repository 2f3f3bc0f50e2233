"""Intervals of MAPIE and MuyGPyS on the rows of a file, for :mod:`benchmarks.krr_intervals`.

PYTHON interval_peers.py SPLIT.npz

PYTHON is the interpreter of an environment that has both packages; nothing of cakernels is imported. MAPIE computes
split conformal intervals for scikit-learn's KernelRidge (exact, with the same share of calibration rows, and the width
and ridge given in the file), and jackknife+ intervals with 10 folds (CV+), since without folds it would train one model
per row. MuyGPyS uses 30 neighbours of each row, a Matern-3/2 kernel whose length and noise it chooses, and intervals of
a normal distribution. The script prints a list of records; seconds include training, its own parameter choices, and the
intervals of all coverages.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from typing import Any

import numpy as np
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor
from MuyGPyS.examples.regress import do_regress
from MuyGPyS.gp.deformation import Isotropy, l2
from MuyGPyS.gp.hyperparameter import AnalyticScale, Parameter
from MuyGPyS.gp.kernels import Matern
from MuyGPyS.gp.noise import HomoscedasticNoise
from sklearn.kernel_ridge import KernelRidge

Rows = dict[str, Any]


def mapie(rows: Rows, rng: np.random.Generator) -> Any:
    """Ends of MAPIE's split conformal intervals for all coverages, shape (n, 2, coverages)."""
    aside = rng.permutation(len(rows["X"])) < round(float(rows["share"]) * len(rows["X"]))
    ridge = _ridge(rows, np.count_nonzero(~aside)).fit(rows["X"][~aside], rows["y"][~aside])
    made = SplitConformalRegressor(ridge, confidence_level=list(rows["coverages"]), prefit=True)
    return made.conformalize(rows["X"][aside], rows["y"][aside]).predict_interval(rows["T"])[1]


def mapie_folds(rows: Rows, rng: np.random.Generator) -> Any:
    """Ends of MAPIE's CV+ intervals, in the same shape."""
    ridge = _ridge(rows, len(rows["X"]))
    made = CrossConformalRegressor(ridge, confidence_level=list(rows["coverages"]), cv=10)
    return made.fit_conformalize(rows["X"], rows["y"]).predict_interval(rows["T"])[1]


def _ridge(rows: Rows, n: int) -> KernelRidge:
    sigma, lam = float(rows["sigma"]), float(rows["lam"])
    return KernelRidge(kernel="rbf", gamma=1 / (2 * sigma**2), alpha=lam * n)


def muygpys(rows: Rows, rng: np.random.Generator) -> Any:
    """Ends of MuyGPyS's intervals of a normal distribution, in the same shape."""
    np.random.seed(0)  # noqa: NPY002 - MuyGPyS draws its batches from numpy's global state
    kernel = Matern(
        smoothness=Parameter(1.5), deformation=Isotropy(metric=l2, length_scale=Parameter("sample", (0.1, 20.0)))
    )
    asked = {"kernel": kernel, "noise": HomoscedasticNoise("sample", (1e-5, 1.0)), "scale": AnalyticScale()}
    found = do_regress(
        rows["T"], rows["X"], rows["y"][:, None], nn_count=30, batch_count=500, k_kwargs=asked,
        nn_kwargs={"nn_method": "exact", "algorithm": "ball_tree"},
    )  # fmt: skip
    z = np.array([statistics.NormalDist().inv_cdf((1 + coverage) / 2) for coverage in rows["coverages"]])
    half = np.sqrt(np.ravel(found[3]))[:, None] * z
    return np.ravel(found[2])[:, None, None] + np.stack([-half, half], axis=1)


RIVALS = {"MAPIE, split": mapie, "MAPIE, 10 folds": mapie_folds, "MuyGPyS": muygpys}


def main(path: str) -> None:
    """Run all peers on the rows of a file."""
    with np.load(path) as file:
        rows = dict(file)
    records = []
    for method, work in RIVALS.items():
        begun = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            ends = work(rows, np.random.default_rng(0))
        spent = time.perf_counter() - begun
        for i, coverage in enumerate(rows["coverages"]):
            lower, upper = ends[:, 0, i], ends[:, 1, i]
            held = float(np.mean((lower <= rows["t"]) & (rows["t"] <= upper)))
            width = float(np.mean(upper - lower))
            records.append({"method": method, "asked": float(coverage), "held": held, "width": width, "seconds": spent})
    print(json.dumps(records))


if __name__ == "__main__":
    main(sys.argv[1])
