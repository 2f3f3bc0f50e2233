"""Choice of settings before training one model of all rows, in parts made for the search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.rows import nbytes
from cacore.data.stored import in_memory
from cacore.io.checkpoint import Checkpoint
from cacore.machine import memory
from casvm.fit import SVMFit
from casvm.model.model import SVMModel
from casvm.options import SVMMethod, SVMOptions
from casvm.search import choose, regression
from casvm.search.pieces import ROWS, WHOLE
from casvm.tasks.classes import ClassesTask
from casvm.tasks.values import ValuesTask
from partition.divide import divide, hand_out
from partition.redistribute import Parts, assign_owners

PARTITIONER = "kbalance"  # makes the parts for the search
_COPIES = "storing a rank's rows and two copies for the search"

Trainer = Callable[[SVMMethod, Dataset, SVMOptions, Communicator], SVMFit[SVMModel]]


def settle_apart(
    train: Trainer, method: SVMMethod, rows: Dataset, options: SVMOptions, comm: Communicator
) -> SVMFit[SVMModel]:  # fmt: skip
    """Search for C and gamma in parts of about 2,000 rows, or on all rows if they are few, then train; collective.

    Used by methods whose training ends in one model of all rows, and by methods that learn a metric. Arguments and
    result are those of the trainer.

    Raises
    ------
    InputError
        On all ranks: errors of the trainer or the search, or insufficient memory for two copies of a rank's rows.

    Notes
    -----
    A copy of each row is sent once, to parts made by K-balance: neighbours stay together, so that the parts suggest the
    same gamma as all rows. The search costs what :func:`casvm.search.choose.search` does.
    """
    own = nbytes(rows.X)
    with comm.agreed():
        remedy = "use more ranks, or give one value of C and of gamma"
        memory.require(3 * own, options.memory_limit, _COPIES, remedy)
    copy = Dataset(in_memory(rows.X).copy(), rows.target(), rows.n, weights=rows.weights)
    looking = replace(
        options, metric="none", ratio=False, checkpoint=_within(options, "search"), partitions=None,
        memory_limit=options.memory_limit - own,
    )  # fmt: skip
    task = ClassesTask.prepared(replace(method, whole=False, partitioner=PARTITIONER), copy, looking, comm)
    _, n = comm.offset(len(task.rows))
    parts, P = _parts(task.rows.give(), n, options.seed, comm)
    found = choose.search(parts, task.classes, P, looking, comm)
    del parts
    fitted = train(method, rows, replace(options.with_setting(found), checkpoint=_within(options, "trained")), comm)
    fitted.search = found
    return fitted


def settle_values(task: ValuesTask, comm: Communicator) -> None:
    """Choose C, epsilon and gamma for a regression of all rows, in parts made from a copy of them; collective."""
    rows, options = task.rows, task.options
    with comm.agreed():
        remedy = "use more ranks, or give one value of C, epsilon and gamma"
        memory.require(3 * nbytes(rows.X), options.memory_limit, _COPIES, remedy)
    parts, P = _parts(Samples(in_memory(rows.X).copy(), dict(rows.columns)), task.n, options.seed, comm)
    found = regression.search(parts, task.n, P, task.unit, options, comm)
    del parts
    task.settle(found, rows.X, comm)


def _parts(rows: Samples, n: int, seed: int, comm: Communicator) -> tuple[Parts, int]:
    """Divide the n rows of all ranks into parts of about 2,000, or one part if n is small; and P. Collective."""
    with comm.phase("partition"):
        P = -(-n // ROWS) if n > WHOLE else 1
        division = divide(PARTITIONER, P, rows.X, comm, seed)
        owners = assign_owners(division.sizes, comm.size, lambda m: m**2)
        return hand_out(rows, division, owners, seed, comm), P


def _within(options: SVMOptions, name: str) -> Checkpoint | None:
    """A checkpoint in a subfolder of this name: search and training have one each."""
    return None if options.checkpoint is None else options.checkpoint.within(name)
