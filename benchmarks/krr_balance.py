"""Cost of uneven parts, with one part per rank and with more: python -m benchmarks.krr_balance DATA.h5."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Print the ranks' busy seconds; exit status 1 if with more parts they differ by more than 10 percent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=64)
    args = parser.parse_args()
    apart = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for parts in (args.ranks, args.partitions):
            report = Path(folder) / "report.json"
            launch = ["mpiexec", "-n", str(args.ranks), sys.executable, "-m", "cakrr.kkrr2", str(args.data)]
            # With few parts, a single pair takes long enough.
            grid = ["2", "1e-5"] if parts == args.ranks else ["0.5:4:7", "1e-6:1e-3:7"]
            settings = ["--partitions", str(parts), "--threads", "1", "--sigma", grid[0], "--lambda", grid[1]]
            subprocess.run([*launch, *settings, "--quiet", "--report", str(report)], check=True)
            told = json.loads(report.read_text())
            busy, sizes = told["solver"]["busy_seconds"], told["partition_sizes"]
            apart = (max(busy) - min(busy)) / max(busy)
            print(
                f"P = {parts}, parts of {min(sizes):,} to {max(sizes):,} rows: "
                f"busy {', '.join(f'{s:.2f}' for s in busy)} s, "
                f"{100 * apart:.1f} % apart, the busiest {told['solver']['imbalance']:.3f} of the mean"
            )
    sys.exit(0 if apart <= 0.1 else 1)


if __name__ == "__main__":
    main()
