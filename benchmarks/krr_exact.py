"""Exact ridge regression by conjugate gradients beside the factorisation and other packages: error against seconds.

python -m benchmarks.krr_exact DATA_FOLDER [--only NAME ...] [--rows N] [--runs NAME ...] [--out FILE.json]
[--memory-limit GIB] [--answers FOLDER]

All runs use the same rows, sigma and lambda. Each run is a separate process, with a matrix product and a memory copy
before and after. Predictions for the test rows are compared with those of the run cholesky, if it came first.

Runs: choice (a validation set chooses a pair from a grid, by --solver cg --early); cholesky; pivoted, nystrom, local,
two-level (preconditioners of --solver cg); lambdas (nine at once, and the smallest of them alone); nystrom-cg-5000,
nystrom-cg-10000 (Falkon's algorithm, Rudi, Carratino and Rosasco, 2017, in plain numpy); sklearn-ridge (KernelRidge),
sklearn-nystroem (Nystroem and Ridge, 2,000 components); gpytorch (the mean of its exact GP, if installed).
`python -m benchmarks plot FILE.json OUT.png` draws the results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.krr_data import load, split
from benchmarks.race import copy_rate, headline, machine_rate
from benchmarks.results import Results, table
from cacore.machine.memory import peak_rss_mib

# Grid of the run "choice": widths and lambdas for the Gaussian kernel.
SIGMAS, LAMS = (0.5, 0.75, 1.0, 1.5, 2.0), (1e-6, 1e-5, 1e-4, 1e-3)
CHOSEN = {"cadata": (1.0, 1e-5), "CASP": (0.5, 1e-5), "kin40k": (1.0, 1e-6), "BNG_breastTumor": (2.0, 1e-4)}
PRECONDITIONERS = ("pivoted", "nystrom", "local", "two-level")
ITERATIONS = 20  # conjugate gradient iterations of the Nystroem models
ROUNDS = 3  # rounds of the run "lambdas"; the first one compiles
MOST_SECONDS = 150.0  # time limit for a preconditioner that does not converge
RUNS = (
    "choice", "cholesky", *PRECONDITIONERS, "lambdas", "nystrom-cg-5000", "nystrom-cg-10000", "sklearn-ridge",
    "sklearn-nystroem", "gpytorch",
)  # fmt: skip
LIMIT = "CAKERNELS_BENCHMARK_GIB"  # passes --memory-limit to the processes of the runs
Facts = dict[str, Any]
Answer = tuple[NDArray[np.float64], Facts]


def limit() -> float:
    """Memory limit of our solvers, in bytes."""
    from cacore.machine import memory

    return float(os.environ.get(LIMIT, 0)) * memory.GIB or 0.9 * memory.available()


def ours(X: Any, y: Any, T: Any, sigma: float, lams: tuple[float, ...], **told: Any) -> Answer:
    """Fit :class:`cakrr.DKRR` with these options on standardised rows, and predict."""
    from cacore.io import Dataset
    from cacore.learn.options import from_estimator
    from cakrr import DKRR
    from cakrr.dkrr import dkrr
    from cakrr.options import RidgeOptions

    estimator = DKRR(sigma=sigma, lam=lams, standardize=False, **told)
    options = from_estimator(RidgeOptions, estimator, seed=0, memory_limit=int(limit()))
    DKRR(sigma=sigma, lam=lams[0], **told).fit(X[:200], y[:200])  # compiles
    begun = time.perf_counter()
    fitted = dkrr(Dataset(X.copy(), y.copy()), options)
    facts: Facts = {"seconds": time.perf_counter() - begun}
    if fitted.iteration:
        last = fitted.iteration["solutions"][-1]
        facts |= {
            "rank": last["rank"], "iterations": max(last["iterations"]), "residual": float(fitted.residual.max()),
            "factor_seconds": last["seconds_factor"], "kept": last["kept"],
        }  # fmt: skip
    return fitted.model.predict(T), facts


def choice(X: Any, y: Any, T: Any) -> Answer:
    """Choose a pair on a tenth of the training rows, and predict."""
    from cakrr import DKRR

    begun = time.perf_counter()
    model = DKRR(sigma=SIGMAS, lam=LAMS, solver="cg", early=1e-3, standardize=False, random_state=0).fit(X, y)
    facts = {"seconds": time.perf_counter() - begun, "sigma": model.sigma_, "lambda": model.lam_}
    return model.predict(T), facts


def lambdas(X: Any, y: Any, T: Any, sigma: float, lam: float) -> Answer:
    """Median seconds for nine lambdas from `lam` upwards, solved together as in a grid, and for `lam` alone."""
    from cacore.comm import Communicator
    from cacore.kernels import Kernel
    from cakrr.iterative.solver import StoppingCriteria
    from cakrr.iterative.systems import RidgeProblem, Systems
    from cakrr.methods.whole_system import GRID_TOL
    from cakrr.options import RidgeOptions

    n, kernel = len(y), Kernel().with_sigma(sigma)
    grid = tuple(lam * 10.0 ** (i / 2) for i in range(9))
    seconds: dict[int, list[float]] = {1: [], 9: []}
    systems = Systems(RidgeOptions(solver="cg", memory_limit=int(limit())), (n, n, 1))
    for lams in [grid[:1], grid] * ROUNDS:
        begun = time.perf_counter()
        wanted = RidgeProblem(X, np.arange(n), y[:, None], None, kernel, lams, "lambdas", "")
        alpha, _ = systems.solve(wanted, StoppingCriteria(GRID_TOL, final=False), Communicator())
        seconds[len(lams)].append(time.perf_counter() - begun)
    one, nine = (float(np.median(seconds[count][1:])) for count in (1, 9))  # the first round compiles
    last = systems.solutions[-1]
    facts = {
        "seconds": nine,
        "one_seconds": one,
        "ratio": nine / one,
        "rank": last["rank"],
        "iterations": max(last["iterations"]),
    }
    return kernel.apply(kernel.points(T), kernel.points(X), alpha[0]), facts


def nystrom_cg(X: Any, y: Any, T: Any, sigma: float, lam: float, M: int) -> Answer:
    """Falkon's algorithm in plain numpy, float32 kernel values: K_nM'K_nM + lambda n K_MM, preconditioned by K_MM."""
    from scipy.linalg import cholesky, solve_triangular

    begun = time.perf_counter()
    n, rng = len(X), np.random.default_rng(0)
    Z, rows = X[rng.permutation(n)[:M]].astype(np.float32), X.astype(np.float32)

    def values(A: Any) -> Any:
        D = (A**2).sum(axis=1)[:, None] + (Z**2).sum(axis=1) - 2 * A @ Z.T
        return np.exp(np.maximum(D, 0) / np.float32(-2 * sigma**2))

    def products(v: Any) -> Any:
        """K_nM' (K_nM v)."""
        out = np.zeros(M)
        for lo in range(0, n, 4096):
            K = values(rows[lo : lo + 4096])
            out += K.T @ (K @ v.astype(np.float32))
        return out

    KMM = values(Z).astype(np.float64)
    B = cholesky(KMM + np.finfo(np.float32).eps * M * np.eye(M), check_finite=False)
    A = cholesky(B @ B.T / M + lam * np.eye(M), check_finite=False)

    def forth(v: Any) -> Any:
        return solve_triangular(B, solve_triangular(A, v, check_finite=False), check_finite=False)

    def back(v: Any) -> Any:
        inner = solve_triangular(B, v, trans="T", check_finite=False)
        return solve_triangular(A, inner, trans="T", check_finite=False)

    right = np.zeros(M)
    for lo in range(0, n, 4096):
        right += values(rows[lo : lo + 4096]).T @ y[lo : lo + 4096].astype(np.float32)
    r = back(right / n)
    x, p, rr = np.zeros(M), r.copy(), r @ r
    for _ in range(ITERATIONS):
        v = forth(p)
        Ap = back(products(v) / n + lam * (KMM @ v))
        step = rr / (p @ Ap)
        x, r = x + step * p, r - step * Ap
        rr, old = r @ r, rr
        p = r + rr / old * p
    beta = forth(x).astype(np.float32)
    facts = {"seconds": time.perf_counter() - begun, "centers": M}
    return np.concatenate([values(T[lo : lo + 4096].astype(np.float32)) @ beta for lo in range(0, len(T), 4096)]), facts


def sklearn_ridge(X: Any, y: Any, T: Any, sigma: float, lam: float) -> Answer:
    """scikit-learn's KernelRidge."""
    from sklearn.kernel_ridge import KernelRidge

    model = KernelRidge(kernel="rbf", gamma=1 / (2 * sigma**2), alpha=lam * len(y))
    begun = time.perf_counter()
    model.fit(X, y)
    return model.predict(T), {"seconds": time.perf_counter() - begun}


def sklearn_nystroem(X: Any, y: Any, T: Any, sigma: float, lam: float) -> Answer:
    """scikit-learn's Nystroem and Ridge."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    features = Nystroem(gamma=1 / (2 * sigma**2), n_components=2000, random_state=0)
    model = make_pipeline(features, Ridge(alpha=lam * len(y), fit_intercept=False))
    begun = time.perf_counter()
    model.fit(X, y)
    return model.predict(T), {"seconds": time.perf_counter() - begun}


def gpytorch_mean(X: Any, y: Any, T: Any, sigma: float, lam: float) -> Answer:
    """The mean of gpytorch's exact GP at these parameters: conjugate gradients with its pivoted Cholesky."""
    import gpytorch
    import torch

    class GP(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, X: Any, y: Any, likelihood: Any) -> None:
            super().__init__(X, y, likelihood)
            self.mean, self.kernel = gpytorch.means.ZeroMean(), gpytorch.kernels.RBFKernel()

        def forward(self, X: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    begun = time.perf_counter()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-9))
    model = GP(torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32), likelihood)
    model.kernel.lengthscale, likelihood.noise = sigma, lam * len(y)
    model.eval()
    settings = gpytorch.settings
    with torch.no_grad(), settings.skip_posterior_variances(), settings.max_preconditioner_size(100), \
            settings.eval_cg_tolerance(1e-3), settings.max_cg_iterations(200):  # fmt: skip
        answer = model(torch.tensor(T, dtype=torch.float32)).mean.numpy()
    return answer.astype(np.float64), {"seconds": time.perf_counter() - begun}


def standardised(folder: Path, data: str, rows: int | None) -> tuple[NDArray[np.float64], ...]:
    """Training rows, their centred targets, test rows and theirs, by the training rows' statistics."""
    some = split(*load(folder, data), seed=0)
    X, y = some.X[:rows], some.y[:rows]
    mean, scale = X.mean(axis=0), X.std(axis=0)
    scale[scale == 0] = 1.0
    return (X - mean) / scale, y - y.mean(), (some.T - mean) / scale, some.t - y.mean()


def apart(answer: NDArray[np.float64], exact: NDArray[np.float64]) -> Facts:
    """Relative difference of predictions from those of the factorisation: largest, and root mean square."""
    gap = np.abs(answer - exact)
    return {
        "largest_gap": float(gap.max() / np.abs(exact).max()),
        "rms_gap": float(np.sqrt(np.mean(np.square(gap)) / np.mean(np.square(exact)))),
    }


def run(name: str, folder: str, data: str, rows: int | None, answers: Path) -> Facts:
    """Do one run in this process."""
    from cacore.machine import threads

    threads.set_threads(len(os.sched_getaffinity(0)))
    X, y, T, t = standardised(Path(folder), data, rows)
    sigma, lam = CHOSEN[data]
    runs: dict[str, Callable[[], Answer]] = {
        "choice": lambda: choice(X, y, T),
        "cholesky": lambda: ours(X, y, T, sigma, (lam,)),
        **{
            p: lambda p=p: ours(X, y, T, sigma, (lam,), solver="cg", preconditioner=p, max_time=MOST_SECONDS)
            for p in PRECONDITIONERS
        },
        "lambdas": lambda: lambdas(X, y, T, sigma, lam),
        "nystrom-cg-5000": lambda: nystrom_cg(X, y, T, sigma, lam, min(5000, len(y))),
        "nystrom-cg-10000": lambda: nystrom_cg(X, y, T, sigma, lam, min(10_000, len(y))),
        "sklearn-ridge": lambda: sklearn_ridge(X, y, T, sigma, lam),
        "sklearn-nystroem": lambda: sklearn_nystroem(X, y, T, sigma, lam),
        "gpytorch": lambda: gpytorch_mean(X, y, T, sigma, lam),
    }  # fmt: skip
    rate, copied = machine_rate(), copy_rate()
    answer, facts = runs[name]()
    rate, copied = min(rate, machine_rate()), min(copied, copy_rate())
    exact = answers / f"{data}-{len(y)}.npy"
    if name == "cholesky":
        np.save(exact, answer)
    elif exact.exists() and name != "choice":
        facts |= apart(answer, np.load(exact))
    peak = peak_rss_mib() / 1024
    return {"data": data, "run": name, "rows": len(y), "mse": float(np.mean(np.square(answer - t))), **facts,
            "peak_gib": peak, "gflops": rate, "copied_gbps": copied}  # fmt: skip


def main() -> None:
    """Do the requested runs, each in its own process; print a table and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--only", nargs="+", choices=CHOSEN, default=["cadata", "kin40k", "CASP"])
    parser.add_argument("--rows", type=int, help="use only the first N training rows (default: all)")
    usual = [name for name in RUNS if name not in ("choice", "gpytorch")]
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=usual)
    parser.add_argument("--out", type=Path, default=Path("krr-exact.json"))
    parser.add_argument(
        "--memory-limit", type=float, help="memory limit of our solvers in GiB (default: the free memory)"
    )
    parser.add_argument("--answers", type=Path, help="folder that keeps predictions between calls (default: none)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(args.one, args.folder, args.only[0], args.rows, args.answers)))
        return
    if args.memory_limit:
        os.environ[LIMIT] = str(args.memory_limit)
    headline()
    with tempfile.TemporaryDirectory() as folder:
        compare(args, args.answers or Path(folder))


def compare(args: argparse.Namespace, answers: Path) -> None:
    """Do the runs one after the other; predictions are stored in `answers`."""
    results = Results("krr-exact")
    for data in args.only:
        for name in args.runs:
            words = [args.folder, "--only", data, "--one", name, "--answers", str(answers)]
            words += [] if args.rows is None else ["--rows", str(args.rows)]
            command = [sys.executable, "-m", "benchmarks.krr_exact", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = done.stderr.strip().splitlines() or [f"ended by signal {-done.returncode}"]
                print(f"{data} {name}: {said[-1]}", flush=True)
                continue
            record = json.loads(done.stdout.splitlines()[-1])
            results.add(**record)
            results.save(args.out)
            print(json.dumps(record), flush=True)
    columns = {
        "data": "", "run": "", "rows": ",d", "rank": ",d", "iterations": "d", "seconds": ".1f", "mse": ".8g",
        "largest_gap": ".1e", "rms_gap": ".1e", "peak_gib": ".1f", "gflops": ".0f", "copied_gbps": ".1f",
    }  # fmt: skip
    print(table(results.records, columns))


if __name__ == "__main__":
    main()
