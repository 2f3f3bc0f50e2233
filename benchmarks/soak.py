"""Many fits and predictions of every estimator in one process, after which nothing may have grown.

python -m benchmarks soak [--rounds N] [--only NAME ...]
mpiexec -n 3 python -m benchmarks.soak [--rounds N] [--only NAME ...]

Estimator by estimator: what a rank has after 20 rounds, and after all of them. Every round fits anew and predicts; on
several ranks those estimators that take a communicator work together, on even blocks of the rows. Status 1 if anything
has grown by more than `ALLOWED`. Memory is what is resident once Python has collected its garbage and the C library
has returned what it could; with many ranks a row shows the rank that has grown most.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier, is_regressor

from benchmarks.results import Record, record, table
from cacore.comm import failure, launched

WARM = 20
# What may come on top, from the first look to the last: resident memory of the allocator, whose free pieces are
# scattered, and objects of caches that fill up. A leak of one small array per round would be more.
ALLOWED = {"MiB": 3.0, "objects": 100, "threads": 0, "files": 0, "communicators": 0, "requests": 0}
COLUMNS = {"estimator": "", "rounds": "", "rank": ""} | {
    f"{name}{end}": ".1f" if name == "MiB" else "" for name in ALLOWED for end in (", first", ", last")
}
PACKAGES = {"casvm": {}, "cakrr": {}, "asygcd": {"threads": 2}, "partition": {}}
SMALL: dict[str, Any] = {"n_parts": 3, "random_state": 0, "gamma": 0.5, "sigma": 1.0, "lam": 1e-3}
# Beside the plain ones: other solvers, partitioners, searches and what else has state of its own.
MORE: dict[str, dict[str, Any]] = {
    "DKRR, solver=cg": {"solver": "cg"},
    "CASVC, partitioner=fcfs": {"partitioner": "fcfs"},
    "CASVC, partitioner=kbalance": {"partitioner": "kbalance"},
    "CASVC, a search": {"C": [1.0, 10.0], "gamma": [0.1, 1.0]},
    "CASVC, probability": {"probability": True},
    "BKRR2, a search": {"sigma": [0.5, 1.0], "lam": [1e-3, 1e-2]},
    "SMOSVC, probability": {"probability": True},
}


def counted() -> Any:
    """COMM_WORLD, which counts the communicators and requests that it and its offspring have made and not ended."""
    from mpi4py import MPI

    class Counted(MPI.Intracomm):  # type: ignore[misc]
        """An mpi4py communicator that keeps the requests it has begun, and those that it has made."""

        communicators = 0
        begun: list[Any] = []  # noqa: RUF012 - of all of them

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name[0] == "I" and name[1:2].islower() and callable(found):
                return lambda *args, **options: Counted._kept(found(*args, **options))
            if name in ("Dup", "Split", "Split_type"):
                return lambda *args, **options: Counted._made(found(*args, **options))
            return found

        @staticmethod
        def _kept(result: Any) -> Any:
            if isinstance(result, MPI.Request):
                Counted.begun.append(result)
                if len(Counted.begun) > 1000:
                    Counted.pending()
            return result

        @staticmethod
        def _made(result: Any) -> Any:
            Counted.communicators += result != MPI.COMM_NULL
            return Counted(result)

        def Free(self) -> None:  # noqa: N802 - mpi4py's name
            """Free it, and count one fewer."""
            Counted.communicators -= 1
            super().Free()

        @staticmethod
        def pending() -> int:
            """Number of requests that have not been completed."""
            Counted.begun = [request for request in Counted.begun if request != MPI.REQUEST_NULL]
            return len(Counted.begun)

    return Counted(MPI.COMM_WORLD)


def seen(comm: Any) -> Record:
    """Resources that this process holds now."""
    requests = (comm.pending() if comm is not None else 0) + len(failure._ABANDONED)  # drops those that are complete
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return {
        "MiB": resident,
        "objects": len(gc.get_objects()),
        "threads": max(threading.active_count(), len(os.listdir("/proc/self/task"))),
        "files": len(os.listdir("/proc/self/fd")),
        "communicators": comm.communicators if comm is not None else 0,
        "requests": requests,
    }


def estimators() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Names, and functions that make an unfitted estimator with a communicator, if it takes one."""
    for package, more in PACKAGES.items():
        module = importlib.import_module(package)
        for name in module.__all__:
            made = getattr(module, name)
            if not (inspect.isclass(made) and issubclass(made, BaseEstimator) and name != "Partitioner"):
                continue
            yield name, _maker(made, more)
            for title, other in MORE.items():
                if title.split(",")[0] == name:
                    yield title, _maker(made, {**more, **other})


def _maker(made: Any, more: dict[str, Any]) -> Callable[[Any], Any]:
    known = inspect.signature(made).parameters
    given = {name: value for name, value in {**SMALL, **more}.items() if name in known}
    return lambda comm: made(**given, **({"comm": comm} if "comm" in known else {}))


def data(n: int = 60, d: int = 4) -> tuple[Any, Any, Any]:
    """Rows, two overlapping classes, and a smooth target."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.where(X[:, 0] + 0.5 * rng.normal(size=n) > 0, 1, -1), np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def soaked(make: Callable[[Any], Any], comm: Any, rounds: int) -> tuple[Record, Record]:
    """Resources held after the first rounds, and after all."""
    X, labels, values = data()
    estimator = make(comm)
    told = {"comm": comm} if "comm" in inspect.signature(estimator.fit).parameters else {}
    together = comm is not None and (told or getattr(estimator, "comm", None) is not None)
    rows = slice(*(at * len(X) // comm.size for at in (comm.rank, comm.rank + 1))) if together else slice(None)
    y = values if is_regressor(estimator) else labels if is_classifier(estimator) else None
    first: Record = {}
    for done in range(1, rounds + 1):
        estimator = make(comm).fit(X[rows], None if y is None else y[rows], **told)
        estimator.predict(X[rows])
        del estimator
        if done == min(WARM, rounds // 2):
            first = seen(comm)
    return first, seen(comm)


def judged(first: Record, last: Record) -> list[str]:
    """Names of the resources that have grown by more than the slack."""
    return [name for name, most in ALLOWED.items() if last[name] - first[name] > most]


def growth(first: Record, last: Record) -> tuple[int, float]:
    """By which ranks are compared: how much has grown too much, and memory."""
    return len(judged(first, last)), last["MiB"] - first["MiB"]


def main() -> None:
    """Print a row an estimator, and say what has grown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", nargs="*", help="names of estimators")
    args = parser.parse_args()
    comm = counted() if launched() else None
    chosen = [(name, make) for name, make in estimators() if not args.only or name in args.only]
    shows = comm is None or comm.rank == 0
    grown: list[str] = []
    if shows:
        print(table([], COLUMNS), flush=True)
    for name, make in chosen:
        mine = soaked(make, comm, args.rounds)
        ranks = [mine] if comm is None else comm.allgather(mine)
        bad = sorted({what for one in ranks for what in judged(*one)})
        if bad:
            grown.append(f"{name}: {', '.join(bad)}")
        most = max(range(len(ranks)), key=lambda rank: growth(*ranks[rank]))
        first, last = ranks[most]
        row: Record = {"estimator": name, "rounds": args.rounds, "rank": most}
        for what in ALLOWED:
            row |= {f"{what}, first": first[what], f"{what}, last": last[what]}
        more = {f"{what}_grown": float(last[what] - first[what]) for what in ALLOWED}
        record(race="soak", rival=name, ranks=len(ranks), **more)
        if shows:
            print(table([row], COLUMNS).splitlines()[-1], flush=True)
    if shows:
        print(f"allowed: {', '.join(f'{what} {most}' for what, most in ALLOWED.items())}")
        print("\n".join(["grown:", *grown]) if grown else "nothing has grown")
    if grown:
        sys.exit(1)


if __name__ == "__main__":
    main()
