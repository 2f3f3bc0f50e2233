"""Check that a refactoring changed no number: record two checkouts, compare the records, and race the two.

python -m benchmarks.unchanged record FOLDER [--checkout DIR] [--only PATTERN ...]
python -m benchmarks.unchanged compare A B [--allow FIELD ...]
python -m benchmarks.unchanged race OLD_CHECKOUT NEW_CHECKOUT [--rounds N] [--only PATTERN ...]

`record` runs all commands on 1 to 4 ranks, fits all estimators, and lists the interface, always with one thread per
rank, so that nothing depends on the machine's speed. It writes one JSON file per case to FOLDER. `compare` compares
everything in these files except times, memory, environment and paths. Compiled code is cached in __pycache__, and a
function inlined from another file is not recompiled when that file changes: remove these folders after such a change.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import unchanged_chains, unchanged_race
from benchmarks.unchanged_cases import COMMANDS, Case, data_arguments, make_data
from benchmarks.unchanged_chains import CHAINS, Chain
from benchmarks.unchanged_fits import TASKS, hdf5, plain, sha
from benchmarks.unchanged_race import SCRIPT, environment, launch

# Fields of these names, with everything below them, are not compared, nor fields with seconds in their names. The last
# digits of an estimated condition depend on where arrays lie in memory.
IGNORED = {"memory", "environment", "command", "path", "imbalance", "average_parallelism", "condition"}
TIMES = re.compile(r"(^|_)seconds(_|$)")
_TIME_LIMIT, _SCRIPT_LIMIT = 600.0, 3600.0  # seconds per command, and for all fits together


class Recorder:
    """Runner of the cases in one checkout."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        self.folder, self.checkout, self.env = folder, checkout, environment(checkout)
        self.data, self.work = folder / "data", folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)

    def run(self, ranks: int, *words: str, limit: float = _TIME_LIMIT) -> None:
        """Run Python; raise a RuntimeError with its stderr if it fails."""
        done = subprocess.run(
            launch(ranks, *words), cwd=self.checkout, env=self.env, timeout=limit, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()[-2000:]}")

    def _read(self, report: Path) -> dict[str, Any]:
        """A report without the place of the data, which notes name."""
        content: dict[str, Any] = json.loads(report.read_text().replace(str(self.data), "DATA"))
        return content

    def script(self, task: str, records: Path, patterns: list[str]) -> float:
        """Run a task of the script, which writes records itself; return seconds."""
        begun = time.perf_counter()
        words = ["-P", str(SCRIPT), task, str(self.data), str(records), *patterns]
        try:
            self.run(2 if task == "collective" else 1, *words, limit=_SCRIPT_LIMIT)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            write(records / f"{task}.json", {"failed": str(error)})
        return time.perf_counter() - begun

    def kept(self, case: Case | Chain, records: Path) -> float:
        """Run a command, or several, and write the record; return seconds."""
        begun = time.perf_counter()
        try:
            found = self.chain(case) if isinstance(case, Chain) else self.command(case)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            found = {"failed": str(error)}
        write(records / f"{case.name}.json", found)
        return time.perf_counter() - begun

    def check_origin(self) -> None:
        """Raise RuntimeError unless the checkout's packages are the ones imported."""
        told = subprocess.run(
            [sys.executable, "-c", "import cacore; print(cacore.__file__)"], cwd=self.checkout, env=self.env,
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        if not Path(told.stdout.strip()).resolve().is_relative_to(self.checkout.resolve()):
            raise RuntimeError(f"{told.stdout.strip()} is imported, not {self.checkout}")

    def place(self, case: Case | Chain) -> Path:
        """An empty folder for a case."""
        folder = self.work / case.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def chain(self, chain: Chain) -> dict[str, Any]:
        """Run commands one after another; return the record."""
        return unchanged_chains.run(chain, self.place(chain), self.data, self.env)

    def command(self, case: Case) -> dict[str, Any]:
        """Run a command, and predictions with its model; return the record."""
        place = self.place(case)
        options = case.options.replace("OUT.model", str(place / "libsvm")).split()
        arguments = [*data_arguments(case, self.data), *options]
        model, report, traffic = place / "model.h5", place / "report.json", place / "traffic.npz"
        if not case.module.endswith("krr3"):  # an oracle has no model
            arguments += ["--model", str(model)]
        if case.module != "asygcd":
            arguments += ["--comm-matrix", str(traffic)]
        limits = ["--threads", str(case.threads), "--memory-limit", "4", "--quiet"]
        words = ["-m", case.module, *arguments, *limits, "--report", str(report)]
        found: dict[str, Any] = {}
        if case.resumed:
            pieces = place / "checkpoint"
            words += ["--checkpoint", str(pieces)]
            self.run(case.ranks, *words)
            found["undisturbed"] = {"report": self._read(report), "model": hdf5(model)}
            found["pieces"] = sorted(file.name for file in pieces.glob("*.npz"))
            for number, name in enumerate(found["pieces"]):
                if number % 4 < 2:  # in pairs: some pieces consist of one file per rank
                    (pieces / name).unlink()
        self.run(case.ranks, *words)
        found["report"] = self._read(report)
        found["report"].pop("resumed", None)  # the number of pieces, which an undisturbed run does not have
        if case.resumed:
            again = {"report": found["report"], "model": hdf5(model)}
            found["resumed"] = [field.split(":")[0] for field in differences(found["undisturbed"], again, [])]
        if case.threads > 1:
            found["report"] = settled(found["report"])
        else:
            found |= {"model": hdf5(model)} if model.exists() else {}
            found |= {"traffic": arrays(traffic)} if traffic.exists() else {}
        found["libsvm"] = {file.name: sha(file) for file in sorted(place.glob("libsvm*"))}
        if case.predict:
            found["predict"] = self.predict(case, model, place)
        return found

    def predict(self, case: Case, model: Path, place: Path) -> dict[str, Any]:
        """Predict the test rows with the saved model on another number of ranks."""
        report, csv = place / "predict.json", place / "predict.csv"
        family = case.module.split(".")[0]
        words = ["-m", f"{family}.predict", str(model), str(self.data / f"{case.data}.h5"), "--threads", "1", "--quiet"]
        values = family in ("cakriging", "cakrr") or case.module in ("casvm.svr", "casvm.oneclass")
        words += [] if values else ["--decisions"]
        self.run(case.predict, *words, "-o", str(csv), "--report", str(report))
        told = json.loads(report.read_text())
        del told["params"]["model"]  # its path
        return {"report": told, "csv": sha(csv)}


def settled(report: dict[str, Any]) -> dict[str, Any]:
    """The fields of an Asy-GCD report that do not depend on the order of its threads."""
    kept = {key: report[key] for key in ("method", "ranks", "threads_per_rank", "partition_sizes", "params", "data")}
    kept["accuracy"] = round(report["metrics"]["accuracy"], 3)
    kept["fields"] = sorted(report) + sorted(report["solver"])
    kept["converged"] = all(gap <= report["params"].get("tol", 1e-3) for gap in report["solver"]["gap"])
    return kept


def arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file."""
    with np.load(path) as file:
        return {name: plain(file[name]) for name in file.files if "seconds" not in name}


def chosen(name: str, patterns: list[str]) -> bool:
    """True if a case is requested."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def record(args: argparse.Namespace) -> int:
    """Run the matching cases and write their records; return exit status 1 if any failed."""
    begun = time.perf_counter()
    folder, checkout = args.folder.resolve(), args.checkout.resolve()
    recorder, records = Recorder(folder, checkout), folder / "records"
    records.mkdir(exist_ok=True)
    for file in records.glob("*.json"):
        if chosen(file.stem, args.only):
            file.unlink()
    recorder.check_origin()
    make_data(args.data.resolve(), recorder.data, checkout, recorder.env)
    for file in recorder.data.glob("*.h5"):
        if chosen(f"data-{file.stem}", args.only):
            write(records / f"data-{file.stem}.json", hdf5(file))
    commands = [case for case in (*COMMANDS, *CHAINS) if chosen(case.name, args.only)]
    tasks = [task for task, names in TASKS.items() if any(chosen(name, args.only) for name in names)]
    works = {task: partial(recorder.script, task, records, args.only) for task in tasks}
    works |= {case.name: partial(recorder.kept, case, records) for case in commands}
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = {pool.submit(work): name for name, work in works.items()}
        for number, job in enumerate(as_completed(jobs), start=1):
            print(f"{number:3d} of {len(jobs)}: {jobs[job]}, {job.result():.1f} s", flush=True)
    found = {file.stem: json.loads(file.read_text()) for file in sorted(records.glob("*.json"))}
    failed = {name: one["failed"] for name, one in found.items() if "failed" in one}
    for name, message in failed.items():
        print(f"{name} failed:\n{message}")
    print(f"{len(found)} cases in {folder}, {len(failed)} failed, {time.perf_counter() - begun:.0f} s")
    return 1 if failed else 0


def write(path: Path, found: dict[str, Any]) -> None:
    """Write one record."""
    path.write_text(json.dumps(found, indent=1) + "\n")


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Fields by dotted path, without the ignored ones."""
    pairs: Any = enumerate(value) if isinstance(value, list) else value.items()
    found: dict[str, Any] = {}
    for key, one in pairs:
        if str(key) in IGNORED or TIMES.search(str(key)):
            continue
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(one, dict | list) and one:
            found |= flat(one, inner)
        else:
            found[inner] = one
    return found


def differences(a: dict[str, Any], b: dict[str, Any], allowed: list[str]) -> list[str]:
    """Fields that differ, with both values; a field that only one side has counts unless it is allowed."""
    ours, theirs = flat(a), flat(b)
    found = []
    for name in dict.fromkeys([*ours, *theirs]):
        if name in ours and name in theirs:
            if ours[name] != theirs[name]:
                found.append(f"{name}: {ours[name]!r:.200} and {theirs[name]!r:.200}")
        elif not chosen(name, allowed):
            side, value = ("first", ours[name]) if name in ours else ("second", theirs[name])
            found.append(f"{name}: {value!r:.200} in the {side} alone")
    return found


def compare(args: argparse.Namespace) -> int:
    """Print one line per case; return exit status 1 if anything differs."""
    sides = [{file.stem: file for file in (folder / "records").glob("*.json")} for folder in (args.a, args.b)]
    names = [name for name in sorted(sides[0].keys() | sides[1].keys()) if chosen(name, args.only)]
    equal = 0
    for name in names:
        if any(name not in side for side in sides):
            found = [f"only in the {'first' if name in sides[0] else 'second'} folder"]
        else:
            found = differences(*(json.loads(side[name].read_text()) for side in sides), args.allow)
        equal += not found
        more = f" (and {len(found) - 1} more)" if len(found) > 1 and not args.all else ""
        print(f"{name:<24} " + ("\n    ".join(["", *found]) if found and args.all else (found or ["equal"])[0] + more))
    print(f"{len(names)} cases, {equal} equal")
    return 0 if names and equal == len(names) else 1


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tasks = parser.add_subparsers(required=True)
    p = tasks.add_parser("record", help="run the cases of a checkout")
    p.add_argument("folder", type=Path)
    p.add_argument("--checkout", type=Path, default=Path(), help="folder of the checkout (default: the current folder)")
    p.add_argument("--data", type=Path, default=Path(os.environ.get("CAKERNELS_DATA", "../shared/data")))
    p.add_argument("--jobs", type=int, default=1, help="number of cases to run at a time")
    p.add_argument(
        "--only",
        metavar="PATTERN",
        nargs="+",
        default=["*"],
        help="patterns of case names, such as 'fit-*' or 'bkrr2*'",
    )
    p.set_defaults(work=record)
    p = tasks.add_parser("compare", help="compare the records of two checkouts")
    p.add_argument("a", type=Path)
    p.add_argument("b", type=Path)
    p.add_argument("--allow", metavar="FIELD", nargs="+", default=[], help="patterns of fields that one side may lack")
    p.add_argument("--only", metavar="PATTERN", nargs="+", default=["*"])
    p.add_argument("--all", action="store_true", help="print every field that differs, not only the first")
    p.set_defaults(work=compare)
    p = tasks.add_parser("race", help="time two checkouts, alternating")
    unchanged_race.add_options(p)
    p.set_defaults(work=unchanged_race.race)
    args = parser.parse_args()
    return int(args.work(args))


if __name__ == "__main__":
    sys.exit(main())
