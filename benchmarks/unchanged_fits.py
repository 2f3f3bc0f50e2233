"""Script that :mod:`benchmarks.unchanged` runs inside a checkout: fits, the interface, timed fits.

PYTHONPATH=CHECKOUT python -P unchanged_fits.py fits|collective|interface DATA OUT PATTERN ...
PYTHONPATH=CHECKOUT python -P unchanged_fits.py time WORK DATA

The script only uses public imports and is self-contained, since it also runs in old checkouts that do not have it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import importlib
import inspect
import io
import json
import re
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse as sp

import asygcd
import cakrr
import casvm
import partition

_KRR = "dkrr dckrr kkrr kkrr2 kkrr3 bkrr bkrr2 bkrr3 twolevel predict"
_SVM = "dissmo cascade dcsvm dcfilter cpsvm bkmsvm fcfssvm casvm predict"
METHODS = [f"cakrr.{name}" for name in _KRR.split()] + [f"casvm.{name}" for name in _SVM.split()]
METHODS += ["asygcd", "asygcd.predict"]


def plain(value: Any) -> Any:
    """A value for JSON: floats by their repr, arrays of more than 8 numbers by type, shape and hash."""
    if sp.issparse(value):
        return {"shape": list(value.shape), **{k: plain(getattr(value, k)) for k in ("data", "indices", "indptr")}}
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        if value.size <= 8 or value.dtype.kind not in "biuf":
            return plain(value.tolist())
        return f"{value.dtype} {list(value.shape)} {hashlib.sha256(np.ascontiguousarray(value)).hexdigest()[:16]}"
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return repr(value)
    return value if isinstance(value, int | None) else str(value)


def hdf5(path: Path) -> dict[str, Any]:
    """Contents of an HDF5 file: arrays and attributes, with JSON parsed."""
    found: dict[str, Any] = {}

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = plain(np.asarray(item[()]))
        for key, value in item.attrs.items():
            text = str(value)
            found[f"{name}@{key}"] = plain(json.loads(text) if text.startswith("{") else value)

    with h5py.File(path, "r") as file:
        look("", file)
        file.visititems(look)
    return found


@functools.cache
def rows(folder: Path, name: str) -> tuple[Any, ...]:
    """X and y of the training rows and the test rows of a native file; CSR if the file has CSR."""
    found: list[Any] = []
    with h5py.File(folder / f"{name}.h5", "r") as file:
        for split in (file["train"], file["test"]):
            X = split["X"]
            if isinstance(X, h5py.Group):
                X = sp.csr_matrix((X["data"][()], X["indices"][()], X["indptr"][()]), shape=tuple(X.attrs["shape"]))
            found += [X if sp.issparse(X) else X[()], split["y"][()]]
    return tuple(found)


def described(model: Any, X: Any, y: Any) -> dict[str, Any]:
    """Public attributes after fitting, the saved model, and its predictions for the rows X."""
    found: dict[str, Any] = {}
    for name in dir(model):
        if name.endswith("_") and not name.startswith("_") and name != "model_":
            with contextlib.suppress(AttributeError):  # for example coef_ of a nonlinear kernel
                found[name] = plain(getattr(model, name))
    for ask in ("predict", "decision_function"):
        if hasattr(model, ask):
            found[ask] = plain(getattr(model, ask)(X))
    if hasattr(model, "score"):
        found["score"] = plain(model.score(X, y))
    if hasattr(model, "model_") and getattr(model, "comm", None) is None:
        with tempfile.TemporaryDirectory() as folder:
            model.model_.save(Path(folder) / "model.h5")
            found["model"] = hdf5(Path(folder) / "model.h5")
    return found


@dataclass(frozen=True)
class Fit:
    """A case: an estimator or partitioner, its data set, and options of the fit."""

    make: Callable[[], Any]
    data: str
    weighted: bool = False
    dtype: str = "float64"

    def run(self, folder: Path) -> dict[str, Any]:
        """Fit, and describe."""
        X, y, Xt, yt = rows(folder, self.data)
        more = {"sample_weight": np.random.default_rng(1).integers(0, 4, len(y)) / 2.0} if self.weighted else {}
        return described(self.make().fit(X.astype(self.dtype), y, **more), Xt.astype(self.dtype), yt)


@dataclass(frozen=True)
class Precomputed(Fit):
    """A fit on the precomputed kernel matrix of 1,000 rows."""

    def run(self, folder: Path) -> dict[str, Any]:
        """Fit, and describe."""
        X, y, Xt, yt = (part[:1000] for part in rows(folder, self.data))
        K, Kt = (np.exp(-2.0 * np.square(some[:, None] - X).sum(axis=2)) for some in (X, Xt))
        return described(self.make().fit(K, y), Kt, yt)


_FEW = {"sigma": [0.5, 1.0, 2.0], "lam": [1e-5, 1e-4, 1e-3], "random_state": 0}
_BAND = {"sigma": [0.5, 1.0, 2.0], "lam": list(np.logspace(-6, -3, 7)), "random_state": 0}
_IJCNN1: dict[str, Any] = {"C": 32, "gamma": 2.0}
_A9A: dict[str, Any] = {"C": 1.0, "gamma": 0.008}
_USPS: dict[str, Any] = {"C": 10, "gamma": 0.0078125}
_FOUR: dict[str, Any] = {"n_parts": 4, "random_state": 0}
_THRICE = {"class_weight": {-1: 1.0, 1: 3.0}}

FITS: dict[str, Fit] = {
    "BKRR2-band": Fit(lambda: cakrr.BKRR2(8, **_BAND), "cadata"),
    "BKRR2-soft": Fit(lambda: cakrr.BKRR2(4, route="soft", **_FEW), "space_ga", weighted=True),
    "BKRR2-float32": Fit(lambda: cakrr.BKRR2(4, dtype="float32", **_FEW), "space_ga", dtype="float32"),
    "BKRR2-csr": Fit(lambda: cakrr.BKRR2(4, sigma=4.0, lam=1e-2, random_state=0), "a9a"),
    "BKRR": Fit(lambda: cakrr.BKRR(3, **_FEW), "mg"),
    "KKRR": Fit(lambda: cakrr.KKRR(4, **_FEW), "mg"),
    "KKRR2": Fit(lambda: cakrr.KKRR2(4, select="loo", **_FEW), "space_ga"),
    "DCKRR": Fit(lambda: cakrr.DCKRR(4, standardize=False, **_FEW), "space_ga"),
    "DKRR": Fit(lambda: cakrr.DKRR(**_FEW), "mg", weighted=True),
    "TwoLevelKRR": Fit(lambda: cakrr.TwoLevelKRR(4, centers=[60, 120], random_state=0), "space_ga"),
    "SMOSVC": Fit(lambda: casvm.SMOSVC(**_IJCNN1), "ijcnn1"),
    "SMOSVC-csr": Fit(lambda: casvm.SMOSVC(**_A9A, class_weight="balanced"), "a9a"),
    "SMOSVC-multi": Fit(lambda: casvm.SMOSVC(**_USPS, decision_function_shape="ovo"), "usps"),
    "SMOSVC-weights": Fit(lambda: casvm.SMOSVC(**_IJCNN1, **_THRICE, shrinking=False), "ijcnn1", weighted=True),
    "SMOSVC-linear": Fit(lambda: casvm.SMOSVC(kernel="linear"), "ijcnn1", dtype="float32"),
    "SMOSVC-precomputed": Precomputed(lambda: casvm.SMOSVC(C=32, kernel="precomputed"), "ijcnn1"),
    "CASVC-random": Fit(lambda: casvm.CASVC(**_FOUR, partitioner="random", **_IJCNN1), "ijcnn1"),
    "CASVC-fcfs": Fit(lambda: casvm.CASVC(**_FOUR, partitioner="fcfs", ratio=True, **_IJCNN1), "ijcnn1", weighted=True),
    "CASVC-bkm": Fit(lambda: casvm.CASVC(**_FOUR, partitioner="bkm", class_weight="balanced", **_A9A), "a9a"),
    "CASVC-kmeans": Fit(lambda: casvm.CASVC(**_FOUR, partitioner="kmeans", route="soft", **_USPS), "usps"),
    "CASVC-kbalance": Fit(lambda: casvm.CASVC(**_FOUR, partitioner="kbalance", standardize=True, **_USPS), "usps"),
    "CASVC-object": Fit(
        lambda: casvm.CASVC(random_state=0, partitioner=partition.KMeans(3, max_iter=4), **_IJCNN1), "ijcnn1"
    ),
    "CascadeSVC": Fit(lambda: casvm.CascadeSVC(**_FOUR, passes=3, **_IJCNN1), "ijcnn1"),
    "DCSVC": Fit(lambda: casvm.DCSVC(**_FOUR, **_A9A), "a9a", weighted=True),
    "DCFilterSVC": Fit(lambda: casvm.DCFilterSVC(**_FOUR, **_THRICE, **_IJCNN1), "ijcnn1"),
    "DisSMOSVC": Fit(lambda: casvm.DisSMOSVC(working_set=64, **_USPS), "usps"),
    "AsyGCDSVC": Fit(lambda: asygcd.AsyGCDSVC(threads=1, random_state=0, **_IJCNN1), "ijcnn1"),
    "KBalance": Fit(lambda: partition.KBalance(16, random_state=0), "cadata"),
    "FCFS": Fit(lambda: partition.FCFS(8, ratio=True, random_state=1), "usps"),
    "BalancedKMeans": Fit(lambda: partition.BalancedKMeans(8, random_state=2), "a9a"),
    "KMeans": Fit(lambda: partition.KMeans(8, random_state=3), "ijcnn1"),
    "RandomPartition": Fit(lambda: partition.RandomPartition(7, random_state=4), "mg"),
}

COLLECTIVE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "BKRR2": (lambda comm: cakrr.BKRR2(4, comm=comm, **_FEW), "space_ga"),
    "TwoLevelKRR": (lambda comm: cakrr.TwoLevelKRR(4, centers=[60], random_state=0, comm=comm), "mg"),
    "CASVC": (lambda comm: casvm.CASVC(**_FOUR, partitioner="kmeans", comm=comm, **_IJCNN1), "ijcnn1"),
    "CascadeSVC": (lambda comm: casvm.CascadeSVC(**_FOUR, comm=comm, **_A9A), "a9a"),
    "DisSMOSVC": (lambda comm: casvm.DisSMOSVC(comm=comm, **_USPS), "usps"),
}

PACKAGES = ("asygcd", "cakrr", "casvm", "partition")
# Names of the records that each task writes.
TASKS = {
    "interface": [f"interface-{name}" for name in PACKAGES] + [f"options-{name}" for name in METHODS],
    "collective": [f"collective-{name}" for name in COLLECTIVE],
    "fits": [f"fit-{name}" for name in FITS],
}


def chosen(names: Iterable[str], prefix: str, patterns: list[str]) -> list[str]:
    """Names that match a pattern, with the prefix added."""
    return [name for name in names if any(fnmatch.fnmatch(prefix + name, pattern) for pattern in patterns)]


def fit_all(folder: Path, out: Path, patterns: list[str]) -> None:
    """Run all fits in one process, and write one file each."""
    for name in chosen(FITS, "fit-", patterns):
        keep(out / f"fit-{name}.json", functools.partial(FITS[name].run, folder))


def collective(folder: Path, out: Path, patterns: list[str]) -> None:
    """Run the fits with a communicator; each of R ranks has every R-th row and reports its results."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for name in chosen(COLLECTIVE, "collective-", patterns):
        make, which = COLLECTIVE[name]
        halves = [part[comm.rank :: comm.size] for part in rows(folder, which)]
        seen = comm.gather(described(make(comm).fit(*halves[:2]), *halves[2:]))
        if comm.rank == 0:
            (out / f"collective-{name}.json").write_text(json.dumps({"ranks": seen}, indent=1))


def interface(_: Path, out: Path, patterns: list[str]) -> None:
    """Record public names with their parameters, and the options of the commands with their choices."""
    for package in chosen(PACKAGES, "interface-", patterns):
        module = importlib.import_module(package)
        known = {name: getattr(module, name) for name in module.__all__}
        found = {name: _parameters(one) if callable(one) else "value" for name, one in known.items()}
        (out / f"interface-{package}.json").write_text(json.dumps(found, indent=1))
    for command in chosen(METHODS, "options-", patterns):
        keep(out / f"options-{command}.json", functools.partial(_options, command))


def _parameters(one: Any) -> dict[str, str]:
    return {name: repr(parameter.default) for name, parameter in inspect.signature(one).parameters.items()}


def _options(command: str) -> dict[str, str]:
    told, sys.argv = io.StringIO(), [command, "--help"]
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        runpy.run_module(command, run_name="__main__", alter_sys=True)
    usage = " ".join(told.getvalue().split("\n\n")[0].split())
    return {option.split()[0]: option for option in re.findall(r"(?<=[\[ ])--?[a-zA-Z][-\w]*(?: [^\s\]|]+)?", usage)}


def keep(path: Path, work: Callable[[], dict[str, Any]]) -> None:
    """Write the result of `work`, or its error."""
    try:
        found = work()
    except Exception:
        found = {"failed": traceback.format_exc()}
    path.write_text(json.dumps(found, indent=1))


def _arrays(folder: Path, name: str) -> tuple[Any, Any]:
    with np.load(folder / f"{name}.npz") as file:
        return file["X"], file["y"]


_WIDE = {"sigma": list(np.geomspace(0.5, 4, 7)), "lam": list(np.geomspace(1e-7, 1e-3, 9)), "random_state": 0}

WORKS: dict[str, tuple[Callable[[], Any], str]] = {
    "SMOSVC-ijcnn1": (lambda: casvm.SMOSVC(**_IJCNN1, cache_gib=4.0), "ijcnn1"),
    "SMOSVC-a9a": (lambda: casvm.SMOSVC(**_A9A, cache_gib=4.0), "a9a"),
    "BKRR2-cadata": (lambda: cakrr.BKRR2(16, **_WIDE), "cadata"),
    "AsyGCDSVC-ijcnn1": (lambda: asygcd.AsyGCDSVC(random_state=0, cache_gib=4.0, **_IJCNN1), "ijcnn1"),
    "KBalance-500000": (lambda: partition.KBalance(64, random_state=0, max_iter=20), "normal"),
}


def timed(work: str, folder: Path) -> None:
    """Run a fit for each line of input; print its seconds and processor seconds."""
    make, name = WORKS[work]
    if name == "normal":
        X, y = np.random.default_rng(0).standard_normal((500_000, 90)), None
    else:
        X, y = _arrays(folder, name)
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        make().fit(X, y)
        print(time.perf_counter() - wall, time.process_time() - processor, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "time":
        timed(sys.argv[2], Path(sys.argv[3]))
    else:
        {"fits": fit_all, "collective": collective, "interface": interface}[sys.argv[1]](
            Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
        )
