"""What classifiers do first: labels, bounds of alpha; and regressions, too: checkpoints, rows, gamma as a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacore import __version__
from cacore.comm import Communicator
from cacore.data.dataset import Dataset, Samples
from cacore.data.labels import all_classes, class_factors, require_classes
from cacore.data.rows import check_alike, check_range, in_blocks, is_sparse
from cacore.data.standardize import Standardizer
from cacore.io.fingerprints import fingerprint
from cacore.kernels import Kernel
from cacore.svm.problem import numeric_gamma
from casvm.model.model import SVMModel
from casvm.model.part import PartSVM
from casvm.options import Method, Options

if TYPE_CHECKING:
    from casvm import value_options


@dataclass
class Prepared:
    """What every method begins with.

    Attributes
    ----------
    rows : Samples
        This rank's, standardised if that was asked for, with the columns "code" of the class, bound "C" of alpha and
        global number "row". Where C is chosen later, the bound for C = 1.
    classes : ndarray, shape (k,)
    kernel : Kernel
    standardizer : Standardizer or None
    P : int
        Parts.
    nonzeros : float
        Of a row, on average over all ranks.
    """

    rows: Samples
    classes: NDArray[Any]
    kernel: Kernel
    standardizer: Standardizer | None
    P: int
    nonzeros: float

    def model(self, method: Method, options: Options, **more: Any) -> SVMModel:
        """A model of such rows; `more` says where its parts are, and what they are."""
        X = self.rows.X  # also where the rows are given away
        return SVMModel(
            method=method.name, classes=self.classes, kernel=self.kernel, C=options.C, standardizer=self.standardizer,
            dtype=str(X.dtype), source={"sparse": is_sparse(X)}, **more,
        )  # fmt: skip

    def model_in_pieces(self, method: Method, options: Options, piece: PartSVM, comm: Communicator) -> SVMModel:
        """The one model of which every rank has a piece; collective."""
        with comm.phase("predict"):
            support = comm.allgather(np.array([len(piece.rows)]))
        return self.model(
            method, options, route="sum", centers=np.zeros((0, self.rows.X.shape[1])), sizes=support,
            owners=np.arange(comm.size), parts={comm.rank: piece},
        )  # fmt: skip


def prepare(method: Method, train: Dataset, options: Options, comm: Communicator) -> Prepared:
    """Check what is given, on all ranks alike, and take the rows; collective.

    Raises
    ------
    InputError
        On all ranks: options that make no sense, one class only, fewer parts than ranks, a checkpoint of another run.
    """
    with comm.agreed():
        P = options.checked(method, comm.size)
    with comm.phase("read"):
        check_alike(train.X, comm)
        comm.require_equal({"sample_weight given (1) or not (0)": int(train.weights is not None)})
        y, weights = train.target(), train.row_weights()
        classes = all_classes(y[weights > 0], comm)
        with comm.agreed():
            require_classes(classes)
        columns = _columns(y, weights, classes, options, comm)
        open_checkpoint(method, train, columns["C"], P, options, comm, class_weight=repr(options.class_weight))
        rows, given = present(Samples(train.give(), columns), train.weights)
        standardizer, kernel = ready(rows, given, options, comm)
        with comm.uncounted():
            count = rows.X.nnz if is_sparse(rows.X) else sum(np.count_nonzero(block) for block in in_blocks(rows.X))
            total, n = comm.allreduce(np.array([count, len(rows)], np.int64)).tolist()
    return Prepared(rows, classes, kernel, standardizer, P, total / n)


def _columns(
    y: NDArray[Any], weights: NDArray[np.float64], classes: NDArray[Any], options: Options, comm: Communicator
) -> dict[str, NDArray[Any]]:
    """What each row carries: the code of its class, its bound of alpha, its global number."""
    first, _ = comm.offset(len(y))
    codes = np.searchsorted(classes, y).astype(np.int64)
    codes[codes == len(classes)] = 0  # a label of rows of weight 0 alone
    factor = class_factors(options.class_weight, codes, weights, len(classes), comm)
    C = 1.0 if options.searches else options.C  # chosen later
    return {"code": codes, "C": C * factor[codes] * weights, "row": np.arange(first, first + len(codes))}


def open_checkpoint(
    method: Method | value_options.Method, train: Dataset, weights: NDArray[np.float64], P: int,
    options: Options | value_options.Options, comm: Communicator, **more: Any,
) -> None:  # fmt: skip
    """Take up the run that is kept in the checkpoint's directory, if there is one, or begin it."""
    if options.checkpoint is None:
        return
    apart = ("progress", "checkpoint", "memory_limit", "cache_gib", "initial", "out_of_core", "scratch")
    facts = {name: value for name, value in vars(options).items() if name not in apart}
    facts |= {
        "method": method.name, "ranks": comm.size, "package": __version__, "features": train.X.shape[1],
        "dtype": str(train.X.dtype), "partitions": P, **more,
        "training rows": fingerprint(train.X, train.target(), weights, comm),
    }  # fmt: skip
    options.checkpoint.open(facts, comm)


def present(rows: Samples, weights: NDArray[np.float64] | None) -> tuple[Samples, NDArray[np.float64] | None]:
    """Without the rows of weight 0, which count as absent, where there are weights."""
    if weights is None:
        return rows, None
    kept = np.flatnonzero(weights > 0)
    return rows.take(kept), weights[kept]


def ready(
    rows: Samples, weights: NDArray[np.float64] | None, options: Options | value_options.Options, comm: Communicator
) -> tuple[Standardizer | None, Kernel]:
    """Standardise these rows, if that is asked for, and check them; gamma as a number, 1 if it is chosen later."""
    standardizer = None
    if options.standardize:
        standardizer = Standardizer.fit(rows.X, comm, weights)
        rows.X = standardizer.apply(rows.X)
    with comm.uncounted(), comm.agreed():
        check_range(rows.X, "the training rows")
    gamma = 1.0 if options.searches else numeric_gamma(rows.X, options.gamma, comm, options.kernel)
    return standardizer, options.kernel_with(gamma)
