"""Changes made to a command's files from inside its process, at a moment that a number names.

Moments are calls made by, or inside, ``cacore/io`` and ``cacore/files.py``: the same number is the same moment in every
run, however fast the machine is.

python -m tests.fuzz.meddling JSON PROGRAM WORDS ...    one rank of a job; JSON is a dict with fields of `Meddling`
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import resource
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

HOUR = 3600.0
PATIENCE = 200  # seconds a job; most take three
_WHERE = ("/cacore/io/", "/cacore/files.py")


def replaced(path, content):
    """Another file takes the place of this one, in one step."""
    other = path.with_name(f"{path.name}.other")
    other.write_bytes(content)
    os.replace(other, path)


def replaced_alike(path, content):
    """The other file has the same time of its last change, and mostly the same size."""
    before, other = os.stat(path), path.with_name(f"{path.name}.other")
    other.write_bytes(content)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


def overwritten(path, content):
    """In place, without being cut before."""
    with path.open("r+b") as file:
        file.write(content)


def appended(path, content):
    with path.open("ab") as file:
        file.write(content)


def truncated(path, content):
    os.truncate(path, len(content) % max(1, path.stat().st_size))


def unlinked(path, _):
    path.unlink()


CHANGES = {
    change.__name__: change for change in (replaced, replaced_alike, overwritten, appended, truncated, unlinked)
} | {"rewritten": lambda path, content: path.write_bytes(content)}


@dataclass
class Meddling:
    """A change, and the moment at which it happens in a process.

    Attributes
    ----------
    moment : int
        Number of the call before which `change` is made, or the process stopped; -1: never.
    change, path, content : str
        Name of one of `CHANGES`, the file that changes, and the file with the bytes that it is given.
    stop : float
        Seconds for which the process is stopped.
    clock : int
        Seed of a clock, ``time.time``, that jumps back and forth by hours; 0: it does not.
    room : int
        Bytes that a file may have; -1: any number.
    folder : str
        Working directory.
    """

    moment: int = -1
    change: str = ""
    path: str = ""
    content: str = ""
    stop: float = 0.0
    clock: int = 0
    room: int = -1
    folder: str = ""
    seen: int = 0

    @contextlib.contextmanager
    def going_on(self):
        """Meddle with what the block does."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_small_blocks())
            if self.folder:
                stack.enter_context(contextlib.chdir(self.folder))
            if self.clock:
                stack.enter_context(_jumping(self.clock))
            if self.room >= 0:
                soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.room, hard))
            stack.callback(threading.setprofile, None)
            stack.callback(sys.setprofile, None)
            threading.setprofile(self._look)
            sys.setprofile(self._look)
            yield
            if self.stop and self.seen <= self.moment:  # a rank that makes fewer calls than others
                self._act()

    def _look(self, frame, event, _):
        if event in ("call", "c_call") and any(part in frame.f_code.co_filename for part in _WHERE):
            self.seen += 1
            if self.seen == self.moment + 1:
                self._act()

    def _act(self):
        if self.stop:
            subprocess.Popen(["sh", "-c", f"sleep {self.stop}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.change:
            with contextlib.suppress(FileNotFoundError):
                CHANGES[self.change](Path(self.path), Path(self.content).read_bytes())


@contextlib.contextmanager
def _small_blocks():
    """Files of some KiB are many blocks; modules that are not loaded yet are loaded for it."""
    from cacore.io import native, spool, stream

    with (
        mock.patch.object(stream, "_BLOCK", 1 << 11),
        mock.patch.object(spool, "CHUNK", 1 << 11),
        mock.patch.object(native, "BLOCK", 1 << 12),
    ):
        yield


@contextlib.contextmanager
def _jumping(seed):
    """A clock that was set anew before each look at it."""
    drawn, true, true_ns = random.Random(seed), time.time, time.time_ns

    def jumping():
        return true() + drawn.uniform(-9, 9) * HOUR

    def jumping_ns():
        return true_ns() + int(drawn.uniform(-9, 9) * HOUR * 1e9)

    with mock.patch("time.time", jumping), mock.patch("time.time_ns", jumping_ns):
        yield


def run(program, words, meddling):
    """The exit status of ``python -m PROGRAM WORDS``, in this process."""
    with mock.patch.object(sys, "argv", [program, *words]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        try:
            with meddling.going_on():
                runpy.run_module(program, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            return ended.code or 0
    return 0


def launched(ranks, program, words, meddlings, folder):
    """Exit status and stderr of a job; `meddlings` has the dict of each rank that is meddled with."""
    parts = [
        ["-n", "1", sys.executable, "-m", "tests.fuzz.meddling", json.dumps(meddlings.get(rank, {})), program, *words]
        for rank in range(ranks)
    ]
    joined = list(itertools.chain(*([":", *part] for part in parts)))[1:]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(
        ["mpiexec", *map(str, joined)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as job:  # fmt: skip
        try:
            _, err = job.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGTERM)
            _, err = job.communicate()
            return "hangs", err
    return job.returncode, err


def main():
    if any(name in os.environ for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK")):
        from mpi4py import MPI  # noqa: F401 - its own files may be larger than `room`
    meddling, program, *words = sys.argv[1:]
    sys.exit(run(program, words, Meddling(**json.loads(meddling))))


if __name__ == "__main__":
    main()
