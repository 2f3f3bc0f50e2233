"""Regressors of other packages, each with a parameter search that only uses training rows.

Each model is a function of training rows, their targets, rows to predict and a seed. It returns predictions and facts:
seconds to fit (including the search) and to predict, and the chosen parameters. `HOW` describes each search.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks import tree_search
from benchmarks.tree_search import held_out

Facts = dict[str, Any]
Model = Callable[..., tuple[NDArray[np.float64], Facts]]

STAGES = ((1000, 16), (4000, 4))  # stages of xrfm's search: training rows, and number of candidates
LPQ_ROWS = 3_500  # up to this number of rows xrfm's search includes its kernel lpq, 10 times slower than l2 on a CPU
LEAF_ROWS = 10_000  # rows per leaf of xrfm: with its default of 60,000, kernel matrices take up to 14 GB on a CPU


def lightgbm(
    X: Any, y: Any, T: Any, seed: int, threads: int, within: float | None = None
) -> tuple[NDArray[np.float64], Facts]:
    """LightGBM: early stopping for a few numbers of leaves and rates, or for as many as a time allows."""
    begun = _now()
    model, chosen = tree_search.searched(tree_search.lightgbm(False, seed, threads), X, y, seed, within)
    return _predicted(model.predict, T, begun, **chosen)


def hist_gradient_boosting(
    X: Any, y: Any, T: Any, seed: int, threads: int, within: float | None = None
) -> tuple[NDArray[np.float64], Facts]:
    """scikit-learn's gradient boosting: the same search."""
    begun = _now()
    with threadpool_limits(threads):
        model, chosen = tree_search.searched(tree_search.hist_gradient_boosting(False, seed), X, y, seed, within)
        return _predicted(model.predict, T, begun, **chosen)


def xrfm(
    X: Any, y: Any, T: Any, seed: int, threads: int, leaf_rows: int = LEAF_ROWS
) -> tuple[NDArray[np.float64], Facts]:
    """Recursive feature machines (xrfm), with rows standardised as the authors recommend.

    The default and random draws from the authors' search space are compared on 1,000 training rows, and the best of
    them on 4,000. The best of these is trained on all but a validation tenth of the rows, which xrfm also uses to
    choose its round.
    """
    import torch

    begun = _now()
    mine, judges = held_out(len(X), seed)
    mean, scale = X[mine].mean(axis=0), X[mine].std(axis=0)
    scale[scale == 0] = 1.0
    middle, spread = y[mine].mean(), y[mine].std()
    rows, others = ((Z - mean) / scale for Z in (X, T))
    targets = (y - middle) / spread
    rng = np.random.default_rng(seed)
    lpq = 0.3 if len(mine) <= LPQ_ROWS else 0.0
    candidates = [_XRFM_DEFAULT, *(_drawn(rng, lpq) for _ in range(STAGES[0][1] - 1))]
    torch.set_num_threads(threads)
    for size, most in STAGES:
        size = min(size, len(mine))
        fits = [_xrfm_fit(rows, targets, mine[:size], judges, one, seed, leaf_rows) for one in candidates[:most]]
        order = np.argsort([mse for mse, _ in fits])
        candidates = [candidates[i] for i in order]
        if size == len(mine):
            model = fits[order[0]][1]
            break
    else:
        _, model = _xrfm_fit(rows, targets, mine, judges, candidates[0], seed, leaf_rows)

    def predict(Z: Any) -> Any:
        return np.asarray(model.predict(Z.astype(np.float32))).ravel() * spread + middle

    return _predicted(predict, others, begun, **candidates[0], leaf_rows=leaf_rows)


def xrfm_whole(X: Any, y: Any, T: Any, seed: int, threads: int) -> tuple[NDArray[np.float64], Facts]:
    """Like `xrfm`, with its default leaves of 60,000 rows: one matrix of all rows, which is slow on a CPU."""
    return xrfm(X, y, T, seed, threads, 60_000)


# Defaults in the documentation of the wheel.
_XRFM_DEFAULT = {"kernel": "l2", "bandwidth": 10.0, "exponent": 1.0, "norm_p": 2.0, "diag": False, "reg": 1e-3}


def _drawn(rng: np.random.Generator, lpq: float) -> dict[str, Any]:
    """A random draw from the search space of xrfm's authors in pytabkit; `lpq` is the share of that kernel."""
    exponent = float(rng.uniform(0.7, 1.4))
    return {
        "kernel": str(rng.choice(["l2", "lpq"], p=[1 - lpq, lpq])),
        "bandwidth": float(np.exp(rng.uniform(np.log(0.5), np.log(200.0)))),
        "exponent": exponent,
        "norm_p": exponent + (2 - exponent) * float(rng.uniform(0.0, 0.8)),
        "diag": bool(rng.integers(2)),
        "reg": float(np.exp(rng.uniform(np.log(1e-6), np.log(10.0)))),
    }


def _xrfm_fit(X: Any, y: Any, mine: Any, judges: Any, chosen: dict[str, Any], seed: int, leaf_rows: int) -> Any:
    """Validation error of one candidate, infinite if training fails, and the model."""
    from xrfm import xRFM

    class Machine(xRFM):
        """xRFM whose splits use a model of as many rows as a leaf has, instead of 50,000."""

        def _get_agop_on_subset(self, X: Any, y: Any, subset_size: int = leaf_rows, **more: Any) -> Any:
            return super()._get_agop_on_subset(X, y, subset_size, **more)

    model = {key: value for key, value in chosen.items() if key != "reg"} | {"bandwidth_mode": "constant"}
    fit = {"reg": chosen["reg"], "iters": 5, "early_stop_rfm": True, "M_batch_size": 1000, "verbose": False}
    machine = Machine(
        {"model": model, "fit": fit}, max_leaf_size=leaf_rows, device="cpu", tuning_metric="mse", random_state=seed,
        overlap_fraction=0.1, verbose=False,
    )  # fmt: skip
    (A, b), (C, d) = ((X[some].astype(np.float32), y[some].astype(np.float32)[:, None]) for some in (mine, judges))
    machine.fit(A, b, C, d)
    mse = float(np.mean((np.asarray(machine.predict(C)).ravel() - d.ravel()) ** 2))
    return mse if np.isfinite(mse) else np.inf, machine


def _now() -> tuple[float, float]:
    """Wall-clock seconds, and processor seconds of all threads of this process."""
    return time.perf_counter(), time.process_time()


def _predicted(predict: Any, T: Any, begun: tuple[float, float], **chosen: Any) -> tuple[NDArray[np.float64], Facts]:
    fitted = _now()
    predicted = np.asarray(predict(T), np.float64)
    return predicted, {
        "fit_seconds": fitted[0] - begun[0],
        "fit_cpu_seconds": fitted[1] - begun[1],
        "predict_seconds": _now()[0] - fitted[0],
        "chosen": chosen,
    }


PEERS: dict[str, tuple[str, Model]] = {  # name: (required package, model)
    "lightgbm": ("lightgbm", lightgbm),
    "hist_gradient_boosting": ("sklearn", hist_gradient_boosting),
    "xrfm": ("xrfm", xrfm),
    "xrfm_whole": ("xrfm", xrfm_whole),
}
