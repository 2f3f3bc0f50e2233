"""Training in parts: see :func:`partition.in_parts.in_parts`, the common procedure of methods that send nothing."""

from __future__ import annotations

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from casvm.fit import SVMFit
from casvm.methods import dissmo
from casvm.model.model import SVMModel
from casvm.model.svr import SVRModel
from casvm.options import SVMMethod, SVMOptions
from casvm.tasks.classes import ClassesTask
from casvm.tasks.quantiles import QuantilesTask
from casvm.tasks.values import ValuesTask
from casvm.value_options import ValueMethod, ValueOptions
from partition.in_parts import in_parts


def fit(method: SVMMethod, train: Dataset, options: SVMOptions, comm: Communicator) -> SVMFit[SVMModel]:
    """Train one classifier per part (Algorithm 5 and its clustered relatives); a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: invalid options, a single class, more parts than rows, insufficient memory, or a checkpoint of
        another run.

    Notes
    -----
    If there are several values of C or gamma, :func:`casvm.search.choose.search` comes first. Each part then costs
    what :func:`casvm.solver.smo.solve` does. Memory holds this rank's rows and the kernel caches. Training sends
    nothing; partitioning sends nothing if the method has no partitioner.
    """
    return in_parts(ClassesTask.prepared(method, train, options, comm), comm)


def fit_values(method: ValueMethod, train: Dataset, options: ValueOptions, comm: Communicator) -> SVMFit[SVRModel]:
    """Train a regression, quantiles or one class, in parts or exactly; a collective call.

    Arguments and result are those of :meth:`cacore.learn.method.Method.__call__`.

    Raises
    ------
    InputError
        On all ranks: invalid options or rows, more parts than rows, insufficient memory, or a checkpoint of another
        run.

    Notes
    -----
    With `exact`, the cost is that of :func:`casvm.solver.distributed.solve`, or of :func:`casvm.solver.smo.solve` on
    one rank without a working set, and the model stays in pieces. Otherwise each part costs what
    :func:`casvm.solver.smo.solve` does. Memory holds this rank's rows and the kernel caches. Training in parts sends
    nothing; partitioning sends nothing for "random".
    """
    kind = QuantilesTask if options.quantile is not None else ValuesTask
    task = kind.prepared(method, train, options, comm)
    return dissmo.of_values(task, comm) if options.exact else in_parts(task, comm)
