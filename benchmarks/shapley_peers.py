"""Exact Shapley values of an SVM beside shap's KernelExplainer, which samples coalitions.

python -m benchmarks.shapley_peers DATA_FOLDER

An SVC of the first 2,000 rows of ijcnn1, C = 32 and gamma = 2, explains 10 of them with one background row. It needs
shap. Features that a row shares with the background row have no value, so that enough samples are all coalitions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from casvm import SMOSVC

ROWS, EXPLAINED = 2000, 10


def main() -> None:
    """Print seconds per row and the largest difference for two numbers of samples."""
    import shap  # in an environment of its own

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    X, y = load_svmlight_file(str(parser.parse_args().folder / "ijcnn1.bz2"), n_features=22)
    X, y = X[:ROWS].toarray(), y[:ROWS]
    model, background, some = SMOSVC(C=32, gamma=2).fit(X, y), X[:1], X[1000 : 1000 + EXPLAINED]
    model.explain(some, background=background)  # compiled
    begun = time.perf_counter()
    ours = model.explain(some, background=background).values
    seconds = (time.perf_counter() - begun) / EXPLAINED
    print(
        f"{len(model.support_)} support vectors, largest value {np.abs(ours).max():.3f}; ours {seconds:.5f} s per row"
    )
    sampler = shap.KernelExplainer(model.decision_function, background)
    for samples in (2000, 20000):
        begun = time.perf_counter()
        theirs = np.array(sampler.shap_values(some, nsamples=samples, silent=True, l1_reg=False))
        seconds = (time.perf_counter() - begun) / EXPLAINED
        print(f"shap, {samples} samples: {seconds:.4f} s per row, largest difference {np.abs(theirs - ours).max():.2g}")


if __name__ == "__main__":
    main()
