"""Ranks that are given different things, in one mpiexec job for many cases.

Right: all ranks raise the same InputError of one line within `SECONDS`, if something differs; and otherwise
all ranks have the same predictions for the same rows, or refuse them in the same line.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import selectors
import subprocess
import sys
from pathlib import Path

import numpy as np

FORMS = ("2 ranks", "3 ranks")
QUICK = FORMS[1:]  # in a single job
GOOD = ("refused", "right")
SECONDS = 60.0  # seconds for a case, on a machine with much else to do
NAMES = ("CASVC", "DCSVC", "CascadeSVC", "DCFilterSVC", "DisSMOSVC", "CASVR", "DisSMOSVR", "BKRR2", "KKRR2",
         "TwoLevelKRR", "BKRR2Classifier", "DKRR", "DKRRClassifier")  # fmt: skip
VALUES = {
    "C": (2.0, "grid", -1.0), "gamma": (0.3, "scale", [0.1, 0.2]), "kernel": ("linear", "laplacian", "sigmoid"),
    "degree": (2, 5), "coef0": (1.0,), "tol": (1e-4, 0.1), "max_iter": (5, 1000), "max_time": (100.0,),
    "cache_gib": (0.5,), "class_weight": ("balanced", {1.0: 2.0}), "probability": (True, "isotonic"),
    "n_parts": (3, 4), "partitioner": ("kmeans", "fcfs"), "route": ("soft", "all"), "ratio": (True,),
    "per_part": (True,), "standardize": (None,), "cv": (3,), "scoring": ("f1",), "validation_fraction": (0.2,),
    "solver": ("asygcd", "cg"), "passes": (3,), "working_set": (8,), "epsilon": (0.2, "grid"), "n_divisions": (2,),
    "overlap": (0.1,), "sigma": (1.0, "grid"), "lam": (0.1, [0.1, 1.0]), "metric": ("diagonal",), "metric_rounds": (3,),
    "scaling": ("quantile",), "dtype": ("float32",), "select": ("loo",), "centers": (12,), "coarse_lam": (0.1,),
    "coarse_sigma": (3.0,), "refine": (2,), "keep_factors": (True,), "calibrate": (0.3, "loo"), "rank": (4,),
    "preconditioner": ("nystrom",), "early": (0.1,),
}  # fmt: skip
OTHERS = (
    "nothing",
    "nothing",
    "nothing",
    "type",
    "width",
    "sparse",
    "weights",
    "labels",
    "columns of y",
    "NaN",
    "call",
    "class",
)


def case(form, number, seed, folder):
    """One case, by the job of this number of ranks; one that does not answer is ended."""
    ranks = int(form.split()[0])
    job = _job(ranks)
    job.stdin.write(json.dumps([ranks, number, seed]) + "\n")
    job.stdin.flush()
    with selectors.DefaultSelector() as ready:
        ready.register(job.stdout, selectors.EVENT_READ)
        line = job.stdout.readline() if ready.select(SECONDS) else ""
    if line.startswith("end "):
        return json.loads(line[4:])
    job.kill()
    _job.cache_clear()
    told = " ".join(drawn(ranks, number, seed)[:3])
    return f"{'no answer' if not line else line.strip()[:200]}, status {job.wait()}: {told}"


@functools.cache
def _job(ranks):
    """Ranks that wait for cases; they end when their input does."""
    words = ["mpiexec", "-n", str(ranks), sys.executable, "-m", "tests.fuzz.ranks"]
    root = Path(__file__).resolve().parents[2]
    job = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           cwd=root)  # fmt: skip
    atexit.register(_end, job)
    return job


def _end(job):
    """End a job, which ends when there is nothing to read."""
    with contextlib.suppress(OSError):
        job.stdin.close()
    job.wait()
    job.stdout.close()


def drawn(ranks, number, seed):
    """Names of the estimator, of what differs and on which rank, and the parameter's value there."""
    from . import estimators

    rng = np.random.default_rng([seed, number, ranks])
    name = str(rng.choice(NAMES))
    other = str(rng.choice(OTHERS)) if rng.random() < 0.5 else ""
    known = sorted(set(VALUES) & set(estimators.MADE[name]().get_params()))
    parameter = other or str(rng.choice(known))
    values = VALUES.get(parameter, (None,))
    return name, parameter, str(rng.integers(ranks)), values[rng.integers(len(values))]


def judged(told, differs):
    """The end of a case, from what each rank has to tell: its error's type and message, or its predictions."""
    if len({kind for kind, _ in told}) == 1 and told[0][0] == "answers":
        if not all(np.allclose(answers, told[0][1], rtol=1e-9, atol=1e-12) for _, answers in told):
            return f"ranks answer {[answers[:3] for _, answers in told]}"
    elif len(set(told)) > 1:
        return f"ranks tell {[str(one)[:200] for one in told]}"
    kind, message = told[0]
    if kind == "answers":
        return "right" if not differs else "answered"
    return "refused" if kind == "InputError" and "\n" not in message else f"{kind}: {message[:300]}"


def work():
    """Do the cases that rank 0 reads, on all ranks."""
    import warnings

    from mpi4py import MPI

    warnings.simplefilter("ignore")
    world = MPI.COMM_WORLD.Dup()
    while True:
        line = world.bcast(sys.stdin.readline() if world.rank == 0 else None)
        if not line:
            return
        ranks, number, seed = json.loads(line)
        name, what, where, value = drawn(ranks, number, seed)
        told = world.gather(one(name, what, world.rank == int(where), value, MPI.COMM_WORLD))
        if world.rank == 0:
            rounded = what == "type" and "KRR" in name  # to the estimator's own type, on all ranks
            end = judged(told, what != "nothing" and not rounded)
            shown = end if end in GOOD else f"{end}: {name}, {what} = {value!r} on rank {where}"
            print("end", json.dumps(shown), flush=True)


def one(name, what, here, value, comm):
    """A rank's account of a fit and predictions of the same rows; `here` is where something differs."""
    from . import estimators

    rng = np.random.default_rng(0)
    X = rng.normal(size=(45, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    rows = slice(45 * comm.rank // comm.size, 45 * (comm.rank + 1) // comm.size)
    y, mine = estimators.target(name, y)[rows], X[rows]
    parameters, weights = {"comm": comm}, None
    if here and what in VALUES:
        usual = estimators.MADE[name]().get_params()[what]
        parameters[what] = (not usual) if what == "standardize" else value
    elif here:
        mine, y, weights, name = _other(what, mine, y, name)
    try:
        model = estimators.MADE[name](**parameters).fit(mine, y, weights)
        answers = model.predict(X[:9]) if not (here and what == "call") else model.score(X[:9], y[:9])
    except Exception as error:
        return type(error).__name__, str(error)
    return "answers", np.asarray(answers, float).ravel()


def _other(what, X, y, name):
    """Rows, targets, weights and estimator of the rank that has others."""
    import scipy.sparse as sp

    weights = None
    if what == "type":
        X = X.astype(np.float32)
    elif what == "width":
        X = X[:, :2]
    elif what == "sparse":
        X = sp.csr_matrix(X)
    elif what == "weights":
        weights = np.ones(len(X))
    elif what == "labels":
        y = np.where(y > 0, "up", "down")
    elif what == "columns of y":
        y = np.column_stack([y, y])
    elif what == "NaN":
        X = np.where(np.arange(X.size).reshape(X.shape) == 4, np.nan, X)
    elif what == "class":
        name = {"CASVC": "DisSMOSVC", "BKRR2": "KKRR2"}.get(
            name, "CASVC" if name.endswith(("SVC", "fier")) else "BKRR2"
        )
    return X, y, weights, name


if __name__ == "__main__":
    work()
