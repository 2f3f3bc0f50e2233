"""The test error of kernel ridge regression beside gradient boosted trees and xrfm: random splits, one table.

python -m benchmarks.krr_accuracy DATA_FOLDER [--out FILE.json] [--only NAME|FILE ...] [--models NAME ...] [--splits N]

All parameters are chosen on training rows. The error is the RMSE on the test rows over the standard deviation of their
targets; if some test rows are also training rows, a second figure excludes them. Each result is written to the file at
once, and runs that are already in the file are skipped. So peers can run in a separate environment (xrfm needs torch)
and write to the same file. Our models are commands with options, for example --models "bkrr2 --route soft" or
"fit --within 5m"; the trees of other packages take a time as well: "lightgbm --within 5m". A FILE is any text file,
with the target in its last column.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks import front
from benchmarks.krr_data import SETS, Split, load, source, split
from benchmarks.krr_peers import PEERS, Facts
from benchmarks.race import headline
from cacore import __version__
from cacore.checks import duration
from cacore.comm import Communicator
from cakernels.families import load as load_model

# Commands of cakrr, optionally with options, for example for other kernels and metrics.
OURS = ["bkrr2", "twolevel", "dkrr"]
LARGEST_EXACT = 12_000  # maximum number of rows for dkrr, whose matrix is n x n


def ours(
    X: Any, y: Any, T: Any, seed: int, *, command: str, parts: int | None, ranks: int
) -> tuple[NDArray[np.float64], Facts]:
    """Run a command of cakrr on some ranks; its report has the seconds without compiling, and the bytes sent.

    "fit" is ``cakernels fit`` in one process with as many threads.
    """
    method, *options = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.h5"
        with h5py.File(data, "w") as file:
            file["train/X"], file["train/y"] = X, y
            file["test/X"], file["test/y"] = T, np.arange(float(len(T)))  # meaningless targets
        options += ["--seed", str(seed)]
        if method == "fit":
            model, told = front.fitted(data, ranks, *options)
        else:
            divided = [] if method == "dkrr" or parts is None else ["--partitions", str(parts)]
            model, told = _trained(data, method, ranks, *divided, *options)
        predicted = model.predict(T)
    seconds, sent = told["seconds"], told["comm"]
    return predicted, {
        "fit_seconds": seconds["partition"] + seconds["train"],
        "predict_seconds": seconds["predict"],
        "training_bytes": sent["train"]["bytes"],
        "partition_bytes": sent["partition"]["bytes"],
        "chosen": told["params"],
    }


def _trained(data: Path, method: str, ranks: int, *options: str) -> tuple[Any, Facts]:
    """The model of a command of cakrr, and its report."""
    model, report = data.with_suffix(".model.h5"), data.with_suffix(".json")
    start = ["mpiexec", "-n", str(ranks), sys.executable, "-m", f"cakrr.{method}", str(data), "--quiet"]
    subprocess.run([*start, "--model", str(model), "--report", str(report), *options], check=True)
    return load_model(model, Communicator()), json.loads(report.read_text())


def runnable(name: str, data: str, threads: int) -> tuple[Callable[..., tuple[Any, Facts]] | None, str]:
    """A model for a data set, as a function of (X, y, T, seed), and its version; or None and the reason."""
    peer, *limit = name.split(" --within ")
    if peer in PEERS:
        package, model = PEERS[peer]
        if importlib.util.find_spec(package) is None:
            return None, f"{package} is not installed"
        timed = {"within": duration(limit[0], "--within")} if limit else {}
        return partial(model, threads=threads, **timed), version({"sklearn": "scikit-learn"}.get(package, package))
    if name.split()[0] == "dkrr" and source(data).train > LARGEST_EXACT:
        return None, f"exact methods are run on up to {LARGEST_EXACT:,} rows"
    return partial(ours, command=name, parts=source(data).parts, ranks=threads), __version__


def named(word: str) -> str:
    """A data set by its name, or a file by its path."""
    if word in SETS:
        return word
    if not Path(word).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {word}, and no data set of that name: {', '.join(SETS)}")
    return str(Path(word).resolve())


def error(predicted: NDArray[np.float64], t: NDArray[np.float64]) -> float:
    """RMSE over the standard deviation of the targets."""
    return float(np.sqrt(np.mean((predicted - t) ** 2)) / t.std())


def measured(rows: Split, model: Callable[..., tuple[Any, Facts]], seed: int) -> dict[str, Any]:
    """Record of one model on one split."""
    predicted, facts = model(rows.X, rows.y, rows.T, seed)
    new = ~rows.seen
    return {"error": error(predicted, rows.t), "error_new": error(predicted[new], rows.t[new]), **facts}


def table(records: list[dict[str, Any]]) -> str:
    """A Markdown table with a line per data set and model, with medians over the splits."""
    lines = [
        "| data | model | RMSE / deviation | each split | unseen rows | fit s | predict s | bytes in training |",
        "|---" * 8 + "|",
    ]
    for data, model in dict.fromkeys((one["data"], one["model"]) for one in records):
        mine = [one for one in records if (one["data"], one["model"]) == (data, model)]

        def median(key: str, mine: list[dict[str, Any]] = mine) -> float:
            return statistics.median(one[key] for one in mine)

        sent = f"{median('training_bytes'):,.0f}" if "training_bytes" in mine[0] else ""
        each = ", ".join(f"{one['error']:.4f}" for one in mine)
        new = f"{median('error_new'):.4f}" if any(one["seen"] for one in mine) else ""
        lines.append(
            f"| {data} | {model} | {median('error'):.4f} | {each} | {new} | {median('fit_seconds'):.1f} "
            f"| {median('predict_seconds'):.2f} | {sent} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the models that are not in the file yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("krr_accuracy.json"))
    names = [name for name in SETS if name != "CASP12k"]
    parser.add_argument("--only", nargs="+", type=named, metavar="NAME|FILE", default=names, help=", ".join(SETS))
    usual = [*OURS, *(name for name in PEERS if name != "xrfm_whole")]
    parser.add_argument("--models", nargs="+", default=usual, help=f"{', '.join([*OURS, *PEERS])}, or a command")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="threads of the peers, and ranks of our methods")
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads would occupy the others' cores
    headline()
    records = json.loads(args.out.read_text()) if args.out.exists() else []
    for data in args.only:
        X, y = load(args.data, data)
        for seed in range(args.splits):
            rows = split(X, y, seed)
            print(f"{data}, split {seed}: {rows}", flush=True)
            for name in args.models:
                if any((one["data"], one["split"], one["model"]) == (data, seed, name) for one in records):
                    continue
                model, why = runnable(name, data, args.threads)
                if model is None:
                    print(f"  {name}: skipped, {why}", flush=True)
                    continue
                found = measured(rows, model, seed)
                about = {"data": data, "model": name, "version": why, "split": seed, "threads": args.threads}
                sizes = {"train": len(rows.X), "test": len(rows.T), "seen": int(rows.seen.sum())}
                records.append({**about, **sizes, **found})
                args.out.write_text(json.dumps(records, indent=1) + "\n")
                print(f"  {name}: {found['error']:.4f} in {found['fit_seconds']:.1f} s", flush=True)
    print(table([one for one in records if one["data"] in args.only]))


if __name__ == "__main__":
    main()
