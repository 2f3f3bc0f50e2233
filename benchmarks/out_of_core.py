"""The same training with rows in memory and in a file: python -m benchmarks.out_of_core DATA.h5 PARTS [words of BKRR2].

The memory of Python, its packages and the compiled code is measured by the same command on a few rows, and subtracted.
The two model files must be identical. DATA.h5 may come from `benchmarks.synthetic_msd`.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py

DISK = ["--out-of-core"]


def trained(folder: Path, data: Path, parts: int, name: str, words: list[str]) -> dict:
    """Run once, with the model in the folder, and return the report."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "cakrr.bkrr2", data, "--partitions", parts, "--model", folder / f"{name}.h5"]
    subprocess.run([*map(str, command), "--quiet", "--report", str(report), *words], check=True)
    return json.loads(report.read_text())


def main() -> None:
    """Print the figures; exit status 1 if the models differ or the memory limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("parts", type=int)
    parser.add_argument("--limit", type=float, default=0.5, help="GiB")
    args, more = parser.parse_known_args()
    words = more or ["--sigma", "6", "--lambda", "1e-3"]
    limited = [*words, *DISK, "--memory-limit", str(args.limit)]
    with tempfile.TemporaryDirectory(dir=args.data.parent) as name:
        folder = Path(name)
        few = folder / "few.h5"
        with h5py.File(args.data) as source, h5py.File(few, "w") as file:
            for split in ("train", "test"):
                file[f"{split}/X"], file[f"{split}/y"] = source[f"{split}/X"][:128], source[f"{split}/y"][:128]
        trained(folder, few, 4, "compiled", limited)
        base = trained(folder, few, 4, "alone", limited)["memory"]["peak_rss_mib"][0]
        disk = trained(folder, args.data, args.parts, "disk", limited)
        memory = trained(folder, args.data, args.parts, "memory", words)
        same = filecmp.cmp(folder / "disk.h5", folder / "memory.h5", shallow=False)
    kept = disk["memory"]["peak_rss_mib"][0] - base <= 1024 * args.limit
    for where, report in (("in memory", memory), ("in a file", disk)):
        seconds = ", ".join(f"{phase} {report['seconds'][phase]:.1f} s" for phase in ("partition", "train", "total"))
        print(f"{where}: {report['memory']['peak_rss_mib'][0] - base:.0f} MiB above {base:.0f}; {seconds}")
    ratio = disk["seconds"]["total"] / memory["seconds"]["total"]
    print(
        f"time {ratio:.2f} x in memory; limit {'kept' if kept else 'NOT KEPT'}; {'same' if same else 'DIFFERENT'} model"
    )
    sys.exit(0 if kept and same else 1)


if __name__ == "__main__":
    main()
