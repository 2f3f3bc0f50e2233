"""Load by other ranks during timing, since the cores of a machine share caches and memory bandwidth.

A rank that is timed alone has these to itself. If R ranks would compute at once, R - 1 other processes run the same
program on their own virtual ranks, repeatedly, while the ranks of this process are timed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster.programs import PROGRAMS, Program
from cacore.machine import threads

READY = "ready"


@contextmanager
def company(others: int, name: str, program: Program, data: Path, ranks: int, limit: float) -> Iterator[None]:
    """Run `others` processes with this program inside the block."""
    words = [name, str(program.parts), str(data), str(ranks), str(limit)]
    command = [sys.executable, "-m", "benchmarks.cluster.company", *words]
    with ExitStack() as stack:
        started = []
        for _ in range(others):
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise RuntimeError(f"{' '.join(command)}: it ended with status {process.wait()}")
        yield


def main() -> None:
    """Work of one of the other processes: report when compilation is done, then run until killed."""
    name, parts, data, ranks, limit = sys.argv[1:]
    threads.set_threads(1)
    program = replace(PROGRAMS[name], parts=int(parts))
    program.virtual(Path(data), int(ranks), 1, float(limit))
    print(READY, flush=True)
    while True:
        program.virtual(Path(data), int(ranks), 1, float(limit))


if __name__ == "__main__":
    main()
