"""Exact Shapley values of an SVM beside other explainers: shap's samples coalitions, shapiq's is exact for one kernel.

python -m benchmarks.shapley_peers DATA_FOLDER

An SVC of the first 2,000 rows of ijcnn1, C = 32 and gamma = 2, explains 10 of them. shap's KernelExplainer has one
background row: features that a row shares with it have no value, so that enough samples are all coalitions. shapiq's
product kernel explainer leaves features out of the kernel, which `background="absent"` does here. Both are to be
installed; a peer that is not is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from benchmarks.results import record
from casvm import SMOSVC

ROWS, EXPLAINED = 2000, 10
Array = NDArray[np.float64]


def timed(explain: Callable[[], Array]) -> tuple[Array, float]:
    """Values, and seconds per row."""
    begun = time.perf_counter()
    found = explain()
    return found, (time.perf_counter() - begun) / EXPLAINED


def beside_shap(model: SMOSVC, some: Array, background: Array) -> None:
    """Print shap's seconds and differences for two numbers of samples."""
    import shap

    ours, seconds = timed(lambda: model.explain(some, background=background).values)
    print(f"one background row: ours {seconds:.5f} s per row, largest value {np.abs(ours).max():.3f}")
    sampler = shap.KernelExplainer(model.decision_function, background)
    for samples in (2000, 20000):
        theirs, taken = timed(
            lambda: np.array(sampler.shap_values(some, nsamples=samples, silent=True, l1_reg=False))  # noqa: B023
        )
        _told(f"shap, {samples} samples", seconds, taken, ours, theirs)


def beside_shapiq(model: SMOSVC, some: Array) -> None:
    """Print shapiq's seconds and differences; its explainer takes scikit-learn's models alone, its computer any."""
    from shapiq.explainer.product_kernel.base import ProductKernelModel
    from shapiq.explainer.product_kernel.product_kernel import ProductKernelComputer

    X, alpha = model.support_vectors_, model.dual_coef_.ravel()
    computer = ProductKernelComputer(
        ProductKernelModel(
            alpha=alpha, X_train=X, n=len(X), d=X.shape[1], gamma=model.gamma, kernel_type="rbf",
            intercept=float(model.intercept_[0]),
        )
    )  # fmt: skip
    ours, seconds = timed(lambda: model.explain(some, background="absent").values)
    print(f"absent features: ours {seconds:.5f} s per row, largest value {np.abs(ours).max():.3f}")

    def of_row(x: Array) -> list[float]:
        vectors = computer.compute_kernel_vectors(X, x)
        return [computer.compute_shapley_value(vectors, j) for j in range(X.shape[1])]

    def all_rows() -> Array:
        return np.array([of_row(x) for x in some])

    theirs, taken = timed(all_rows)
    _told("shapiq", seconds, taken, ours, theirs)


def _told(name: str, seconds: float, taken: float, ours: Array, theirs: Array) -> None:
    gap = float(np.abs(theirs - ours).max())
    print(f"{name}: {taken:.4f} s per row, {taken / seconds:.0f} times ours, largest difference {gap:.2g}", flush=True)
    record(peer=name, seconds=taken, ours=seconds, difference=gap)


def main() -> None:
    """Print seconds per row and the largest difference from each peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    X, y = load_svmlight_file(str(parser.parse_args().folder / "ijcnn1.bz2"), n_features=22)
    X, y = X[:ROWS].toarray(), y[:ROWS]
    model, background, some = SMOSVC(C=32, gamma=2).fit(X, y), X[:1], X[1000 : 1000 + EXPLAINED]
    model.explain(some, background=background)  # compiled
    print(f"{len(model.support_)} support vectors")
    if find_spec("shap"):
        beside_shap(model, some, background)
    if find_spec("shapiq"):
        beside_shapiq(model, some)


if __name__ == "__main__":
    main()
