"""One command for all benchmarks.

python -m benchmarks list
python -m benchmarks NAME [options] [--results FILE.json]
python -m benchmarks compare BEFORE.json AFTER.json
python -m benchmarks plot RESULTS.json OUT.png [--what KIND]

KIND: scaling, validation, error, exact, intervals, race, parts, matrix, timeline or anytime.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import generated
from benchmarks.race import headline
from benchmarks.results import SLOWER, Results, compared, recording, table
from cacore.errors import InputError

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"  # the data sets, if they are beside this project

# Name: module, True if its first argument is the data folder, description.
SCRIPTS = {
    "svm-engine": ("svm_speed", True, "the exact SVM against LIBSVM and oneDAL"),
    "kinds": ("kinds", False, "29 kinds of problems, small and large, beside LIBSVM and oneDAL, in processor seconds"),
    "records": ("records", True, "published settings of kernel SVMs, run again beside LIBSVM and oneDAL"),
    "dropin": ("dropin", True, "whole scikit-learn programs, as they are and patched by cakernels"),
    "svr-engine": ("svr_speed", True, "the exact support vector regression against LIBSVM and oneDAL"),
    "svm-wide": ("svm_wide", False, "the exact SVM on sparse rows of very many features, beside LIBSVM and oneDAL"),
    "svm-predict": ("svm_predict", False, "prediction of the exact SVM, dense rows, beside LIBSVM and oneDAL"),
    "svm-methods": ("svm_methods", True, "all SVM methods on the real data sets (Tables 2.9 to 2.14)"),
    "svm-search": ("svm_search", True, "choosing C and gamma in one call, beside GridSearchCV and liquidSVM"),
    "svm-probability": ("svm_probability", True, "probabilities beside SVC's and CalibratedClassifierCV's"),
    "svm-memory": ("svm_memory", True, "peak memory of the exact SVM"),
    "krr-methods": ("krr_datasets", True, "all methods of ridge regression on the real data sets"),
    "krr-accuracy": ("krr_accuracy", True, "errors beside gradient boosted trees and xrfm"),
    "class-accuracy": ("class_accuracy", True, "accuracy of `cakernels fit` beside gradient boosted trees"),
    "defaults": ("defaults", True, "estimators with their defaults, beside those that they had at first"),
    "krr-speed": ("krr_speed", False, "the steps of BKRR2 against LAPACK, KMeans, a matrix product and h5py"),
    "krr-grid": ("krr_grid", True, "one band reduction per sigma against one factorisation per pair"),
    "dkrr": ("dkrr_speed", False, "DKRR against LAPACK with threads"),
    "anytime": ("anytime", True, "the search of `cakernels fit` beside a random search: error against seconds"),
    "krr-intervals": ("krr_intervals", True, "intervals of ridge regression: coverage and width"),
    "krr-exact": ("krr_exact", True, "exact ridge regression by conjugate gradients: error against seconds"),
    "covtype-ridge": ("covtype_ridge", True, "all of covtype by exact ridge regression on near rows"),
    "krr-two-level": ("krr_two_level", True, "two-level models: random centres beside pivots, and refinement"),
    "krr-subset": ("krr_subset", True, "least squares on M points: digits, errors beside others, seconds, the tree"),
    "kriging": ("kriging", False, "kriging of fields of known covariance: errors, seconds, memory, virtual ranks"),
    "kriging-peers": ("kriging_peers", False, "kriging beside other packages' kriging and Gaussian processes"),
    "partitioners": ("covtype_partition", True, "every partitioner on covtype, beside scikit-learn's KMeans"),
    "divide": ("divide", False, "dividing rows into many parts, in one level and in two, on virtual ranks"),
    "balance": ("balance", True, "part sizes and ranks' busy time of KRR and SVM methods (Figs. 2.4, 2.6, 3.6)"),
    "krr-time": ("krr_time", True, "error against time for the KRR family (Figs. 3.5 and 3.8)"),
    "io": ("io_rates", False, "reading and writing: HDF5, CSV, LIBSVM text and npz on 1, 2 and 4 ranks"),
    "io-large": (
        "io_large",
        False,
        "convert on files of several GB: rate, peak memory, decompression alone; HDF5 by chunk size",
    ),
    "many-ranks": ("many_ranks", True, "64 ranks on this machine: start-up time, and memory per rank"),
    "plan-check": ("plan_check", False, "cakernels plan beside the runs that it plans: seconds, memory, bytes"),
    "soak": ("soak", False, "200 fits and predictions of every estimator: memory, threads, files and communicators"),
    "asygcd": ("asygcd_speed", True, "Asy-GCD against Algorithm 14, PSCD and others (Figs. 4.1 to 4.3)"),
}
SCALING = {
    "weak-scaling": "the same number of rows per rank, on virtual ranks (Tables 3.3 and 2.17)",
    "weak-parts": "weak scaling to 256 virtual ranks, parts of realistic size of which some are trained",
    "strong-scaling": "the same number of rows in all, on virtual ranks (Table 2.15)",
    "validate": "the virtual cluster against mpiexec on this machine, and against SimGrid",
    "network": "the virtual cluster against ranks in network namespaces behind a slow line (root)",
}


@contextmanager
def data_folder() -> Iterator[Path]:
    """Folder of the data sets; without them, a temporary folder of generated ones."""
    named = os.environ.get("CAKERNELS_DATA")
    if named and not Path(named).is_dir():
        raise InputError(f"CAKERNELS_DATA: there is no folder {named}")
    if named or BESIDE.is_dir():
        yield Path(named or BESIDE)
        return
    print(f"{generated.MARK} data; name a folder with the real sets of docs/benchmarks.md in CAKERNELS_DATA")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / generated.MARK).touch()
        yield Path(folder)


def run(name: str, argv: list[str]) -> None:
    """Run one benchmark; its results go to NAME.json, or to the file given by ``--results``."""
    out = Path(f"{name}.json")
    if "--results" in argv:
        at = argv.index("--results")
        if at + 1 == len(argv):
            raise InputError("--results: name a file")
        out = Path(argv[at + 1])
        argv = argv[:at] + argv[at + 2 :]
    if name in SCALING:
        headline()
        if name in ("network", "weak-parts"):
            results = importlib.import_module(f"benchmarks.{name.replace('-', '_')}").run(argv)
        else:
            from benchmarks.scaling import run as scale

            results = scale(name, argv)
        keep(results, out)
        return
    module, data, _ = SCRIPTS[name]
    with recording(name) as results:
        try:
            if not data or (argv and Path(argv[0]).exists()):
                script(module, name, argv)
            else:
                with data_folder() as folder:
                    if generated.is_generated(folder):
                        results.about["data"] = generated.MARK
                    script(module, name, [str(folder), *argv])
        finally:  # a script that misses a bound ends with status 1
            keep(results, out)


def script(module: str, name: str, argv: list[str]) -> None:
    """Run one of `SCRIPTS`."""
    sys.argv = [f"benchmarks {name}", *argv]
    importlib.import_module(f"benchmarks.{module}").main()


def keep(results: Results, out: Path) -> None:
    """Write the records, if there are any."""
    if results.records:
        results.save(out)
        print(f"{out}: {len(results.records)} records")


def compare(before: Path, after: Path) -> bool:
    """Print every timing that is in both files; return True if none got slower."""
    found = compared(Results.load(before), Results.load(after))
    if not found:
        raise InputError(f"{before}, {after}: they have no measurement in common")
    worst = sorted(found, key=lambda record: -record["ratio"])
    print(table(worst, {"what": "", "before": ".4f", "after": ".4f", "ratio": ".2f"}))
    slower = [record for record in worst if record["ratio"] > SLOWER]
    print(f"{len(slower)} of {len(found)} got slower by more than {SLOWER - 1:.0%}")
    return not slower


def main(argv: list[str]) -> int:
    """Run the command line; return the exit status."""
    try:
        match argv:
            case ["list"] | []:
                for name, (_, _, text) in SCRIPTS.items():
                    print(f"{name:16} {text}")
                for name, text in SCALING.items():
                    print(f"{name:16} {text}")
            case ["-h" | "--help"]:
                print(__doc__.strip())
            case ["compare", before, after]:
                return 0 if compare(Path(before), Path(after)) else 1
            case ["plot", results, out, *what] if not what or (what[0] == "--what" and len(what) == 2):
                from benchmarks.plots import draw

                draw(Results.load(Path(results)), Path(out), what[-1] if what else None)
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
