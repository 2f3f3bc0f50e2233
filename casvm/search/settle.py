"""C and gamma before training: chosen in the method's own parts, or in parts that are made for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.svm.problem import numeric_gamma
from cacore.tuning.results import Results
from casvm.methods.prepare import Prepared, prepare
from casvm.options import Fit, Method, Options
from casvm.search.choose import ROWS, search
from partition.divide import divide, hand_out
from partition.redistribute import Parts, assign_owners

PARTITIONER = "kbalance"  # of parts that are made for the search


def settle(
    parts: Parts, prepared: Prepared, options: Options, comm: Communicator
) -> tuple[Options, Kernel | dict[int, Kernel], Results | None]:
    """Choose C and gamma in these parts, and bound the rows' alpha by the C of their part; collective.

    Returns
    -------
    options : Options
        With the setting that was chosen; with the one that suits most data where every part has its own.
    kernel : Kernel, or dict of int to Kernel
        Of all parts, or of each.
    results : Results or None
        See :func:`casvm.search.choose.search`.
    """
    found = search(parts, prepared.classes, prepared.P, options, comm)
    if found is None or not options.per_part:
        settled = options.with_setting(found)
        kernel = prepared.kernel = settled.kernel_with(numeric_gamma(parts.X, settled.gamma, comm, settled.kernel))
        parts.columns["C"] = parts["C"] * settled.C
        return settled, kernel, found
    Cs, gammas = found.chosen["C"], found.chosen.get("gamma")
    kernels = {
        p: prepared.kernel if gammas is None else replace(prepared.kernel, gamma=float(gammas[p]))
        for p in range(prepared.P)
    }
    parts.columns["C"] = parts["C"] * np.repeat(Cs[parts.parts], np.diff(parts.bounds))
    # What the model says where one number is asked for: that of the middle.
    prepared.kernel = kernels[int(np.argsort(Cs, kind="stable")[len(Cs) // 2])]
    return replace(options, C=float(np.median(Cs)), gamma="scale", cv=None), kernels, found


def settle_apart(
    train: Callable[[Method, Dataset, Options, Communicator], Fit], method: Method, rows: Dataset, options: Options,
    comm: Communicator,
) -> Fit:  # fmt: skip
    """Train at the setting that a search in parts of about 2,000 rows has found; collective.

    For methods whose training ends in one model of all rows, and for those that learn a metric. Arguments and result
    are those of the trainer.

    Notes
    -----
    The rows travel once, in a copy, to parts that K-balance makes, so that kernels see as many near rows there as in
    all rows; then what :func:`casvm.search.choose.search` costs.
    """
    copy = Dataset(rows.X.copy(), rows.target(), rows.n, weights=rows.weights)
    looking = replace(options, metric="none", ratio=False, checkpoint=_within(options, "search"), partitions=None)
    prepared = prepare(replace(method, whole=False, partitioner=PARTITIONER), copy, looking, comm)
    _, n = comm.offset(len(prepared.rows))
    with comm.phase("partition"):
        taken = prepared.rows.give()
        P = max(1, -(-n // ROWS))
        division = divide(PARTITIONER, P, taken.X, comm, options.seed)
        parts = hand_out(taken, division, assign_owners(division.sizes, comm.size, lambda m: m**2), options.seed, comm)
    found = search(parts, prepared.classes, P, looking, comm)
    del parts, taken
    fitted = train(method, rows, replace(options.with_setting(found), checkpoint=_within(options, "trained")), comm)
    fitted.search = found
    return fitted


def _within(options: Options, name: str) -> Checkpoint | None:
    """The checkpoint's folder of this name; its two runs are each their own."""
    kept = options.checkpoint
    return None if kept is None else type(kept)(Path(kept.path) / name)
