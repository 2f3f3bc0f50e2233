"""Every partitioner on covtype (581,012 x 54), as from a notebook, beside scikit-learn's KMeans.

python -m benchmarks.covtype_partition DATA [--parts P]

DATA is the folder of covtype.data.xz, or a file. The peer also starts from random rows, and runs as many rounds of
Lloyd's algorithm as our K-means.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans as PeerKMeans

from benchmarks import generated
from benchmarks.race import headline, machine_rate
from benchmarks.results import Record, record, table
from cacore.io.convert import read_all
from partition import BY_NAME

PEER = "scikit-learn KMeans"
COLUMNS = {
    "rival": "", "seconds": ".2f", "ratio": ".2f", "rounds": "", "smallest": ",", "largest": ",", "distance": ".4f",
    "machine": ".0f",
}  # fmt: skip


def measured(fit: Callable[[], tuple[NDArray[Any], int]], X: NDArray[np.float64], parts: int) -> Record:
    """Record of a partitioning: seconds, rounds, sizes, and mean squared distance of rows to their parts' means."""
    before, begun = machine_rate(), time.perf_counter()
    labels, rounds = fit()
    seconds = time.perf_counter() - begun
    means = np.stack([X[labels == j].mean(axis=0) for j in range(parts)])
    sizes = np.bincount(labels, minlength=parts)
    distance = float(np.square(X - means[labels]).sum(axis=1).mean())
    return {
        "seconds": seconds, "rounds": rounds, "smallest": int(sizes.min()), "largest": int(sizes.max()),
        "distance": distance, "machine": min(before, machine_rate()), "partition_sizes": sizes.tolist(),
    }  # fmt: skip


def main() -> None:
    """Time each partitioner, and print the quality of its parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of covtype.data.xz, that file, or its conversion to HDF5")
    parser.add_argument("--parts", type=int, default=64)
    args = parser.parse_args()
    headline()
    folder = args.data.is_dir()
    path = generated.file(args.data, "covtype.data.xz") if folder else args.data
    X = np.asarray(read_all(path)["train"].X, np.float64)
    low, high = X.min(axis=0), X.max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    race = f"{generated.label(args.data, 'covtype') if folder else path.stem}, {len(X):,} x {X.shape[1]}"
    found: list[Record] = []
    for name, partitioner in BY_NAME.items():
        partitioner(4, random_state=0).fit(X[:2000])

        def ours(partitioner: Any = partitioner) -> tuple[NDArray[Any], int]:
            fitted = partitioner(args.parts, random_state=0).fit(X)
            return fitted.labels_, getattr(fitted, "n_iter_", 0)

        found.append({"rival": name, **measured(ours, X, args.parts)})
    rounds = max(1, next(one["rounds"] for one in found if one["rival"] == "kmeans"))

    def peer() -> tuple[NDArray[Any], int]:
        start = X[np.random.default_rng(0).choice(len(X), args.parts, replace=False)]
        fitted = PeerKMeans(args.parts, init=start, n_init=1, max_iter=rounds, tol=0, algorithm="lloyd").fit(X)
        return fitted.labels_, fitted.n_iter_

    found.append({"rival": PEER, **measured(peer, X, args.parts)})
    for one in found:
        one["ratio"] = one["seconds"] / found[-1]["seconds"]
        counts = {what: float(one[what]) for what in ("rounds", "smallest", "largest")}
        record(race=race, peer=PEER, **(one | counts))
    print(f"{race}, {args.parts} parts; ratio: seconds over those of {PEER}; distance: mean square to the part's mean")
    print(table(found, COLUMNS))


if __name__ == "__main__":
    main()
