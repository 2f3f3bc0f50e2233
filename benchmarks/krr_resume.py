"""Kill one rank at a random moment, resume from the checkpoint, compare: python -m benchmarks.krr_resume DATA.h5."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def ranks_of(launcher: int) -> list[int]:
    """Processes of this job that run Python, found by parents and command lines in /proc."""
    found, parents = [], {launcher}
    for _ in range(3):  # the launcher, its proxy, the ranks
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in parents:
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    words = (entry / "cmdline").read_bytes()
                except (OSError, IndexError):
                    continue  # it ended meanwhile
                if parent in parents:
                    parents.add(int(entry.name))
                    if b"cakrr." in words and b"mpiexec" not in words and b"hydra" not in words:
                        found.append(int(entry.name))
    return found


def result(folder: Path) -> tuple[str, str]:
    """The metrics, and a hash of the model file."""
    metrics = json.dumps(json.loads((folder / "report.json").read_text())["metrics"])
    return metrics, hashlib.sha256((folder / "model.h5").read_bytes()).hexdigest()[:16]


def main() -> None:
    """Print each run; exit status 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--method", default="bkrr2")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    args = parser.parse_args()
    rng = random.Random(0)
    same = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = ["--report", str(folder / "report.json"), "--model", str(folder / "model.h5"), "--quiet"]
        command = ["mpiexec", "-n", str(args.ranks), sys.executable, "-m", f"cakrr.{args.method}", str(args.data)]
        command += [*args.options, *out]
        begun = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - begun
        expected = result(folder)
        print(f"undisturbed: {seconds:.1f} s, {expected}")
        resumed = [*command, "--checkpoint", str(folder / "checkpoint")]
        for run in range(args.runs):
            shutil.rmtree(folder / "checkpoint", ignore_errors=True)
            for file in ("report.json", "model.h5"):
                (folder / file).unlink()
            moment = rng.uniform(0, 1.1 * seconds)
            job = subprocess.Popen(resumed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(moment)
            victims = ranks_of(job.pid)
            if victims and job.poll() is None:
                os.kill(rng.choice(victims), signal.SIGKILL)
            status = job.wait()
            there = len(list((folder / "checkpoint").glob("*.npz")))
            begun = time.perf_counter()
            subprocess.run(resumed, check=True)
            again = result(folder)
            same += again == expected
            print(
                f"run {run}: killed after {moment:.1f} s (status {status}) with {there} pieces stored, "
                f"finished in {time.perf_counter() - begun:.1f} s: {'the same' if again == expected else again}",
                flush=True,
            )  # fmt: skip
    print(f"{same} of {args.runs} the same")
    sys.exit(0 if same == args.runs else 1)


if __name__ == "__main__":
    main()
