"""python -m benchmarks list | NAME [options] | compare BEFORE.json AFTER.json | plot RESULTS.json OUT.png."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from benchmarks.race import headline, recording
from benchmarks.results import SLOWER, Results, compared, table
from cacore.errors import InputError

# Name: module, whether it is given the data folder first, what it shows.
SCRIPTS = {
    "svm-engine": ("svm_speed", True, "the exact SVM against LIBSVM and oneDAL"),
    "svm-methods": ("svm_methods", True, "all SVM methods on the real data sets (Tables 2.9 to 2.14)"),
    "svm-memory": ("svm_memory", True, "peak memory of the exact SVM"),
    "krr-methods": ("krr_datasets", True, "all methods of ridge regression on the real data sets"),
    "krr-accuracy": ("krr_accuracy", True, "errors beside gradient boosted trees and xrfm"),
    "krr-speed": ("krr_speed", False, "BKRR2's path against LAPACK, KMeans, a matrix product, h5py"),
    "krr-grid": ("krr_grid", False, "one reduction a sigma against a factorisation a pair"),
    "dkrr": ("dkrr_speed", False, "DKRR against LAPACK with threads"),
    "partitioners": ("covtype_partition", False, "every partitioner on covtype"),
    "asygcd": ("asygcd_speed", True, "Asy-GCD against Algorithm 14, PSCD and others (Figs. 4.1 to 4.3)"),
}
SCALING = {
    "weak-scaling": "as many rows a rank, on virtual ranks (Tables 3.3 and 2.17)",
    "strong-scaling": "as many rows on any number of virtual ranks (Table 2.15)",
    "validate": "the virtual cluster against mpiexec on this machine, and against SimGrid",
}


def data_folder() -> str:
    """Where the data sets are."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    named = os.environ.get("CAKERNELS_DATA") or (str(beside) if beside.is_dir() else "")
    if not named:
        raise InputError("no data: set CAKERNELS_DATA to a folder with the data sets of docs/benchmarks.md")
    return named


def run(name: str, argv: list[str]) -> None:
    """One benchmark; its results go to NAME.json, or to what follows ``--results``."""
    out = Path(f"{name}.json")
    if "--results" in argv:
        at = argv.index("--results")
        if at + 1 == len(argv):
            raise InputError("--results: name a file")
        out = Path(argv[at + 1])
        argv = argv[:at] + argv[at + 2 :]
    if name in SCALING:
        from benchmarks.scaling import run as scale

        headline()
        results = scale(name, argv)
    else:
        module, data, _ = SCRIPTS[name]
        folder = [data_folder()] if data and not any(Path(word).is_dir() for word in argv[:1]) else []
        sys.argv = [f"benchmarks {name}", *folder, *argv]
        with recording() as records:
            importlib.import_module(f"benchmarks.{module}").main()
        results = Results(name, records)
    if results.records:
        results.save(out)
        print(f"{out}: {len(results.records)} records")


def compare(before: Path, after: Path) -> bool:
    """Print every number of seconds in both files; whether none got slower."""
    found = compared(Results.load(before), Results.load(after))
    if not found:
        raise InputError(f"{before}, {after}: they have no measurement in common")
    worst = sorted(found, key=lambda record: -record["ratio"])
    print(table(worst, {"what": "", "before": ".4f", "after": ".4f", "ratio": ".2f"}))
    slower = [record for record in worst if record["ratio"] > SLOWER]
    print(f"{len(slower)} of {len(found)} got slower by more than {SLOWER - 1:.0%}")
    return not slower


def main(argv: list[str]) -> int:
    """What the command line asks for; the exit status."""
    try:
        match argv:
            case ["list"] | []:
                for name, (_, _, text) in SCRIPTS.items():
                    print(f"{name:16} {text}")
                for name, text in SCALING.items():
                    print(f"{name:16} {text}")
            case ["compare", before, after]:
                return 0 if compare(Path(before), Path(after)) else 1
            case ["plot", results, out]:
                from benchmarks.plots import draw

                draw(Results.load(Path(results)), Path(out))
            case [name, *rest] if name in SCRIPTS or name in SCALING:
                run(name, rest)
            case _:
                raise InputError(f"{' '.join(argv)}: see python -m benchmarks list")
    except InputError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
