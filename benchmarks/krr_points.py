"""Test errors of models of M points beside others: each chooses its parameters on its training rows.

Run by ``python -m benchmarks krr-subset DATA_FOLDER --only error``. Up to `CHOOSE` points, a method compares three
sigmas and seven lambdas. Beyond, sigma is the one that it chose with `CHOOSE` points; methods that need a fit per
lambda keep that lambda, too. Each run is a process of its own.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.krr_data import Split
from benchmarks.krr_exact import nystrom_cg
from benchmarks.race import copy_rate, machine_rate
from cacore.machine import threads
from cacore.machine.memory import peak_rss_mib
from cakrr import BKRR2, SubsetKRR, TwoLevelKRR

Array = NDArray[np.float64]
Predict = Callable[[Array], Array]
Fit = Callable[[Array, Array, float, float], Predict]  # standardised rows, centred targets, sigma, lambda
SIGMAS, LAMS = (0.5, 1.0, 2.0), (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)  # sigmas in units of sqrt(d)
CHOOSE = 2000
SGPR_STEPS = 100  # of Adam, over the points, the length scale and the noise


def _sigmas(data: Split) -> list[float]:
    return [one * data.X.shape[1] ** 0.5 for one in SIGMAS]


def _subset(select: str, pick: str) -> Callable[[Split, int], Predict]:
    """Our least squares on M points."""

    def train(data: Split, M: int) -> Predict:
        def fit(M: int, sigma: float | list[float]) -> SubsetKRR:
            model = SubsetKRR(centers=M, sigma=sigma, lam=LAMS, select=select, pick=pick, random_state=0)
            return model.fit(data.X, data.y)

        if M <= CHOOSE:
            return fit(M, _sigmas(data)).predict
        return fit(M, fit(CHOOSE, _sigmas(data)).sigma_).predict

    return train


def _chosen(fit: Callable[[int], Fit]) -> Callable[[Split, int], Predict]:
    """A rival without a choice of its own: the pair of least error on a tenth of the rows, then all rows."""

    def train(data: Split, M: int) -> Predict:
        mean, scale, level = data.X.mean(axis=0), data.X.std(axis=0), data.y.mean()
        X, y = (data.X - mean) / scale, data.y - level
        held = np.random.default_rng(0).permutation(len(X)) < len(X) // 10
        small, best = fit(min(M, CHOOSE)), (np.inf, 0.0, 0.0)
        for sigma in _sigmas(data):
            for lam in LAMS:
                error = np.mean((small(X[~held], y[~held], sigma, lam)(X[held]) - y[held]) ** 2)
                best = min(best, (float(error), sigma, lam))
        predict = fit(M)(X, y, *best[1:])
        return lambda T: predict((T - mean) / scale) + level

    return train


def _nystroem(M: int) -> Fit:
    """scikit-learn's Nystroem and Ridge; the features of one sigma are kept for the next lambda."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge

    kept: dict[tuple[float, int], tuple[Any, Array]] = {}

    def fit(X: Array, y: Array, sigma: float, lam: float) -> Predict:
        if (sigma, len(X)) not in kept:
            features = Nystroem(gamma=1 / (2 * sigma**2), n_components=M, random_state=0).fit(X)
            kept.clear()
            kept[sigma, len(X)] = features, features.transform(X)
        features, F = kept[sigma, len(X)]
        ridge = Ridge(alpha=lam * len(X), fit_intercept=False, solver="cholesky").fit(F, y)
        return lambda T: np.asarray(ridge.predict(features.transform(T)))

    return fit


def _falkon(M: int) -> Fit:
    """Falkon's algorithm, 20 iterations with float32 kernel values."""

    def fit(X: Array, y: Array, sigma: float, lam: float) -> Predict:
        return lambda T: nystrom_cg(X, y, T, sigma, lam, M)[0]

    return fit


def _sgpr(data: Split, M: int) -> Predict:
    """SGPR of gpytorch: points, length scale and noise by the variational bound (Titsias, 2009), in float64."""
    import gpytorch
    import torch

    mean, scale, level, height = data.X.mean(axis=0), data.X.std(axis=0), data.y.mean(), data.y.std()
    X, y = torch.tensor((data.X - mean) / scale), torch.tensor((data.y - level) / height)
    first = X[torch.tensor(np.random.default_rng(0).permutation(len(X))[:M])].clone()

    class SGPR(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(X, y, likelihood)
            self.mean, base = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            base.base_kernel.lengthscale = X.shape[1] ** 0.5
            self.kernel = gpytorch.kernels.InducingPointKernel(base, inducing_points=first, likelihood=likelihood)

        def forward(self, rows: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(rows), self.kernel(rows))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = SGPR(likelihood).double()
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    steps = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(SGPR_STEPS):
        steps.zero_grad()
        loss = -bound(model(X), y)
        loss.backward()
        steps.step()
    model.eval()

    def predict(T: Array) -> Array:
        with torch.no_grad(), gpytorch.settings.skip_posterior_variances():
            return np.array(model(torch.tensor((T - mean) / scale)).mean.numpy() * height + level, np.float64)

    return predict


def _parts(data: Split) -> int:
    return max(2, len(data.X) // 2000)


# Name: its training, and its most points within a benchmark's time; 0 points: a method without a number of points.
RIVALS: dict[str, tuple[Callable[[Split, int], Predict], int]] = {
    "subset, left out": (_subset("loo", "random"), 4000),
    "subset, gcv": (_subset("gcv", "random"), 8000),
    "subset, gcv, pivots": (_subset("gcv", "pivots"), 8000),
    "Nystroem + Ridge": (_chosen(_nystroem), 8000),
    "Falkon's algorithm": (_chosen(_falkon), 8000),
    "gpytorch SGPR": (_sgpr, 1000),
    "two levels": (lambda data, M: TwoLevelKRR(_parts(data), random_state=0).fit(data.X, data.y).predict, 0),
    "BKRR2": (lambda data, M: BKRR2(_parts(data), random_state=0).fit(data.X, data.y).predict, 0),
}


def _measured(name: str, data: Split, M: int, allowed: int) -> dict[str, Any]:
    """Error, seconds and memory of one run; runs in its own process."""
    threads.set_threads(allowed)
    few = Split(data.X[:500], data.y[:500], data.T[:9], data.t[:9], data.seen[:9])
    RIVALS[name][0](few, 50)(few.T)  # compiles and imports
    before, begun = (machine_rate(), copy_rate()), time.perf_counter()
    predict = RIVALS[name][0](data, M)
    seconds = time.perf_counter() - begun
    mse = float(np.mean(np.square(predict(data.T) - data.t)))
    peak = peak_rss_mib() / 1024
    return {"mse": mse, "seconds": seconds, "peak GiB": peak, "GFLOP/s": before[0], "copy GB/s": before[1]}


def errors(data: Split, points: list[int], names: list[str], allowed: int) -> Iterator[dict[str, Any]]:
    """Yield a record of each method and number of points, with `allowed` threads each."""
    context = multiprocessing.get_context("spawn")
    for name in names:
        most = RIVALS[name][1]
        for M in [one for one in points if one <= most] if most else [0]:
            one: dict[str, Any] = {"method": name, "M": M}
            try:
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    one |= pool.submit(_measured, name, data, M, allowed).result()
            except (BrokenProcessPool, MemoryError, ModuleNotFoundError) as error:
                one["ended"] = str(error)
            yield one
