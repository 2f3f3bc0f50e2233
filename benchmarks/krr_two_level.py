"""Two-level models: random centres beside pivots, and refined coarse models; errors and seconds on all data sets.

python -m benchmarks.krr_two_level DATA_FOLDER [--only NAME ...] [--rows N] [--refined] [--out FILE.json]

Pivots replace random rows as centres. They are drawn by randomly pivoted Cholesky, at the coarse model's width, from
rows that are never held out. All other parameters are chosen on validation rows in both cases. `--refined` runs
`TwoLevelKRR(refine=N)` with 300 centres and 8 parts beside the exact model, whose pair is also chosen on validation
rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.krr_data import SETS, load, split
from benchmarks.race import copy_rate, headline, machine_rate
from benchmarks.results import Results, table
from cacore.comm import Communicator
from cacore.data.rows import Rows
from cacore.kernels import Kernel
from cacore.linalg.pivoted import pivoted_cholesky
from cakrr import DKRR, TwoLevelKRR
from cakrr.iterative.preconditioner import SpreadRows
from cakrr.options import NARROW
from partition.redistribute import Parts

HELD = 0.2  # share of the rows, the first ones in shuffled order, that contains the validation rows
PART = 1000  # rows per part
ALL = ("mg_scale", "space_ga_scale", "cadata", "kin40k", "CASP", "keggundirected", "BNG_breastTumor")
REFINED = (0, 1, 3, 10)


def pivots_of(sigma: float, seed: int) -> Callable[[Parts, int, Communicator], Rows]:
    """A replacement of :func:`cakrr.solver.coarse._centers` that chooses pivots as centres, in one process."""

    def centers(parts: Parts, M: int, comm: Communicator) -> Rows:
        free = parts["order"] >= HELD * len(parts["order"])
        kernel = Kernel().with_sigma(sigma)
        spread = SpreadRows(parts.X[free], parts["order"][free], kernel, comm)
        return pivoted_cholesky(spread, kernel, M, seed, lambda traces: False).centers.astype(np.float64)

    return centers


def fitted(model: Any, data: Any, rows: int) -> dict[str, float]:
    """Train a model; return seconds and test error."""
    begun = time.perf_counter()
    model.fit(data.X[:rows], data.y[:rows])
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "mse": float(np.mean(np.square(model.predict(data.T) - data.t)))}


def centers(name: str, data: Any, rows: int, results: Results) -> None:
    """Compare two random draws of centres, with pivots between them."""
    n, d = min(rows, len(data.y)), data.X.shape[1]
    sigma, M = NARROW * d**0.5, min(1000, n // 5)
    for seed, which in ((0, "random"), (0, "pivots"), (1, "random")):
        model = TwoLevelKRR(max(2, n // PART), centers=M, coarse_sigma=sigma, random_state=seed)
        if which == "pivots":
            with mock.patch("cakrr.solver.coarse._centers", pivots_of(sigma, seed)):
                found = fitted(model, data, n)
        else:
            found = fitted(model, data, n)
        keep(results, data=name, rows=n, method=which, centers=M, seed=seed, **found)


def refined(name: str, data: Any, rows: int, results: Results) -> None:
    """Compare numbers of refining iterations, and the exact model."""
    n = min(rows, len(data.y))
    for N in REFINED:
        model = TwoLevelKRR(8, centers=300, refine=N, random_state=0)
        keep(results, data=name, rows=n, method=f"refine {N}", centers=300, seed=0, **fitted(model, data, n))
    exact = DKRR(sigma="auto", lam="auto", random_state=0)
    keep(results, data=name, rows=n, method="exact", centers=n, seed=0, **fitted(exact, data, n))


def keep(results: Results, **record: Any) -> None:
    """Add a record to the results, and print it."""
    results.add(**record, gflops=machine_rate(), copied_gbps=copy_rate())
    print(results.records[-1], flush=True)


def main() -> None:
    """Run the benchmark, print a table, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=ALL)
    parser.add_argument("--rows", type=int, default=8000, help="use only the first N training rows")
    parser.add_argument("--refined", action="store_true", help="compare refined coarse models with 300 random centres")
    parser.add_argument("--out", type=Path, default=Path("krr-two-level.json"))
    args = parser.parse_args()
    headline()
    results = Results("krr-two-level")
    for name in args.only:
        data = split(*load(args.folder, name), seed=0)
        (refined if args.refined else centers)(name, data, args.rows, results)
        results.save(args.out)
    columns = {"data": "", "rows": ",d", "method": "", "centers": "d", "seed": "d", "mse": ".5g", "seconds": ".2f"}
    print(table(results.records, {**columns, "gflops": ".0f", "copied_gbps": ".1f"}))


if __name__ == "__main__":
    main()
