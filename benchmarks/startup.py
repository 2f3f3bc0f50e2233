"""Load on a shared file system by the start-up of a rank: python -m benchmarks.startup [--stage ARCHIVE].

strace counts the calls of a whole run on 64 rows in the folders that a cluster shares: the virtual environment, its
base Python unless that is the system's, and the repository. Run it twice: the first run may compile.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("cakrr.bkrr2", "casvm.casvm")
KINDS = ("opened", "not found", "asked about", "listed")
# strace -y writes the path behind a descriptor: openat(3</a/folder>, "name") = 4</a/folder/name>.
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(?:<(.*?)>)?(?: (E\w+))?")
_NAME = re.compile(r'(?:(?:AT_FDCWD|\d+)<(.*?)>, )?"((?:[^"\\]|\\.)*)"')
_DESCRIPTOR = re.compile(r"\d+<(/.*?)>")


def calls(trace: Path) -> Iterator[tuple[str, str, int, str | None, bool]]:
    """Yield each call in the trace: name, arguments, result, path of the returned descriptor, True if it failed."""
    begun: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        process, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[process] = text.removesuffix("<unfinished ...>")
            continue
        if text.startswith("<... "):
            text = begun.pop(process, "") + text.partition("resumed>")[2]
        if found := _CALL.match(text):
            name, arguments, result, path, error = found.groups()
            yield name, arguments, int(result), path, error is not None


def path_of(arguments: str, here: Path) -> str | None:
    """Path in a call's arguments, or of its descriptor."""
    if (named := _NAME.match(arguments)) and (named[2] or named[1]):
        return os.path.normpath(Path(named[1] or here, named[2]))
    descriptor = _DESCRIPTOR.match(arguments)
    return descriptor[1] if descriptor else None


def counted(trace: Path, shared: list[Path], here: Path) -> Counter[str]:
    """Counts of calls on files in the shared folders (opened, asked about, ...), bytes read, and bytes mapped."""
    counts: Counter[str] = Counter()
    mapped: set[str] = set()
    inside = tuple(f"{folder}/" for folder in shared)
    for name, arguments, result, returned, failed in calls(trace):
        path = returned or path_of(arguments, here)
        if name == "mmap":
            file = re.search(r"\d+<(/.*?)>", arguments)
            if file and file[1].startswith(inside):
                mapped.add(file[1])
            continue
        if path is None or not f"{path}/".startswith(inside):
            continue
        if name in ("read", "pread64"):
            counts["bytes"] += max(0, result)
        elif name == "getdents64":
            counts["listed"] += 1
        elif failed:
            counts["not found"] += 1
        elif name in ("open", "openat", "execve"):
            counts["opened"] += 1
        else:
            counts["asked about"] += 1
    counts["mapped"] = sum(Path(file).stat().st_size for file in mapped if Path(file).exists())
    return counts


def traced(command: list[str], folder: Path, shared: list[Path], environment: dict[str, str]) -> Counter[str]:
    """Run the command under strace in the repository, and count the calls."""
    trace, traced_calls = folder / "trace", "trace=%file,read,pread64,mmap,getdents64,fstat"
    subprocess.run(
        ["strace", "-f", "-y", "-o", str(trace), "-e", traced_calls, *command], cwd=ROOT, env=environment, check=True
    )
    return counted(trace, shared, ROOT)


def staged(archive: Path, folder: Path) -> dict[str, str]:
    """Unpack the archive as a job does on each node; return the environment of the ranks."""
    stage = shlex.quote(str(ROOT / "jobs/stage.sh"))
    words = (
        f'{stage} unpack {shlex.quote(str(archive))} {folder}/node && eval "$({stage} words {folder}/node)" && env -0'
    )
    out = subprocess.run(["bash", "-c", words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(entry.split("=", 1) for entry in out.split("\0") if "=" in entry)


def main() -> None:
    """Print one line per program and way of starting, for one rank and for many."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--stage", type=Path, metavar="ARCHIVE", help="also start from this archive, made by jobs/stage.sh pack"
    )
    parser.add_argument("--ranks", type=int, default=1536)
    parser.add_argument("--nodes", type=int, default=64)
    args = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("benchmarks.startup: strace is not installed")
    shared = [ROOT, Path(sys.prefix).resolve()]
    if not Path(sys.base_prefix).resolve().is_relative_to("/usr"):
        shared.append(Path(sys.base_prefix).resolve())
    print("| program | started from | " + " | ".join(KINDS) + " | MiB read | MiB mapped | calls of all ranks |")
    print("|---" * (len(KINDS) + 5) + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        X = np.random.default_rng(0).normal(size=(64, 4))
        np.savetxt(folder / "rows.csv", np.c_[X, np.where(X[:, 0] > 0, 1, -1)], delimiter=",")
        ways = [("shared", dict(os.environ))]
        if args.stage:
            ways.append(("each node", staged(args.stage, folder)))
        for program in PROGRAMS:
            for way, environment in ways:
                python = shutil.which("python", path=environment["PATH"]) or sys.executable
                command = [python, "-m", program, str(folder / "rows.csv"), "--quiet"]
                counts = traced(command, folder, shared, environment)
                asked = sum(counts[kind] for kind in KINDS)
                sizes = [f"{counts[what] / 2**20:.1f}" for what in ("bytes", "mapped")]
                cells = [program, way, *(f"{counts[kind]:,}" for kind in KINDS), *sizes, f"{asked * args.ranks:,}"]
                print("| " + " | ".join(cells) + " |", flush=True)
    if args.stage:
        size = args.stage.stat().st_size / 2**20
        print(f"\nand, once a node, one file of {size:.0f} MiB: {args.nodes} times for {args.ranks:,} ranks")


if __name__ == "__main__":
    main()
