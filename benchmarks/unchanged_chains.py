"""Commands that :mod:`benchmarks.unchanged` runs one after another: the front door, and tools."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.unchanged_fits import hdf5, sha
from benchmarks.unchanged_race import launch

# Commands that are not recorded, and why.
EXEMPT = {
    "cacore.info": "it describes the machine",
    "cakernels info": "it describes the machine, or what `cacore.io info` records",
    "cakernels warmup": "it compiles, and writes nothing",
    "cakernels convert": "it is `cacore.io convert`, which makes the data of all cases",
    "cakrr.kriging": "it says where kriging is now",
    "cakernels": "its commands are recorded one by one",
}
_TIME_LIMIT = 600.0
_PATCHED = """
import numpy as np
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC

X = np.random.default_rng(0).normal(size=(300, 3))
print(SVC(C=2.0).fit(X, X[:, 0] > 0.1).decision_function(X[:5]))
print(KernelRidge(kernel="rbf").fit(X, X.sum(axis=1)).predict(X[:5]))
"""


@dataclass(frozen=True)
class Chain:
    """Commands in one folder.

    Attributes
    ----------
    name : str
        Name of the record's file.
    lines : tuple of str
        Each is run as ``python -m LINE``; DATA stands for the folder of the data. Lines that begin with "2 " run on two
        ranks. What they print and the files that they leave are recorded.
    """

    name: str
    lines: tuple[str, ...]

    @property
    def commands(self) -> set[str]:
        """Modules, or commands of ``cakernels``, that the lines run."""
        words = [line.removeprefix("2 ").split() for line in self.lines]
        return {f"cakernels {rest[0]}" if module == "cakernels" else module for module, *rest in words}


# Which of several candidates goes on depends on what they take; without a limit of time it does not: estimators.
_FRONT = "--within 500 --max-candidates 1 --threads 1 --memory-limit 4 --quiet --model model.h5 --report fit.json"

CHAINS = [
    Chain("front-regression", (
        f"cakernels fit DATA/mg.h5 --task regression --calibrate {_FRONT} --html fit.html",
        "cakernels predict model.h5 DATA/mg.h5 --interval 0.8 --threads 1 --quiet -o predict.csv --report predict.json",
        "cakernels report fit.json predict.json -o report.html",
    )),
    Chain("front-classification", (
        f"2 cakernels fit DATA/small.h5 --probability {_FRONT}",
        "cakernels predict model.h5 DATA/small.h5 --probability --threads 1 --quiet -o predict.csv",
    )),
    Chain("explain-parts", (
        "cakrr.bkrr2 DATA/space_ga.h5 --partitions 4 --sigma 1 --lambda 1e-4 --threads 1 --quiet --model model.h5",
        "2 cakernels explain model.h5 DATA/space_ga.h5 --interactions --threads 1 --quiet -o explain.csv",
        "cakernels export model.h5 model.onnx --quiet",
    )),
    Chain("export-svm", (
        "casvm.cpsvm DATA/ijcnn1.h5 --C 32 --gamma 2 --partitions 4 --threads 1 --quiet --model model.h5",
        "cakernels export model.h5 model.onnx --quiet",
    )),
    Chain("plan", (
        "cakernels plan bkrr2 --rows 200000 --features 8 --ranks 16 --threads 1 --report plan.json --quiet",
    )),
    Chain("traffic", (
        "2 casvm.cpsvm DATA/ijcnn1.h5 --C 32 --gamma 2 --threads 1 --quiet --comm-matrix traffic.npz",
        "cacore.traffic pattern traffic.npz -o pattern.png",
    )),
    Chain("tools", (
        "cacore.io convert DATA/cadata.csv converted.h5 --split 4000 --drop-duplicates --quiet",
        "cacore.io info converted.h5",
    )),
    Chain("patch", ("cakernels.patch --verbose patched.py",)),
]  # fmt: skip


def run(chain: Chain, folder: Path, data: Path, env: dict[str, str]) -> dict[str, Any]:
    """Run the commands in `folder`, which is empty; return what they printed and wrote.

    Raises
    ------
    RuntimeError
        A command fails; with its stderr.
    """
    (folder / "patched.py").write_text(_PATCHED)
    found: dict[str, Any] = {"printed": []}
    for line in chain.lines:
        words = line.removeprefix("2 ").replace("DATA", str(data)).split()
        command = launch(2 if line.startswith("2 ") else 1, "-m", *words)
        done = subprocess.run(command, cwd=folder, env=env, timeout=_TIME_LIMIT, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{line}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
        if words[0] != "cakernels":  # whose lines say how long they took
            found["printed"].append([done.stdout.replace(str(data), "DATA"), done.stderr])
    found |= {file.name: _content(file, data) for file in sorted(folder.iterdir())}
    return found


def _content(file: Path, data: Path) -> Any:
    """What a file says, without what depends on the machine or the moment."""
    if file.suffix == ".json":
        report = json.loads(file.read_text().replace(str(data), "DATA"))
        for plan in report.get("plans", ()):
            plan.pop("comm")  # messages of short runs, whose sizes depend on the machine's speed
        for trial in report.get("grid", ()):
            trial.pop("ended", None)  # seconds after the start
        return report
    if file.suffix == ".h5":
        return hdf5(file)
    if file.suffix in (".csv", ".onnx"):
        return sha(file)
    return "written"  # pages and pictures show times
