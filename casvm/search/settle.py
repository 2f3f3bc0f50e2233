"""C and gamma before training: chosen in the method's own parts, or in parts that are made for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.data.rows import nbytes
from cacore.io.checkpoint import Checkpoint
from cacore.kernels import Kernel
from cacore.machine import memory
from cacore.svm.problem import numeric_gamma
from cacore.tuning.results import Results
from casvm.methods.prepare import Prepared, prepare
from casvm.options import Fit, Method, Options
from casvm.search.choose import search
from casvm.search.pieces import ROWS, WHOLE
from partition.divide import divide, hand_out
from partition.redistribute import Parts, assign_owners

PARTITIONER = "kbalance"  # of parts that are made for the search


def settle(
    parts: Parts, prepared: Prepared, options: Options, comm: Communicator
) -> tuple[Options, Kernel | dict[int, Kernel], Results | None]:
    """Choose C and gamma in these parts, and bound the rows' alpha by the C of their part; collective.

    Parameters
    ----------
    parts : Parts
        This rank's, whose column "C" is multiplied by the C that is chosen.
    prepared : Prepared
        Its kernel is replaced by the one chosen; with `per_part` by that of the part whose C is in the middle.
    options : Options
    comm : Communicator

    Returns
    -------
    options : Options
        With the setting that was chosen; where every part has its own, with the C in the middle of them.
    kernel : Kernel, or dict of int to Kernel
        Of all parts, or of each.
    results : Results or None
        See :func:`casvm.search.choose.search`.

    Notes
    -----
    What :func:`casvm.search.choose.search` costs, and for gamma = "scale" an Allreduce of 3 numbers.
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
    # What the model says where one number is asked for: those of the part in the middle.
    middle = int(np.argsort(Cs, kind="stable")[len(Cs) // 2])
    prepared.kernel = kernels[middle]
    return replace(options, C=float(Cs[middle]), gamma="scale", cv=None), kernels, found


def settle_apart(
    train: Callable[[Method, Dataset, Options, Communicator], Fit], method: Method, rows: Dataset, options: Options,
    comm: Communicator,
) -> Fit:  # fmt: skip
    """Train at the setting that a search in parts of about 2,000 rows, or of all of few rows, has found; collective.

    For methods whose training ends in one model of all rows, and for those that learn a metric. Arguments and result
    are those of the trainer.

    Raises
    ------
    InputError
        On all ranks: as of the trainer and the search; memory that does not suffice for two copies of a rank's rows.

    Notes
    -----
    The rows travel once, in a copy, to parts that K-balance makes, so that kernels see as many near rows there as in
    all rows; then what :func:`casvm.search.choose.search` costs.
    """
    own = nbytes(rows.X)
    with comm.agreed():
        remedy = "use more ranks, or give one value of C and of gamma"
        memory.require(3 * own, options.memory_limit, "a rank's rows, and two copies of them in the search", remedy)
    copy = Dataset(rows.X.copy(), rows.target(), rows.n, weights=rows.weights)
    looking = replace(
        options, metric="none", ratio=False, checkpoint=_within(options, "search"), partitions=None,
        memory_limit=options.memory_limit - own,
    )  # fmt: skip
    prepared = prepare(replace(method, whole=False, partitioner=PARTITIONER), copy, looking, comm)
    _, n = comm.offset(len(prepared.rows))
    with comm.phase("partition"):
        taken = prepared.rows.give()
        P = -(-n // ROWS) if n > WHOLE else 1
        division = divide(PARTITIONER, P, taken.X, comm, options.seed)
        parts = hand_out(taken, division, assign_owners(division.sizes, comm.size, lambda m: m**2), options.seed, comm)
    del taken
    found = search(parts, prepared.classes, P, looking, comm)
    del parts
    fitted = train(method, rows, replace(options.with_setting(found), checkpoint=_within(options, "trained")), comm)
    fitted.search = found
    return fitted


def _within(options: Options, name: str) -> Checkpoint | None:
    """The checkpoint's folder of this name; its two runs are each their own."""
    return None if options.checkpoint is None else options.checkpoint.within(name)
