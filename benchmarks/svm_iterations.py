"""Iterations of SMO against the number of rows m (Table 2.3), on nested subsets of covtype.

python -m benchmarks.svm_iterations DATA_FOLDER [--sizes M ...] [--C C] [--gamma G] [--tol T] [--plot OUT.png]

In Table 2.3, iterations grow in proportion to m. An iteration optimises one pair of rows. SMOSVC optimises most pairs
inside working sets, which takes more pairs than choosing each one from all rows, as standard SMO and LIBSVM do.
LIBSVM's count is therefore shown as well, for affordable m. Both choose pairs by second-order gain; the solver of the
thesis, whose parameters and tolerance for "forest" are unknown, may not. A pair moves two rows, and every support
vector has moved at least once, so no solver can take fewer pairs than half the number of support vectors.

Measured for 10,000 to 160,000 rows and tol = 1e-3: with C = 1, SMOSVC's pairs grow as m^0.94 for gamma = 1 and as
m^0.91 for gamma = 8; support vectors grow as m^0.93 and m^0.84. For gamma = 1, tol = 0.1 and 20,000 rows, LIBSVM takes
0.34 pairs per row, close to the thesis' 0.31. With C = gamma = 32, which the thesis uses for covtype elsewhere, SMOSVC
takes 2.9 pairs per row for 10,000 rows and 3.5 for 200,000, growing as m^1.07, and LIBSVM 3.3 for 20,000.

Each run is done once, since it is about counts; the seconds are not a fair race.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import SVC

from benchmarks.race import headline
from benchmarks.svm_data import SETS
from cacore.files import check_writable, replacing
from casvm import SMOSVC

FOREST = {10_000: 3057, 20_000: 6172, 40_000: 11495, 80_000: 22001, 160_000: 47892, 320_000: 103404}  # Table 2.3
SIZES = [10_000, 20_000, 40_000, 80_000, 160_000]
SOLVERS = ("SMOSVC", "LIBSVM")
_BYTES = 4  # bytes per stored kernel value


@dataclass(frozen=True)
class Run:
    """Counts of one solver on m rows."""

    iterations: int
    support: int
    seconds: float
    read: float = 0.0  # GB of kernel values read again, if the solver counts them


def train(solver: str, X: NDArray[np.float64], y: NDArray[np.float64], args: argparse.Namespace) -> Run:
    """Train once."""
    given = {"C": args.C, "gamma": args.gamma, "tol": args.tol}
    model: Any = SMOSVC(**given, cache_gib=args.cache_gib)
    if solver == "LIBSVM":
        model = SVC(**given, cache_size=1024 * args.cache_gib)
    begun = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - begun
    read = 0.0 if solver == "LIBSVM" else _BYTES * model.solutions_[0].values_read / 1e9
    return Run(int(np.sum(model.n_iter_)), model.support_.size, seconds, read)


def exponent(counts: dict[int, float]) -> str:
    """Exponent of a power law fitted to the counts, and the range of rows, as text."""
    if len(counts) < 2:
        return "needs two sizes"
    slope = np.polyfit(np.log(list(counts)), np.log(list(counts.values())), 1)[0]
    return f"{slope:.3f}, from {min(counts):,} to {max(counts):,} rows"


def row(m: int, runs: dict[str, Run]) -> str:
    """Line of the table for m rows."""
    cells = [f"{m:,}"]
    for solver in SOLVERS:
        one = runs.get(solver)
        if one is None:
            cells += [""] * 4
        else:
            cells += [f"{one.iterations:,}", f"{one.iterations / m:.3f}", f"{one.support:,}", f"{one.seconds:.1f}"]
        if solver == "SMOSVC":
            cells.append(f"{one.read:.1f}" if one is not None else "")
    cells += [f"{FOREST[m]:,}", f"{FOREST[m] / m:.3f}"] if m in FOREST else ["", ""]
    return f"| {' | '.join(cells)} |"


def plot(counts: dict[str, dict[int, float]], title: str, path: Path) -> str:
    """Plot the counts against m on logarithmic axes; return a line for the output."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no figure: it needs matplotlib (pip install matplotlib)"
    figure = Figure((7, 5), layout="constrained")
    axis: Any = figure.subplots()
    for name, marker in zip(counts, "os^", strict=True):
        axis.loglog(list(counts[name]), list(counts[name].values()), f"{marker}-", label=name)
    ends = np.array([min(map(min, counts.values())), max(map(max, counts.values()))])
    axis.loglog(ends, ends, ":", color="gray", label="one per row")
    axis.set(xlabel="rows m", ylabel="iterations", title=title)
    axis.grid(which="both", alpha=0.3)
    axis.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)
    return f"figure: {path}"


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of covtype.data.xz")
    parser.add_argument("--sizes", metavar="M", nargs="+", type=int, default=SIZES)
    parser.add_argument(
        "--libsvm-most", metavar="M", type=int, default=20_000, help="maximum number of rows for LIBSVM"
    )
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=1.0)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--cache-gib", metavar="GIB", type=float, default=4.0)
    parser.add_argument("--plot", metavar="OUT.png", type=Path)
    args = parser.parse_args()
    args.sizes = sorted(set(args.sizes))
    if args.plot is not None:
        check_writable(args.plot)
        if args.plot.suffix.lower() not in (".png", ".pdf", ".svg"):
            parser.error(f"--plot {args.plot}: the name must end with .png, .pdf or .svg")
    return args


def main() -> None:
    """Train on growing numbers of rows, and print the table and the exponents."""
    args = options()
    headline()
    problem = SETS["covtype"](args.data)  # shuffled once: its first m rows are a subset, and the subsets are nested
    if not 2 <= args.sizes[0] <= args.sizes[-1] <= len(problem.X):
        raise SystemExit(f"--sizes: from 2 to {len(problem.X):,} rows")
    SMOSVC(gamma=1.0).fit(problem.X[:3000], problem.y[:3000])  # compiles
    title = f"covtype, class 2 against the rest: C = {args.C:g}, gamma = {args.gamma:g}, tol = {args.tol:g}"
    print(f"\n{title}\n")
    told = (": pairs", ", per row", ": support vectors", ": s")
    columns = [f"{solver}{what}" for solver in SOLVERS for what in told]
    columns.insert(len(told), "SMOSVC: GB read again")
    print(f"| m | {' | '.join(columns)} | thesis, forest: pairs | thesis, per row |")
    print("|---" * (len(columns) + 3) + "|", flush=True)
    counts: dict[str, dict[int, float]] = {solver: {} for solver in SOLVERS}
    seconds: dict[int, float] = {}
    for m in args.sizes:
        runs = {}
        for solver in SOLVERS:
            if solver == "SMOSVC" or m <= args.libsvm_most:
                runs[solver] = train(solver, problem.X[:m], problem.y[:m], args)
                counts[solver][m] = runs[solver].iterations
        seconds[m] = runs["SMOSVC"].seconds
        print(row(m, runs), flush=True)
    thesis: dict[int, float] = dict(FOREST)
    counts = {solver: found for solver, found in counts.items() if found} | {"thesis, forest": thesis}
    print("\n| | iterations grow as m to the power of |\n|---|---|")
    for name, found in counts.items():
        print(f"| {name} | {exponent(found)} |")
    print(f"\nSeconds of SMOSVC grow as m to the power of {exponent(seconds)}.")
    if args.plot is not None:
        print("\n" + plot(counts, title, args.plot))


if __name__ == "__main__":
    main()
