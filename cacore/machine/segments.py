"""Shared-memory segments left by killed ranks: MPI libraries remove them only when a job ends normally."""

from __future__ import annotations

import os
import time
from pathlib import Path

_NAMES = ("mpich_shm_*", "vader_segment.*", "sm_segment.*")  # of MPICH, and of Open MPI
_AGE = 60.0  # seconds after which every rank of a live job has mapped its segments


def remove_dead(folder: Path = Path("/dev/shm"), processes: Path = Path("/proc")) -> list[Path]:
    """Remove this user's MPI segments that no process has mapped, and return their paths.

    Lists one folder; only if there are old segments does it also scan this machine's processes.
    """
    old = [path for name in _NAMES for path in folder.glob(name) if _is_old(path)]
    if not old:
        return []
    mapped = set[str]()
    for maps in processes.glob("[0-9]*/maps"):
        try:
            mapped.update(line.rsplit("/", 1)[-1] for line in maps.read_text().splitlines() if str(folder) in line)
        except OSError:
            continue  # the process has ended, or belongs to another user, who cannot map this user's segments
    dead = [path for path in old if path.name not in mapped]
    for path in dead:
        path.unlink(missing_ok=True)
    return dead


def _is_old(path: Path) -> bool:
    try:
        facts = path.stat()
    except OSError:
        return False  # a job that has just ended removed it
    return facts.st_uid == os.geteuid() and time.time() - facts.st_mtime > _AGE
