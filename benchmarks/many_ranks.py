"""Many ranks on this machine: seconds of each command, including start-up, and memory per rank.

python -m benchmarks.many_ranks DATA_FOLDER [--ranks R] [--options WORD ...]

Data are small, and options are the defaults, with one part per rank. The peer is Python with MPI alone, on the same
number of ranks. Memory is the peak resident size of a rank, which counts shared libraries in every rank; the decrease
of the machine's free memory is shown as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import generated, krr_data, svm_data
from benchmarks.race import headline
from benchmarks.results import Record, record, table
from cacore.machine import memory

COLUMNS = {
    "rival": "", "ranks": "", "seconds": ".1f", "until ranks met": ".1f", "compiled code": ".1f", "other": ".1f",
    "MiB a rank": "", "GiB of the machine": ".1f", "quality": "",
}  # fmt: skip
PEER = "Python with MPI alone"


def native(folder: Path, out: Path) -> dict[str, Path]:
    """California housing and ijcnn1, converted to HDF5."""
    return {
        "cakrr.bkrr2": krr_data.native(folder, "cadata", out / "cadata.h5"),
        "casvm.cpsvm": svm_data.native(svm_data.SETS["ijcnn1"](folder), out / "ijcnn1.h5"),
    }


def lost(work: list[str]) -> tuple[float, float]:
    """Seconds of a command, and the largest decrease of free memory during it, in GiB."""
    free, done = [memory.available()], threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            free.append(memory.available())

    looker = threading.Thread(target=look)
    looker.start()
    begun = time.perf_counter()
    try:
        subprocess.run(work, check=True)
    finally:
        done.set()
        looker.join()
    return time.perf_counter() - begun, (free[0] - min(free)) / 2**30


def command(launch: list[str], module: str, data: Path, options: list[str]) -> Record:
    """Record of a training under mpiexec."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["-m", module, str(data), *options, "--quiet", "--report", str(report)]
        seconds, gib = lost([*launch, *words])
        told = json.loads(report.read_text())
    inside, peaks = told["seconds"], told["memory"]["peak_rss_mib"]
    name, value = next((name, told["metrics"][name]) for name in ("accuracy", "r2") if name in told["metrics"])
    return {
        "rival": f"{module} {' '.join(options)}".strip(), "seconds": seconds,
        "until ranks met": seconds - inside["total"] + inside["start"],
        "compiled code": inside["compile"], "other": inside["other"],
        "MiB a rank": f"{min(peaks):.0f} to {max(peaks):.0f}", "mib": max(peaks), "GiB of the machine": gib,
        "quality": f"{name} {value:.4f}",
    }  # fmt: skip


def main() -> None:
    """Run the peer and both commands, once each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="options for both commands")
    args = parser.parse_args()
    headline()
    launch = ["mpiexec", "-n", str(args.ranks), sys.executable]
    alone, gib = lost([*launch, "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"])
    found: list[Record] = [{"rival": PEER, "seconds": alone, "GiB of the machine": gib}]
    with tempfile.TemporaryDirectory() as folder:
        for module, data in native(args.data, Path(folder)).items():
            found.append(command(launch, module, data, args.options))
    for one in found:
        one["ranks"] = args.ranks
        kept = {name.replace(" ", "_"): value for name, value in one.items() if name not in ("MiB a rank", "quality")}
        record(race=generated.label(args.data, f"{args.ranks} ranks"), peer=PEER, **kept)
    print(table(found, COLUMNS))


if __name__ == "__main__":
    main()
