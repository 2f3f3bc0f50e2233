"""Shared memory that killed jobs left."""

from __future__ import annotations

import os
import time

from helpers.checks import names

from cacore.machine.memory import remove_dead


def test_dead_segments_are_removed(tmp_path):
    """Old MPI segments that no process maps are removed; others stay."""
    shm, proc = tmp_path / "shm", tmp_path / "proc"
    shm.mkdir()
    for name in ("mpich_shm_1_0", "mpich_shm_2_0", "mpich_shm_3_0", "vader_segment.4", "mine"):
        (shm / name).write_bytes(b"x")
        age = 0 if name == "mpich_shm_3_0" else 3600
        os.utime(shm / name, (time.time() - age,) * 2)
    for process, maps in (("7", f"7f00-7f01 rw-s 00000000 00:1a 5 {shm}/mpich_shm_2_0\n"), ("8", "")):
        (proc / process).mkdir(parents=True)
        (proc / process / "maps").write_text(maps)
    (proc / "9").mkdir()
    (proc / "9" / "maps").mkdir()  # cannot be read
    assert sorted(path.name for path in remove_dead(shm, proc)) == ["mpich_shm_1_0", "vader_segment.4"]
    assert names(shm) == ["mine", "mpich_shm_2_0", "mpich_shm_3_0"]
    assert remove_dead(tmp_path / "none", proc) == []
