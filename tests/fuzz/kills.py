"""Jobs that are killed at random moments: each ends within seconds, leaves nothing, and goes on to the same bits.

A case runs a command on some ranks, sends one of them, or mpiexec, a signal after a random part of the time that the
command takes, start-up included, and looks at what is left; then it runs the same command again.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
from helpers.mpi_libraries import OPEN_MPI

_GAMMA, _GRID = ("--gamma", "0.5"), ("--sigma", "1,2", "--lambda", "1e-3,1e-2")
_SEARCH = ("--C", "1,10", "--gamma", "0.1,0.5", "--cv", "3")
# The program of each form, and its words.
METHODS = {
    **{f"casvm.{name}": (f"casvm.{name}", *_GAMMA) for name in
       ("casvm", "cpsvm", "bkmsvm", "fcfssvm", "cascade", "dcsvm", "dcfilter", "dissmo", "svr", "oneclass")},
    **{f"cakrr.{name}": (f"cakrr.{name}", *_GRID) for name in
       ("dkrr", "dckrr", "kkrr", "kkrr2", "bkrr", "bkrr2", "twolevel")},
    "asygcd": ("asygcd", *_GAMMA),
    "dkrr, cg": ("cakrr.dkrr", *_GRID, "--solver", "cg", "--rank", "50"),
    "bkrr2, out of core": ("cakrr.bkrr2", *_GRID, "--out-of-core", "--partitions", "6"),
    "cpsvm, out of core": ("casvm.cpsvm", *_GAMMA, "--out-of-core", "--partitions", "6"),
    "casvm, a search": ("casvm.casvm", *_SEARCH, "--partitions", "6"),
    "dissmo, a search": ("casvm.dissmo", *_SEARCH),
    "svr, a search": ("casvm.svr", *_SEARCH),
    "svr, quantiles": ("casvm.svr", *_GAMMA, "--quantile", ".2,.5,.8"),
    "kriging, cg": ("cakriging", "--kernel", "wendland2", "--range", "1", "--nugget", "0.3", "--sill", "1",
                    "--solver", "cg"),
    "kriging, likelihood": ("cakriging", "--kernel", "matern32", "--drift", "linear"),
    "subset": ("cakrr.subset", *_GRID, "--centers", "60"),
    "bkrr2, a metric": ("cakrr.bkrr2", *_GRID, "--metric", "full", "--metric-rounds", "2"),
    "convert": ("cacore.io", "convert"),
}  # fmt: skip
ALONE = ("asygcd", "convert")  # of one process, without mpiexec
FORMS = list(METHODS)
LIBRARIES = ("mpich", "openmpi")
GOOD = ("resumed", "finished")
SIGNALS = ("KILL", "TERM", "INT", "STOP")
END = 5.0  # seconds in which a job has to end, on a machine with nothing else to do, where a whole run takes fewer
_MARK = "CAKERNELS_KILLS"


@dataclass(frozen=True)
class Case:
    """A command, its ranks and their library, and what happens to which of them when (a share of its time)."""

    form: str
    ranks: int
    signal: str
    victim: int
    moment: float
    library: str = "mpich"

    @classmethod
    def drawn(cls, form: str, rng: random.Random) -> Case:
        """One case; mpiexec itself is the victim -1."""
        ranks = 1 if form in ALONE else rng.choice((2, 3, 4))
        case = cls(form, ranks, rng.choice(SIGNALS), rng.randrange(-1, ranks), rng.uniform(0.0, 1.05))
        library = rng.choice(LIBRARIES)
        return replace(case, library=library) if OPEN_MPI.library and form not in ALONE else case


def write_data(path: Path, n: int = 900, d: int = 5) -> None:
    """Two overlapping classes, whose labels are numbers for ridge regression too."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = np.where(X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)
    with h5py.File(path, "w") as file:
        file["train/X"], file["train/y"] = X, y


class Runner:
    """Runs cases in a folder of its own; knows what each command writes when nothing happens to it."""

    def __init__(self, folder: Path, patience: float = END) -> None:
        self.folder, self.patience = folder, patience
        self.data, self.places = folder / "data.h5", folder / "places.h5"
        write_data(self.data)
        write_data(self.places, d=2)  # kriging looks for near points in at most three dimensions
        self._whole: dict[tuple[str, int, str], tuple[bytes, float]] = {}

    def run(self, case: Case) -> str:
        """Outcome of a case: "resumed", "finished" before the signal, or the fault."""
        model, seconds = self._uninterrupted(case)
        place = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            return self._judged(case, place, model, seconds)
        finally:
            shutil.rmtree(place)

    def _judged(self, case: Case, place: Path, model: bytes, seconds: float) -> str:
        job = self._start(case, place)
        time.sleep(case.moment * seconds)
        _hurt(job, case, place)
        # Where other programs run too, processes end as much more slowly as they run. One that was stopped goes on.
        patience = max(self.patience, seconds)
        if wrong := _still_there(job, place, patience + (seconds if case.signal == "STOP" else 0.0)):
            return f"{wrong}: {case}"
        if case.signal == "STOP" and job.returncode != 0:
            return f"status {job.returncode} after a pause: {case}"
        again = self._start(case, place)
        _, err = again.communicate(timeout=600)
        if again.returncode != 0:
            return f"cannot go on (status {again.returncode}): {case}: {err[-500:]}"
        if (place / "m.h5").read_bytes() != model:
            return f"other bits: {case}"
        left = {str(path.relative_to(place)) for path in (*place.iterdir(), *place.rglob(".*"))} - {"kept", "m.h5"}
        if left:
            return f"left {sorted(left)}: {case}"
        return "finished" if job.returncode == 0 else "resumed"

    def _uninterrupted(self, case: Case) -> tuple[bytes, float]:
        """The model's file, and the seconds of a run to which nothing happens."""
        key = case.form, case.ranks, case.library
        if key not in self._whole:
            place = Path(tempfile.mkdtemp(dir=self.folder))
            start = time.perf_counter()
            job = self._start(case, place)
            _, err = job.communicate(timeout=600)
            assert job.returncode == 0, err
            self._whole[key] = (place / "m.h5").read_bytes(), time.perf_counter() - start
            shutil.rmtree(place)
        return self._whole[key]

    def _start(self, case: Case, place: Path) -> subprocess.Popen[str]:
        program, *words = METHODS[case.form]
        if case.form == "convert":
            words += [self.data, place / "m.h5", "--split", "600", "--quiet"]
        else:
            data = self.places if "kriging" in case.form else self.data
            words = [data, *words, "--model", place / "m.h5", "--threads", "1", "--quiet"]
        words, environment = [sys.executable, "-m", program, *words], dict(os.environ)
        if case.form not in ALONE:
            words += ["--checkpoint", place / "kept"]
            if case.library == "openmpi":
                words, environment = OPEN_MPI.words(case.ranks, *words, timeout=600), OPEN_MPI.environment()
            else:
                words = ["mpiexec", "-n", case.ranks, *words]
        return subprocess.Popen(
            [str(word) for word in words], env=environment | {_MARK: str(place)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip


def _hurt(job: subprocess.Popen[str], case: Case, place: Path) -> None:
    victims = [job.pid] if case.victim < 0 else _ranks(place, case.victim)
    for process in victims:
        if case.signal == "INT" and process != job.pid:
            _wait_for_program(process)
        _send(process, case.signal)
    if case.signal == "STOP":
        time.sleep(0.3)
        for process in victims:
            _send(process, "CONT")


def _wait_for_program(process: int) -> None:
    """Wait until a process has begun to run the program.

    Python that is interrupted while it starts (30 ms) ends with status 1. MPICH's mpiexec lets the other ranks
    wait for ever for a rank that ended so before it called MPI, and no program can do anything about it.
    """
    end = time.monotonic() + END
    while time.monotonic() < end:
        try:
            if "numpy" in Path(f"/proc/{process}/maps").read_text():
                return
        except OSError:
            return  # it has ended
        time.sleep(0.002)


def _still_there(job: subprocess.Popen[str], place: Path, patience: float) -> str:
    """Processes that have not ended in time, mpiexec or its children; empty if there are none."""
    end = time.monotonic() + patience
    try:
        job.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        _end(job, place)
        return "does not end"
    while left := _marked(place):  # mpiexec may end before those that it ends
        if time.monotonic() > end:
            _end(job, place)
            return f"processes {sorted(left)} are left"
        time.sleep(0.05)
    return ""


def _marked(place: Path) -> dict[int, dict[str, str]]:
    """Processes that were started for this place, and their environments."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            content = (entry / "environ").read_bytes().decode(errors="replace")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue  # it has ended
        words = dict(word.split("=", 1) for word in content.split("\0") if "=" in word)
        if words.get(_MARK) == str(place) and state != "Z":
            found[int(entry.name)] = words
    return found


def _ranks(place: Path, rank: int) -> list[int]:
    """The process of a rank, if it has been started: of a run without mpiexec, the only one."""
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
    known = _marked(place)
    ranks = [process for process, words in known.items() if str(rank) in [words.get(name) for name in names]]
    return ranks or ([] if any(name in words for words in known.values() for name in names) else list(known)[:1])


def _send(process: int, name: str) -> None:
    try:
        os.kill(process, getattr(signal, f"SIG{name}"))
    except ProcessLookupError:
        return  # it was quicker


def _end(job: subprocess.Popen[str], place: Path) -> None:
    for process in _marked(place):
        _send(process, "KILL")
    job.communicate()


@functools.cache
def _runner(folder: Path) -> Runner:
    return Runner(folder)


def case(form: str, number: int, seed: int, folder: Path) -> str:
    """One job of a program, killed or stopped somewhere."""
    return _runner(folder).run(Case.drawn(form, random.Random(f"{seed} {number} {form}")))
