"""Export and import of models in LIBSVM's text format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.rows import AnyRows, Rows, is_sparse
from cacore.data.stored import in_memory
from cacore.errors import InputError
from cacore.files import check_writable, replacing
from cacore.io.stream import REMEDY
from cacore.kernels import Kernel
from cacore.kernels.registry import KINDS
from cacore.machine import memory
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import pairs_of
from casvm.model.libsvm_text import Header, read
from casvm.model.model import SVMModel
from casvm.model.part import PartSVM
from casvm.model.quantiles import QuantileModel
from casvm.model.svr import PartSVR, SVRModel

NU_SVC = "nusvc"  # method name of models trained with nu


def export_libsvm(model: SVMModel | SVRModel, path: str | Path) -> list[Path]:
    """Write this process's parts as model files that LIBSVM's ``svm-predict`` can read.

    Parameters
    ----------
    model : SVMModel or SVRModel
        Its kernel must exist in LIBSVM, and a classifier's labels must be whole numbers. If the model standardises
        features, rows must be standardised before LIBSVM predicts them.
    path : path
        The file of a single part. For several parts, the number of the part is added before the suffix.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    InputError
        Labels, a kernel or probabilities that LIBSVM does not support, a precomputed kernel, a model in pieces on
        several ranks, or a path that cannot be written.
    """
    path = Path(path)
    if isinstance(model, QuantileModel):
        raise InputError("LIBSVM's format has no quantiles: save the model instead")
    check_writable(path)
    if model.kernel is None:
        raise InputError("a model of a precomputed kernel has no support vectors to export")
    if model.standardizer is not None and model.standardizer.root is not None:
        raise InputError("LIBSVM's format cannot store a metric: a model that learned one cannot be exported")
    if model.route == "sum" and len(model.sizes) > 1:
        raise InputError("several ranks hold pieces of the model: save it, load it on one rank, and export that")
    if model.kernel.declared.libsvm is None:
        raise InputError(f"LIBSVM has no {model.kernel.kind} kernel")
    if isinstance(model, SVMModel) and model.calibrator is not None and model.calibrator.form != "sigmoid":
        raise InputError(f"LIBSVM's format has no {model.calibrator.form} probabilities; train with sigmoid")
    labels = _labels(model.classes) if isinstance(model, SVMModel) else np.zeros(0, np.int64)
    written = []
    for number in model.parts:
        one = path if len(model.sizes) == 1 else path.with_name(f"{path.stem}.{number:06d}{path.suffix}")
        if isinstance(model, SVMModel):
            part = model.parts[number]
            lines, coef, X = _of_classes(model, number, labels[part.classes]), part.coef, part.X
        else:
            values = model.parts[number]
            lines, coef, X = _of_values(model, number), values.beta[None], values.X
        _write(one, lines, coef, X)
        written.append(one)
    return written


def _labels(classes: NDArray[np.generic]) -> NDArray[np.int64]:
    try:
        labels = classes.astype(np.int64)
        whole = bool((labels == classes).all())
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise InputError(f"LIBSVM's labels are whole numbers; these are {', '.join(map(str, classes[:3]))}, ...")
    return labels


def _write(path: Path, header: Iterable[str], coef: NDArray[np.float64], rows: AnyRows) -> None:
    with replacing(path) as temporary, temporary.open("w") as file:
        file.writelines(f"{line}\n" for line in header)
        X = sp.csr_matrix(in_memory(rows))
        X.sort_indices()
        for i in range(X.shape[0]):
            stretch = slice(X.indptr[i], X.indptr[i + 1])
            pairs = zip(X.indices[stretch], X.data[stretch], strict=True)
            line = [f"{c:.17g}" for c in coef[:, i]] + [f"{j + 1}:{float(x):.17g}" for j, x in pairs]
            file.write(" ".join(line) + " \n")


def _kernel(kernel: Kernel | None) -> list[str]:
    assert kernel is not None
    numbers = (("degree", str(kernel.degree)), ("gamma", f"{kernel.gamma:.17g}"), ("coef0", f"{kernel.coef0:.17g}"))
    return [
        f"kernel_type {kernel.declared.libsvm}",
        *(f"{name} {value}" for name, value in numbers if kernel.has(name)),
    ]


def _of_classes(model: SVMModel, number: int, labels: NDArray[np.int64]) -> list[str]:
    part = model.parts[number]
    return [
        f"svm_type {'nu_svc' if model.method == NU_SVC else 'c_svc'}",
        *_kernel(model.kernel_of(number)),
        f"nr_class {len(labels)}",
        f"total_sv {len(part.rows)}",
        " ".join(["rho", *(f"{-b:.17g}" for b in part.b)]),
        " ".join(["label", *map(str, labels)]),
        *_sigmoids(model, part),
        " ".join(["nr_sv", *map(str, part.n_support)]),
        "SV",
    ]


def _sigmoids(model: SVMModel, part: PartSVM) -> list[str]:
    known = model.calibrator
    if known is None or known.A is None or known.B is None or len(part.classes) < 2:
        return []
    pairs = pairs_of(part.classes, len(model.classes))
    A, B = known.A[pairs], known.B[pairs]
    if part.slopes is not None and part.shifts is not None:
        A, B = part.slopes, part.shifts
    lines = (("probA", A), ("probB", B))
    return [" ".join([name, *(f"{value:.17g}" for value in values)]) for name, values in lines]


def _of_values(model: SVRModel, number: int) -> list[str]:
    part = model.parts[number]
    return [
        f"svm_type {model.svm_type}", *_kernel(model.kernel), "nr_class 2", f"total_sv {len(part.rows)}",
        f"rho {-part.b[0]:.17g}", "SV",
    ]  # fmt: skip


def import_libsvm(path: str | Path, n_features: int | None = None) -> SVMModel | SVRModel:
    """Read a model file that LIBSVM wrote, of any type but a precomputed kernel.

    Parameters
    ----------
    path : path
        May be compressed by gzip, bzip2 or xz.
    n_features : int, optional
        Number of features of the rows to predict; by default the largest index of a support vector.

    Returns
    -------
    SVMModel or SVRModel
        A model of one part. The file lacks the numbers of the training rows and the parameters of a regression, so
        these are unknown; C of a classifier is set to the largest coefficient. Only classifiers keep probabilities.

    Raises
    ------
    InputError
        The file differs from what LIBSVM writes; the message names the file and the line.

    Notes
    -----
    Reading takes about a microsecond per word. Ties between votes go to the lowest label, but in LIBSVM to the first
    label in the file.
    """
    path, limit = Path(path), memory.limit_per_rank(Communicator())
    header, coef, X = read(path, limit)
    if n_features is not None and n_features < X.shape[1]:
        raise InputError(f"{path}: it has {X.shape[1]:,} features, but n_features is {n_features:,}")
    d = n_features or X.shape[1]
    dense = 0 if is_sparse(X) else X.shape[0]
    memory.require(8 * d * (2 + dense), limit, f"{path}: a model of {d:,} features", REMEDY)
    X = _widened(X, d)
    kind = next(name for name, kernel in KINDS.items() if kernel.libsvm == header.kernel_type)
    try:
        kernel = Kernel(kind, header.gamma, header.degree, header.coef0)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    alone: dict[str, Any] = {
        "route": "nearest", "kernel": kernel, "centers": np.zeros((1, d)), "sizes": np.array([header.total]),
        "owners": np.zeros(1, np.int64), "standardizer": None, "dtype": "float64", "source": {"base": 1},
    }  # fmt: skip
    if not len(header.labels):
        part = PartSVR(X, np.arange(header.total), coef[0], -header.rho)
        return SVRModel(method="libsvm", svm_type=header.svm_type, params={}, parts={0: part}, **alone)
    if len(header.labels) == 1:
        raise InputError(f"{path}: the model has only one class, so there is nothing to predict")
    method = NU_SVC if header.svm_type == "nu_svc" else "libsvm"
    largest = float(np.abs(coef).max(initial=0.0)) or 1.0
    return SVMModel(
        method=method, classes=np.sort(header.labels), C=largest, parts={0: _ascending(header, coef, X)},
        calibrator=_calibrator(header), **alone,
    )  # fmt: skip


def _widened(X: Rows, d: int) -> Rows:
    if X.shape[1] == d:
        return X
    if not is_sparse(X):
        return np.pad(X, ((0, 0), (0, d - X.shape[1])))
    wide = X.copy()
    wide.resize((X.shape[0], d))
    return wide


def _calibrator(header: Header) -> Calibrator | None:
    """Sigmoids of the pairs of ascending classes; swapping a pair negates its decision f, and thus B."""
    if header.slopes is None or header.offsets is None:
        return None
    k, place = len(header.labels), np.argsort(np.argsort(header.labels))
    first, second = (place[side] for side in np.triu_indices(k, 1))
    low, high = np.minimum(first, second), np.maximum(first, second)
    A, B = np.empty((2, len(first)))
    pair = low * (2 * k - low - 1) // 2 + high - low - 1
    A[pair], B[pair] = header.slopes, np.where(first < second, header.offsets, -header.offsets)
    return Calibrator("sigmoid", 0, A, B)


def _ascending(header: Header, coef: NDArray[np.float64], X: Rows) -> PartSVM:
    """The part with ascending classes; in the file, classes are in the order of their first rows."""
    k, stops = len(header.labels), np.append(0, np.cumsum(header.n_support))
    order = np.argsort(header.labels)
    place = np.argsort(order)
    ordered, b = np.zeros_like(coef), np.zeros(k * (k - 1) // 2)
    pair = 0
    for i in range(k):
        for j in range(i + 1, k):
            first, second = place[i], place[j]
            sign = 1.0 if first < second else -1.0
            for old, new, other_old, other_new in ((i, first, j, second), (j, second, i, first)):
                rows = slice(stops[old], stops[old + 1])
                ordered[other_new - (other_new > new), rows] = sign * coef[other_old - (other_old > old), rows]
            low, high = min(first, second), max(first, second)
            b[low * (2 * k - low - 1) // 2 + high - low - 1] = -sign * header.rho[pair]
            pair += 1
    sorted_rows = np.concatenate([np.arange(stops[old], stops[old + 1]) for old in order])
    return PartSVM(
        np.arange(k), X[sorted_rows], np.arange(header.total), np.ascontiguousarray(ordered[:, sorted_rows]), b,
        header.n_support[order],
    )  # fmt: skip
