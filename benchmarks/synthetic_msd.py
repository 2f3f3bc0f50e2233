"""SYNTHETIC rows in the shape of the Million Song Dataset: python -m benchmarks.synthetic_msd OUT.h5 [--rows N].

515,345 rows with 90 features, split like the real set (the first 463,715 are training rows). The features are a mixture
of correlated clusters with heavy tails; the target is a rough function of them, in years, with noise. Only the size is
that of the real data: errors on it are meaningless.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from cacore.files import replacing
from cacore.io.native import created

ROWS, TRAIN, FEATURES, CLUSTERS = 515_345, 463_715, 90, 40


def shape_of(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Parameters shared by all blocks of a file."""
    return {
        "means": 2.0 * rng.normal(size=(CLUSTERS, FEATURES)),
        "mixing": rng.normal(size=(FEATURES, FEATURES)) / np.sqrt(FEATURES),
        "waves": rng.normal(size=(FEATURES, 4)) / 20,
        "levels": rng.normal(size=CLUSTERS),
    }


def block(rng: np.random.Generator, n: int, shape: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Draw `n` rows and their targets."""
    cluster = rng.integers(CLUSTERS, size=n)
    X = shape["means"][cluster] + rng.standard_t(5, size=(n, FEATURES)) @ shape["mixing"]
    signal = np.sin(X @ shape["waves"]).sum(axis=1) + shape["levels"][cluster]
    return X, np.clip(np.round(1998 + 6 * signal + rng.normal(0, 6, size=n)), 1922, 2011)


def main() -> None:
    """Write the file, whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = shape_of(rng)
    n_train = args.rows * TRAIN // ROWS
    with replacing(args.out) as temporary, created(temporary) as file:
        file.attrs["note"] = "SYNTHETIC, in the shape of the Million Song Dataset"
        for split, n in (("train", n_train), ("test", args.rows - n_train)):
            X = file.create_dataset(f"{split}/X", (n, FEATURES), np.float64)
            y = file.create_dataset(f"{split}/y", (n,), np.float64)
            for lo in range(0, n, 50_000):
                hi = min(lo + 50_000, n)
                X[lo:hi], y[lo:hi] = block(rng, hi - lo, shape)
    print(f"{args.out}: {args.rows:,} SYNTHETIC rows x {FEATURES}")


if __name__ == "__main__":
    main()
