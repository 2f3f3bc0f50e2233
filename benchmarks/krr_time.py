"""Error against time for the KRR family (Figs. 3.5 and 3.8): growing subsets of one grid, for all methods.

python -m benchmarks.krr_time DATA_FOLDER [--only NAME ...] [--methods NAME ...] [--pairs K ...] [--ranks R]

The thesis tries one pair of sigma and lambda after the other. Here all lambdas of a sigma share one reduction, so each
point of a curve is a whole run, with the first K sigmas and the first K lambdas of the grid: the seconds of
partitioning, training and predicting, and the test error of the pair chosen on validation rows. kkrr3 and bkrr3 use the
best model for each test row, which needs the true targets: they bound the gain by better routing.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.generated import label
from benchmarks.krr_data import SETS, native
from benchmarks.race import headline, machine_rate
from benchmarks.reports import facts, run
from benchmarks.results import Record, record, table

METHODS = ("dckrr", "kkrr", "kkrr2", "kkrr3", "bkrr", "bkrr2", "bkrr3")
# From the middle outwards, so that the first pair is a reasonable first try.
SIGMAS = (2.0, 1.0, 4.0, 0.5, 8.0)
LAMBDAS = (1e-4, 1e-5, 1e-3, 1e-6, 1e-2)
COLUMNS = {
    "data": "", "method": "", "pairs": "", "seconds": ".2f", "partition_seconds": ".2f", "train_seconds": ".2f",
    "predict_seconds": ".2f", "mse": ".4g", "sigma": "", "lambda": "",
}  # fmt: skip


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=SETS, default=["cadata"])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--pairs", nargs="+", type=int, choices=range(1, len(SIGMAS) + 1), default=[1, 2, 3, 5],
                        metavar="K", help="K x K pairs of sigma and lambda")  # fmt: skip
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    headline()
    found: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            data, shown = native(args.data, name, Path(folder) / f"{name}.h5"), label(args.data, name)
            for method in args.methods:
                for count in args.pairs:
                    grid = [",".join(map(str, values[:count])) for values in (SIGMAS, LAMBDAS)]
                    words = ["--partitions", str(SETS[name].parts), "--sigma", grid[0], "--lambda", grid[1]]
                    told = run(f"cakrr.{method}", data, words, args.ranks)
                    chosen = {key: f"{told['params'][key]:g}" for key in ("sigma", "lambda")}
                    found.append({"data": shown, "method": method, "pairs": count * count, **chosen, **facts(told)})
                    kept = {key: value for key, value in found[-1].items() if key not in chosen}
                    record(**kept, ranks=args.ranks)
    print(f"{args.ranks} ranks; matrix product afterwards {machine_rate():.0f} GFLOP/s")
    print(table(found, COLUMNS))


if __name__ == "__main__":
    main()
