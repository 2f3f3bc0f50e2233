"""Kriging beside other packages' kriging and Gaussian processes, on the same points and with the same covariance.

python -m benchmarks kriging-peers [--points N ...] [--only NAME ...] [--memory GIB] [--out FILE.json]
                                                             (pip install pykrige gstools fvgp gpytorch)

Each package krigs in a process of its own, on all threads, which may have so many GiB of memory. "error" is the root
mean square of the differences from the function that the values are of, without noise, in its standard deviations.
"gap" is the largest difference of a package's means from ours, relative to the largest mean; "std gap" likewise for
standard deviations of the field. "ours" factors the dense matrix; "ours, tapered" and "ours, wendland2" are other
covariances, which need near points alone. BKRR2 and TwoLevelKRR choose their own width and ridge.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.race import headline, machine_rate
from benchmarks.results import Record, Results, table
from cacore.errors import InputError
from cacore.machine.memory import peak_rss_mib
from cakriging import Kriging
from cakrr import BKRR2, TwoLevelKRR

Array = NDArray[np.float64]
Answer = tuple[Array, Array | None]  # means, and standard deviations of the field without noise
RANGE, SILL, NUGGET = 0.1, 1.5, 0.05
PLACES = 2000
PART = 2000
EXACT = 50_000  # most points of those that have a matrix of all pairs, 20 GB


def problem(n: int) -> tuple[Array, Array, Array]:
    """Points, values and places to predict."""
    rng = np.random.default_rng(0)
    X, Q = rng.random((n, 2)), rng.random((PLACES, 2))
    return X, truth(X) + np.sqrt(NUGGET) * rng.standard_normal(n), Q


def truth(X: Array) -> Array:
    """The function that the values are of."""
    return np.asarray(np.sin(7 * X[:, 0]) * np.cos(5 * X[:, 1]) + 2.0)


def pykrige(n: int) -> Answer:
    """Ordinary kriging by PyKrige."""
    from pykrige.ok import OrdinaryKriging

    X, y, Q = problem(n)
    parameters = {"psill": SILL, "range": 3 * RANGE, "nugget": NUGGET}
    made = OrdinaryKriging(*X.T, y, variogram_model="exponential", variogram_parameters=parameters)
    mean, variance = made.execute("points", *Q.T, backend="vectorized")
    return np.asarray(mean), np.sqrt(np.asarray(variance) - NUGGET)


def gstools(n: int) -> Answer:
    """Ordinary kriging by GSTools, with an inverse in place of its pseudo-inverse."""
    import gstools as gs

    X, y, Q = problem(n)
    model = gs.Exponential(dim=2, var=SILL, len_scale=RANGE, nugget=NUGGET)
    mean, variance = gs.krige.Ordinary(model, X.T, y, pseudo_inv=False)(Q.T)
    return mean, np.sqrt(variance - NUGGET)


def scikit_learn(n: int) -> Answer:
    """Simple kriging around the mean of the values by scikit-learn."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    X, y, Q = problem(n)
    kernel = ConstantKernel(SILL) * Matern(RANGE, nu=0.5)
    made = GaussianProcessRegressor(kernel, alpha=NUGGET, optimizer=None).fit(X, y - y.mean())
    mean, std = made.predict(Q, return_std=True)
    return mean + y.mean(), std


def gpytorch(n: int) -> Answer:
    """Simple kriging around the mean of the values by GPyTorch, in double precision and by a factorisation."""
    import gpytorch as gp
    import torch

    class Field(gp.models.ExactGP):
        def __init__(self, X: torch.Tensor, y: torch.Tensor, noise: gp.likelihoods.Likelihood) -> None:
            super().__init__(X, y, noise)
            self.mean_module, self.covar_module = (
                gp.means.ZeroMean(),
                gp.kernels.ScaleKernel(gp.kernels.MaternKernel(0.5)),
            )

        def forward(self, X: torch.Tensor) -> gp.distributions.MultivariateNormal:
            return gp.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    X, y, Q = (torch.from_numpy(one) for one in problem(n))
    noise = gp.likelihoods.GaussianLikelihood(noise_constraint=gp.constraints.GreaterThan(1e-6))
    model = Field(X, y - y.mean(), noise).double().eval()
    noise.noise, model.covar_module.outputscale, model.covar_module.base_kernel.lengthscale = NUGGET, SILL, RANGE
    with torch.no_grad(), gp.settings.max_cholesky_size(2 * n), gp.settings.fast_computations(*3 * [False]):
        found = model(Q)
        return (found.mean + y.mean()).numpy(), found.variance.sqrt().numpy()


def fvgp(n: int) -> Answer:
    """Simple kriging around the mean of the values by fvGP."""
    from fvgp import GP
    from scipy.spatial.distance import cdist

    X, y, Q = problem(n)
    made = GP(
        X, y - y.mean(), np.array([SILL, RANGE]), np.full(n, NUGGET),
        kernel_function=lambda A, B, at: at[0] * np.exp(-cdist(A, B) / at[1]),
        prior_mean_function=lambda A, at: np.zeros(len(A)),
    )  # fmt: skip
    mean = made.posterior_mean(Q)["m(x)"]
    return np.ravel(mean) + y.mean(), np.sqrt(np.ravel(made.posterior_covariance(Q, variance_only=True)["v(x)"]))


def ours(n: int, drift: str = "constant", solver: str = "cholesky", **more: object) -> Answer:
    """Kriging by this package."""
    X, y, Q = problem(n)
    shift = y.mean() if drift == "none" else 0.0
    given: Record = {"kernel": "laplacian", "range": RANGE, "sill": SILL, "nugget": NUGGET, **more}
    made = Kriging(drift=drift, solver=solver, random_state=0, **given).fit(X, y - shift)
    mean, std = made.predict(Q, return_std=True)
    return mean + shift, np.sqrt(std**2 - NUGGET)


def ours_simple(n: int) -> Answer:
    """Simple kriging by this package."""
    return ours(n, drift="none")


def ours_tapered(n: int) -> Answer:
    """The kernel times a Wendland function whose radius holds 100 points."""
    return ours(n, solver="cg", taper=float(np.sqrt(100 / n / np.pi)))


def ours_wendland(n: int) -> Answer:
    """A kernel that ends at a radius that holds 100 points."""
    return ours(n, solver="cg", kernel="wendland2", range=float(np.sqrt(100 / n / np.pi)))


def ours_in_parts(n: int) -> Answer:
    """BKRR2 by soft routes, in parts of 2,000 points."""
    X, y, Q = problem(n)
    return BKRR2(max(1, n // PART), route="soft", kernel="laplacian", random_state=0).fit(X, y).predict(Q), None


def ours_on_two_levels(n: int) -> Answer:
    """Two-level ridge regression, in parts of 2,000 points."""
    X, y, Q = problem(n)
    return TwoLevelKRR(max(1, n // PART), kernel="laplacian", random_state=0).fit(X, y).predict(Q), None


RIVALS: dict[str, tuple[Callable[[int], Answer], int, str]] = {  # most points; name of the answer to compare with
    "ours": (ours, EXACT, ""), "ours, simple": (ours_simple, EXACT, ""),
    "PyKrige": (pykrige, EXACT, "ours"), "GSTools": (gstools, EXACT, "ours"),
    "scikit-learn": (scikit_learn, EXACT, "ours, simple"), "gpytorch": (gpytorch, EXACT, "ours, simple"),
    "fvGP": (fvgp, EXACT, "ours, simple"),
    "ours, tapered": (ours_tapered, 1_000_000, ""), "ours, wendland2": (ours_wendland, 1_000_000, ""),
    "BKRR2": (ours_in_parts, 100_000, ""), "TwoLevelKRR": (ours_on_two_levels, 100_000, ""),
}  # fmt: skip


def _measured(rival: str, n: int, memory: float) -> tuple[Answer, Record]:
    resource.setrlimit(resource.RLIMIT_DATA, (round(memory * (1 << 30)), resource.RLIM_INFINITY))
    work = RIVALS[rival][0]
    work(200)  # compile and import
    before, begun, used = machine_rate(), time.perf_counter(), time.process_time()
    found = work(n)
    Q = problem(n)[2]
    return found, {
        "error": float(np.sqrt(np.mean((found[0] - truth(Q)) ** 2)) / truth(Q).std()),
        "seconds": time.perf_counter() - begun, "processor": time.process_time() - used,
        "peak GiB": peak_rss_mib() / 1024, "GFLOP/s": before,
    }  # fmt: skip


def gaps(found: Answer, want: Answer) -> Record:
    """Largest differences of means and standard deviations, relative to the largest ones."""
    (mean, std), (means, deviations) = found, want
    between = {"gap": float(np.abs(mean - means).max() / np.abs(means).max())}
    if std is not None and deviations is not None:
        between["std gap"] = float(np.abs(std - deviations).max() / deviations.max())
    return between


def main() -> None:
    """Run the benchmark, print the table, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", nargs="+", type=int, default=[2_500, 10_000, 100_000, 1_000_000])
    parser.add_argument("--only", nargs="+", choices=RIVALS, default=list(RIVALS))
    parser.add_argument("--memory", type=float, default=16.0, metavar="GIB", help="most memory of a package")
    parser.add_argument("--out", type=Path, default=Path("kriging-peers.json"))
    args = parser.parse_args()
    headline()
    results, context = Results("kriging-peers"), multiprocessing.get_context("spawn")
    for n in args.points:
        answers: dict[str, Answer] = {}
        for rival in args.only:
            _, most, reference = RIVALS[rival]
            if n > most:
                continue
            one: Record = {"package": rival, "points": n}
            try:
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    answers[rival], facts = pool.submit(_measured, rival, n, args.memory).result()
                one |= facts
            except (BrokenProcessPool, MemoryError, ModuleNotFoundError, RuntimeError, InputError) as error:
                one["ended"] = str(error)
            if rival in answers and reference in answers:
                one |= gaps(answers[rival], answers[reference])
            results.add(**one)
            results.save(args.out)
            print(one, flush=True)
    columns = {"package": "", "points": ",", "seconds": ".3g", "processor": ".3g", "peak GiB": ".2f", "error": ".4f",
               "gap": ".1e", "std gap": ".1e", "ended": ""}  # fmt: skip
    print(table(results.records, columns))


if __name__ == "__main__":
    main()
