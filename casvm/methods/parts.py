"""Training in parts: see :func:`partition.in_parts.in_parts`, the frame of the methods that send nothing."""

from __future__ import annotations

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from casvm.fit import SVMFit
from casvm.methods import dissmo
from casvm.model.model import SVMModel
from casvm.model.svr import SVRModel
from casvm.options import SVMMethod, SVMOptions
from casvm.tasks.classes import ClassesTask
from casvm.tasks.values import ValuesTask
from casvm.value_options import ValueMethod, ValueOptions
from partition.in_parts import in_parts


def fit(method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> SVMFit[SVMModel]:
    """Train one classifier per part (Algorithm 5 and its clustered relatives); a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, one class only, more parts than rows, memory that does not
        suffice, a checkpoint of another run.

    Notes
    -----
    Several values of C or gamma cost what :func:`casvm.search.choose.search` does, first. Then a
    part costs what :func:`casvm.solver.smo.solve` does; this rank's rows, and the kernel caches. Training
    sends nothing; partitioning sends nothing without a partitioner.
    """
    return in_parts(ClassesTask.prepared(method, train, options, comm), comm)


def fit_values(method: ValueMethod, train: Dataset, options: ValueOptions, comm: Communicator) -> SVMFit[SVRModel]:
    """Train a regression or one class, in parts or exactly; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, rows that do not fit together or cannot be used, more parts than rows,
        memory that does not suffice, a checkpoint of another run.

    Notes
    -----
    Exactly: see :func:`casvm.solver.distributed.solve`, and on one rank without a working set
    :func:`casvm.solver.smo.solve`; the model stays in pieces. A part costs what the latter does; this rank's rows, and
    the kernel caches. Training parts sends nothing; partitioning sends nothing for "random".
    """
    task = ValuesTask.prepared(method, train, options, comm)
    return dissmo.of_values(task, comm) if options.exact else in_parts(task, comm)
