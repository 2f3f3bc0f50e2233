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
import importlib.util
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
import cakernels
import cakrr
import casvm
import partition

# Those of the checkout: kriging was a part of cakrr once.
PACKAGES = tuple(
    name
    for name in ("asygcd", "cacore", "cakernels", "cakriging", "cakrr", "casvm", "partition")
    if importlib.util.find_spec(name)
)


def runnable() -> list[str]:
    """Modules of the checkout's packages that ``python -m`` runs, and the commands of ``cakernels``."""
    found = []
    for package in PACKAGES:
        (folder,) = importlib.import_module(package).__path__
        for file in sorted(Path(folder).rglob("*.py")):
            if file.name == "__main__.py" or '__name__ == "__main__"' in file.read_text():
                names = (package, *file.relative_to(folder).with_suffix("").parts)
                found.append(".".join(name for name in names if name != "__main__"))
    front = importlib.import_module("cakernels.__main__")
    return found + [f"cakernels {name}" for name in getattr(front, "COMMANDS", ())]


def estimators() -> dict[str, type]:
    """Classes with a `fit` among the public names of all packages, without base classes."""
    named = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        named |= {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    return {name: one for name, one in named.items() if hasattr(one, "fit") and name != "Partitioner"}


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
    return value if isinstance(value, int | None) else re.sub(r" at 0x[0-9a-f]+", "", str(value))


def hdf5(path: Path) -> dict[str, Any]:
    """Contents of an HDF5 file: arrays and attributes, with JSON parsed; pieces of a long attribute stay text."""
    found: dict[str, Any] = {}

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = plain(np.asarray(item[()]))
        for key, value in item.attrs.items():
            text = str(value)
            whole = text.startswith("{") and not re.search(r" \d+$", key)
            found[f"{name}@{key}"] = plain(json.loads(text) if whole else value)

    with h5py.File(path, "r") as file:
        look("", file)
        file.visititems(look)
    return found


def sha(path: Path) -> str:
    """Hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


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
    for trial in found.get("leaderboard_", ()):
        trial.pop("ended", None)  # a time
    for ask in ("predict", "decision_function", "predict_proba"):
        if hasattr(model, ask):
            found[ask] = plain(getattr(model, ask)(X))
    if "return_std" in inspect.signature(getattr(model, "predict", len)).parameters:
        with contextlib.suppress(ValueError):  # a model without variances
            found["std"] = plain(model.predict(X, return_std=True)[1])
    if hasattr(model, "predict_interval") and getattr(model, "calibrate", True):
        with contextlib.suppress(ValueError):  # one that needs calibration
            found["interval"] = plain(model.predict_interval(X, 0.8))
    if hasattr(model, "score"):
        found["score"] = plain(model.score(X, y))
    if hasattr(getattr(model, "model_", None), "save") and getattr(model, "comm", None) is None:
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
    first: int | None = None

    def run(self, folder: Path) -> dict[str, Any]:
        """Fit, and describe."""
        X, y, Xt, yt = (part[: self.first] for part in rows(folder, self.data))
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

_AUTO: dict[str, Any] = {"max_time": None, "max_candidates": 4, "random_state": 0}


def _classifier(name: str) -> Callable[[], Any]:
    parts = {"n_parts": 3} if name[0] not in "DS" or name.startswith("DC") else {}
    return lambda: getattr(cakrr, name)(**parts, sigma=[4.0, 8.0], lam=1e-3, random_state=0)


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
    "SMOSVC-search": Fit(lambda: casvm.SMOSVC(C=[1.0, 32.0], gamma=[0.5, 2.0], cv=3), "ijcnn1", first=1000),
    "SMOSVC-probability": Fit(lambda: casvm.SMOSVC(**_USPS, probability=True), "usps", first=500),
    "CASVC-probability": Fit(lambda: casvm.CASVC(**_FOUR, **_IJCNN1, probability="isotonic"), "ijcnn1"),
    "SMONuSVC": Fit(lambda: casvm.SMONuSVC(nu=0.1, gamma=2.0), "ijcnn1", first=2000),
    "SMOSVR": Fit(lambda: casvm.SMOSVR(C=2.0, gamma=1.0, epsilon=0.05), "mg", weighted=True),
    "SMOSVR-search": Fit(lambda: casvm.SMOSVR(C=[1.0, 4.0], gamma=[0.5, 2.0], epsilon=0.05, cv=3), "mg"),
    "SMONuSVR": Fit(lambda: casvm.SMONuSVR(nu=0.4, gamma=1.0), "mg"),
    "SMOOneClassSVM": Fit(lambda: casvm.SMOOneClassSVM(nu=0.1, gamma=1.0), "mg"),
    "SMOQuantileSVR": Fit(lambda: casvm.SMOQuantileSVR(C=2.0, gamma=1.0, quantile=[0.1, 0.9]), "mg", first=600),
    "CAQuantileSVR": Fit(
        lambda: casvm.CAQuantileSVR(**_FOUR, C=2.0, gamma=1.0, quantile=[0.2, 0.8], calibrate=0.2), "space_ga"
    ),
    "CASVR": Fit(lambda: casvm.CASVR(**_FOUR, C=2.0, gamma=1.0, epsilon=0.05, overlap=0.1), "space_ga"),
    "CASVR-soft": Fit(lambda: casvm.CASVR(**_FOUR, C=2.0, gamma=1.0, route="soft", n_divisions=2), "mg"),
    "DisSMOSVR": Fit(lambda: casvm.DisSMOSVR(C=2.0, gamma=1.0, epsilon=0.05, working_set=64), "mg"),
    "DKRR-cg": Fit(lambda: cakrr.DKRR(solver="cg", **_FEW), "mg"),
    "DKRR-near": Fit(
        lambda: cakrr.DKRR(kernel="wendland2", solver="cg", near=True, degree=6, sigma=2.0, lam=1e-3, random_state=0),
        "mg",
    ),
    "BKRR2-calibrate": Fit(lambda: cakrr.BKRR2(4, calibrate=0.2, keep_factors=True, **_FEW), "space_ga"),
    "BKRR2-metric": Fit(lambda: cakrr.BKRR2(4, metric="diagonal", metric_rounds=3, **_FEW), "space_ga"),
    "TwoLevelKRR-refine": Fit(lambda: cakrr.TwoLevelKRR(4, centers=[60], refine=2, random_state=0), "mg"),
    "SubsetKRR": Fit(lambda: cakrr.SubsetKRR(centers=[50, 100], pick="pivots", **_FEW), "space_ga"),
    "SubsetKRR-csr": Fit(lambda: cakrr.SubsetKRR(centers=80, sigma=4.0, lam=1e-3, random_state=0), "a9a"),
    **{
        f"{name}Classifier": Fit(_classifier(f"{name}Classifier"), "usps", first=600)
        for name in ("BKRR", "BKRR2", "DCKRR", "DKRR", "KKRR", "KKRR2", "TwoLevelKRR", "SubsetKRR")
    },
    "Kriging": Fit(lambda: cakernels.Kriging(nugget=3e9, random_state=0), "field", first=500),
    "Kriging-cg": Fit(
        lambda: cakernels.Kriging(kernel="wendland2", range=2.0, sill=1.0, nugget=0.2, solver="cg", random_state=0),
        "field",
        first=800,
    ),
    "AutoKernelRegressor": Fit(lambda: cakernels.AutoKernelRegressor(calibrate=True, **_AUTO), "mg", first=600),
    "AutoKernelClassifier": Fit(lambda: cakernels.AutoKernelClassifier(probability=True, **_AUTO), "ijcnn1", first=600),
    "KBalance": Fit(lambda: partition.KBalance(16, random_state=0), "cadata"),
    "FCFS": Fit(lambda: partition.FCFS(8, ratio=True, random_state=1), "usps"),
    "BalancedKMeans": Fit(lambda: partition.BalancedKMeans(8, random_state=2), "a9a"),
    "KMeans": Fit(lambda: partition.KMeans(8, random_state=3), "ijcnn1"),
    "RandomPartition": Fit(lambda: partition.RandomPartition(7, random_state=4), "mg"),
}


def collective_fits() -> dict[str, Fit]:
    """The first fit of each estimator of the checkout that has the parameter `comm`."""
    found: dict[str, Fit] = {}
    for name, fit in FITS.items():
        with contextlib.suppress(AttributeError):  # an estimator that an old checkout lacks
            if hasattr(fit.make(), "comm"):
                found.setdefault(name.split("-")[0], fit)
    return found


# Names of the records that each task writes.
TASKS = {
    "interface": [f"interface-{name}" for name in PACKAGES] + [f"options-{name}" for name in runnable()],
    "collective": [f"collective-{name}" for name in collective_fits()],
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
    fits = collective_fits()
    for name in chosen(fits, "collective-", patterns):
        halves = [part[: fits[name].first][comm.rank :: comm.size] for part in rows(folder, fits[name].data)]
        try:
            seen = described(fits[name].make().set_params(comm=comm).fit(*halves[:2]), *halves[2:])
        except Exception:
            seen = {"failed": traceback.format_exc()}
        every = comm.gather(seen)
        if comm.rank == 0:
            broken = next((one for one in every if "failed" in one), None)
            (out / f"collective-{name}.json").write_text(json.dumps(broken or {"ranks": every}, indent=1))


def interface(_: Path, out: Path, patterns: list[str]) -> None:
    """Record public names with their parameters, and the options of the commands with their choices."""
    for package in chosen(PACKAGES, "interface-", patterns):
        module = importlib.import_module(package)
        known = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
        found = {name: _parameters(one) if callable(one) else "value" for name, one in known.items()}
        (out / f"interface-{package}.json").write_text(json.dumps(found, indent=1))
    for command in chosen(runnable(), "options-", patterns):
        keep(out / f"options-{command.replace(' ', '-')}.json", functools.partial(_options, command))


def _parameters(one: Any) -> dict[str, str]:
    return {name: repr(parameter.default) for name, parameter in inspect.signature(one).parameters.items()}


def _options(command: str) -> dict[str, str]:
    module, *words = command.split()
    told, sys.argv = io.StringIO(), [module, *words, "--help"]
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
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
