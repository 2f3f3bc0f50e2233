"""Dividing rows into many parts, in one level and in two, on virtual ranks.

python -m benchmarks.divide [--rows N] [--features D] [--parts P ...] [--ranks R ...] [--levels L ...] [--method NAME]

Rows are generated. Each rank really computes, alone on one core; the seconds are those of the network with these
computations. "spread" is the mean squared distance of the rows from the means of their parts, over that of one level.
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.cluster.timeline import replay
from benchmarks.cluster.world import World
from benchmarks.race import headline, machine_rate
from benchmarks.results import Record, record, table
from benchmarks.scaling import keep_memory
from cacore.comm import Communicator
from cacore.data.rows import block_bounds
from cacore.machine import threads
from cakernels.plan.machine import PRESETS
from partition.algorithms import named
from partition.base import REGISTERED, Algorithm

COLUMNS = {
    "parts": ",", "ranks": "", "levels": "", "seconds": ".3f", "computing": ".3f", "MB": ",.1f", "messages": ",",
    "smallest": "", "largest": "", "spread": ".4f", "rounds": "",
}  # fmt: skip


def rows_of(n: int, d: int) -> NDArray[np.float64]:
    """Rows around 200 centres of different spread, in fewer directions than features."""
    rng = np.random.default_rng(0)
    centers, inside = rng.normal(size=(200, d)), rng.normal(size=(200, min(d, 8), d)) * 0.3
    which = rng.integers(200, size=n)
    X = np.empty((n, d))
    for lo in range(0, n, 1 << 16):
        k = which[lo : lo + (1 << 16)]
        X[lo : lo + (1 << 16)] = centers[k] + np.einsum(
            "ij,ijd->id", rng.normal(size=(len(k), inside.shape[1])), inside[k]
        )
    return X


def measured(X: NDArray[np.float64], chosen: Algorithm, ranks: int, levels: int, network: str) -> Record:
    """Divide the rows on virtual ranks, twice; the first time compiles."""
    found: list[Any] = [None] * ranks

    def work(comm: Communicator) -> None:
        lo, hi = block_bounds(len(X), comm.size, comm.rank)
        found[comm.rank] = (chosen.divide(X[lo:hi], comm=comm), comm.sent("partition"))

    with patch("partition.algorithms.clusters.ONE_LEVEL", chosen.n_parts if levels == 1 else 1):
        World(ranks).run(work)
        traces = World(ranks).run(work)
    kept = [[step for step in trace if step.phase == "partition"] for trace in traces]
    labels, sizes = np.concatenate([one.labels for one, _ in found]), found[0][0].sizes
    sums = np.stack([np.bincount(labels, column, minlength=chosen.n_parts) for column in X.T], axis=1)
    spread = float(np.vdot(X, X) - np.vdot(sums, sums / sizes[:, None])) / len(X)
    sent = np.sum([each for _, each in found], axis=0).sum(axis=1)
    return {
        "parts": chosen.n_parts, "ranks": ranks, "levels": levels, "seconds": replay(kept, PRESETS[network]).end,
        "computing": max(sum(step.seconds for step in trace) for trace in kept), "MB": sent[0] / 1e6,
        "messages": int(sent[1]), "smallest": int(sizes.min()), "largest": int(sizes.max()), "spread": spread,
        "rounds": found[0][0].n_iter,
    }  # fmt: skip


def main() -> None:
    """Print one line per number of parts, number of ranks and number of levels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--parts", nargs="+", type=int, default=[64, 1_024, 16_384])
    parser.add_argument("--ranks", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--levels", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--method", choices=sorted(set(REGISTERED) - {"random", "fcfs"}), default="kbalance")
    parser.add_argument("--network", choices=PRESETS, default="aries")
    args = parser.parse_args()
    threads.set_threads(1)
    keep_memory()
    headline()
    X, lines = rows_of(args.rows, args.features), []
    for parts in args.parts:
        for ranks in args.ranks:
            chosen = named(args.method)
            chosen.n_parts, chosen.random_state = parts, 0
            spread = None
            for levels in args.levels:
                one = measured(X, chosen, ranks, levels, args.network)
                spread = spread or one["spread"]
                one["spread"] /= spread
                lines.append(one)
                record(**one)
                print(table([one], COLUMNS).splitlines()[-1], flush=True)
    print(f"matrix product afterwards {machine_rate():.0f} GFLOP/s")
    print(table(lines, COLUMNS))


if __name__ == "__main__":
    main()
