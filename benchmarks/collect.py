"""A table of reports: python -m benchmarks.collect REPORT.json ..."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

PHASES = ("read", "partition", "train", "predict", "total")


def row(report: dict) -> list[str]:
    """Cells of the table for one report."""
    metrics, sizes = report["metrics"], report["partition_sizes"]
    names = ("accuracy", "balanced_accuracy") if "accuracy" in metrics else ("mse", "r2")
    quality = [f"{metrics[name]:.4g}" if metrics.get(name) is not None else "-" for name in names]
    return [
        Path(report["data"]["path"]).stem,
        report["method"]
        + (" (oracle)" if report["params"].get("oracle") else f", {report['params'].get('route', '')}"),
        f"{report['data']['n_train']:,}",
        f"{report['ranks']}",
        f"{len(sizes)}",
        f"{min(sizes):,}-{max(sizes):,}",
        *quality,
        *(f"{report['seconds'][phase]:.2f}" for phase in PHASES),
        *(f"{report['comm'][phase]['bytes']:,}" for phase in PHASES[:-1]),
        f"{max(report['memory']['peak_rss_mib']):.0f}",
    ]


def main() -> None:
    """Print one line per report, as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collect", description="Print a table of reports.")
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT.json", help="a report, as --report writes it")
    args = parser.parse_args()
    head = [
        "data",
        "method",
        "n",
        "R",
        "P",
        "part rows",
        "mse or accuracy",
        "r2 or balanced",
        *PHASES,
        *(f"bytes {phase}" for phase in PHASES[:-1]),
        "MiB",
    ]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for path in args.reports:
        print("| " + " | ".join(row(json.loads(path.read_text()))) + " |")


if __name__ == "__main__":
    main()
