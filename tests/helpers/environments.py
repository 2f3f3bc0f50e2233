"""Virtual environments to be packed."""

from __future__ import annotations

import shutil
import sys
import venv
from pathlib import Path


def small_environment(folder):
    """A virtual environment of a few files that finds everything else where this one has it."""
    venv.create(folder, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"))
    here = next(Path(sys.prefix).glob("lib/python*/site-packages"))
    (packages / "here.pth").write_text(f"{here}\n")
    mpiexec = shutil.which("mpiexec")
    assert mpiexec is not None
    (folder / "bin/mpiexec").symlink_to(mpiexec)
    return folder
