"""Model files in LIBSVM's text format: export, import, and the parser with its checks of every line.

Files are not trusted: nothing is allocated from the counts in the header; rows are stored as they are read, and
counted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.labels import MOST_CLASSES
from cacore.data.rows import AnyRows, Rows, csr, in_memory, is_sparse
from cacore.errors import InputError
from cacore.files import check_writable, replacing
from cacore.io.stream import DAMAGE, REMEDY, Lines, check_regular
from cacore.io.words import short
from cacore.kernels import Kernel
from cacore.kernels.registry import KINDS
from cacore.machine import memory
from cacore.probability.calibrator import Calibrator
from cacore.probability.left_out import pairs_of
from casvm.model.part_svm import PartSVM
from casvm.model.quantile_model import QuantileModel
from casvm.model.svm_model import SVMModel
from casvm.model.svr_model import PartSVR, SVRModel

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

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import SMOSVC, export_libsvm
    >>> model = SMOSVC(C=10, gamma=1.0).fit(*make_moons(200, noise=0.2, random_state=0))
    >>> [path.name for path in export_libsvm(model.model_, "moons.model")]
    ['moons.model']
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
        part_path = path if len(model.sizes) == 1 else path.with_name(f"{path.stem}.{number:06d}{path.suffix}")
        if isinstance(model, SVMModel):
            part = model.parts[number]
            lines, coef, X = _of_classes(model, number, labels[part.classes]), part.coef, part.X
        else:
            values = model.parts[number]
            lines, coef, X = _of_values(model, number), values.beta[None], values.X
        _write(part_path, lines, coef, X)
        written.append(part_path)
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
    calibrator = model.calibrator
    if calibrator is None or calibrator.A is None or calibrator.B is None or len(part.classes) < 2:
        return []
    pairs = pairs_of(part.classes, len(model.classes))
    A, B = calibrator.A[pairs], calibrator.B[pairs]
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

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from casvm import SMOSVC, export_libsvm, import_libsvm
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> model = SMOSVC(C=10, gamma=1.0).fit(X, y)
    >>> (path,) = export_libsvm(model.model_, "moons.libsvm")
    >>> bool((import_libsvm(path).predict(X) == model.predict(X)).all())
    True
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


CLASSIFIERS, VALUED = ("c_svc", "nu_svc"), SVRModel.types
KERNELS = ("linear", "polynomial", "rbf", "sigmoid")
# Names of the header's lines, and the number of words that follow: -1 for any number.
_WORDS = {
    "svm_type": 1, "kernel_type": 1, "degree": 1, "gamma": 1, "coef0": 1, "nr_class": 1, "total_sv": 1, "rho": -1,
    "label": -1, "probA": -1, "probB": -1, "prob_density_marks": -1, "nr_sv": -1,
}  # fmt: skip
_NEEDED = ("svm_type", "kernel_type", "nr_class", "total_sv", "rho")
_LARGEST = 2**31 - 1
_DENSE_FROM = 1 / 3  # share of nonzeros from which the support vectors become a dense array


@dataclass(frozen=True)
class Header:
    """The lines above the support vectors.

    Attributes
    ----------
    svm_type, kernel_type : str
    degree : int
    gamma, coef0 : float
    rho : ndarray of float64, shape (k (k - 1) / 2,), or (1,) for regression and one class
    labels, n_support : ndarray of int64, shape (k,)
        In the file's order; for classifiers only.
    total : int
        Number of support vectors.
    slopes, offsets : ndarray of float64, shape (k (k - 1) / 2,), or None
        probA and probB, for classifiers with probabilities.
    """

    svm_type: str
    kernel_type: str
    degree: int
    gamma: float
    coef0: float
    rho: NDArray[np.float64]
    labels: NDArray[np.int64]
    n_support: NDArray[np.int64]
    total: int
    slopes: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64] | None = None

    @property
    def coefficients(self) -> int:
        """Number of coefficients per support vector: k - 1."""
        return max(len(self.labels) - 1, 1)


class _Reader:
    """Reader of the file's words that knows the current line number."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self.lines = Lines(path, limit)
        self._each = iter(self.lines)

    def words(self) -> Iterator[list[str]]:
        """Words of each line that is not empty."""
        for line in self._each:
            if words := line.split():
                yield words

    def refuse(self, what: str) -> InputError:
        """The error, with the file and the line number."""
        return InputError(f"{self.path}: line {self.lines.number}: {what}")

    def whole(self, word: str, name: str, least: int, greatest: int = _LARGEST) -> int:
        """Parse a whole number within these limits."""
        value = int(word) if len(word) < 20 and word.lstrip("+-").isascii() and word.lstrip("+-").isdigit() else None
        if value is None or not least <= value <= greatest:
            raise self.refuse(f"{name} {short(word)!r} is not a whole number from {least:,} to {greatest:,}")
        return value

    def real(self, word: str, name: str) -> float:
        """Parse a finite number."""
        try:
            value = float(word) if "_" not in word else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.refuse(f"{name} {short(word)!r} is not a finite number")
        return value


def read(path: Path, limit: int) -> tuple[Header, NDArray[np.float64], Rows]:
    """Header, coefficients, shape (coefficients, total), and support vectors, shape (total, largest index).

    Parameters
    ----------
    path : Path
        May be compressed.
    limit : int
        Number of bytes that may be allocated.

    Raises
    ------
    InputError
        The file cannot be read; the message names the file, and the line or what is missing.
    """
    check_regular(path)
    reader = _Reader(path, limit)
    try:
        header = _header(reader)
        return header, *_support_vectors(reader, header)
    except DAMAGE as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def _header(reader: _Reader) -> Header:
    header: dict[str, list[str]] = {}
    for name, *words in reader.words():
        if name == "SV":
            break
        if name not in _WORDS:
            raise reader.refuse(f"{short(name)!r} is no line of a LIBSVM model's header")
        if name in header:
            raise reader.refuse(f"{name} occurs twice in the header")
        if _WORDS[name] >= 0 and len(words) != _WORDS[name]:
            raise reader.refuse(f"{name} needs one value, and has {len(words)}")
        if len(words) > MOST_CLASSES * MOST_CLASSES // 2:
            raise reader.refuse(f"{name} has {len(words):,} values; there may be {MOST_CLASSES:,} classes")
        _check(reader, name, words)
        header[name] = words
    else:
        raise InputError(f"{reader.path}: not a LIBSVM model: there is no line SV")
    for name in _NEEDED:
        if name not in header:
            raise InputError(f"{reader.path}: the header has no {name}")
    return _checked_header(reader, header)


def _check(reader: _Reader, name: str, words: list[str]) -> None:
    """Refuse invalid values on a line of this name."""
    if name == "svm_type" and words[0] not in (*CLASSIFIERS, *VALUED):
        raise reader.refuse(f"svm_type {short(words[0])!r}: only {', '.join((*CLASSIFIERS, *VALUED))} can be read")
    if name == "kernel_type" and words[0] not in KERNELS:
        raise reader.refuse(
            f"kernel_type {short(words[0])!r}: only {', '.join(KERNELS)} can be read; LIBSVM's file of a precomputed "
            "kernel lacks the number of training rows"
        )
    if name in ("gamma", "coef0", "rho", "probA", "probB", "prob_density_marks"):
        for word in words:
            reader.real(word, name)
    if name in ("degree", "nr_class", "total_sv", "label", "nr_sv"):
        for word in words:
            reader.whole(word, name, {"label": -_LARGEST, "nr_class": 1}.get(name, 0))


def _checked_header(reader: _Reader, header: dict[str, list[str]]) -> Header:
    """Build the header, if its lines are consistent."""

    def wrong(what: str) -> InputError:
        return InputError(f"{reader.path}: the header: {what}")

    k, total, svm_type = int(header["nr_class"][0]), int(header["total_sv"][0]), header["svm_type"][0]
    classifies = svm_type in CLASSIFIERS
    pairs = k * (k - 1) // 2 if classifies else 1
    if len(header["rho"]) != pairs:
        raise wrong(f"rho has {len(header['rho']):,} values; {pairs:,} are needed")
    if not classifies and k != 2:
        raise wrong(f"nr_class is {k:,}; for {svm_type} it must be 2")
    labels, counts = (list(map(int, header.get(name, []))) if classifies else [] for name in ("label", "nr_sv"))
    if classifies:
        _check_classes(labels, counts, k, total, wrong)
    sigmoids = [np.array(header[name], np.float64) for name in ("probA", "probB") if classifies and name in header]
    if len(sigmoids) == 1 or any(len(values) != pairs for values in sigmoids):
        raise wrong(f"probA and probB need {pairs:,} values each, one per pair of classes")
    for name, kernels in (("gamma", KERNELS[1:]), ("coef0", ("polynomial", "sigmoid")), ("degree", ("polynomial",))):
        if header["kernel_type"][0] in kernels and name not in header:
            raise wrong(f"a {header['kernel_type'][0]} kernel needs {name}")
    return Header(
        svm_type, header["kernel_type"][0], int(header.get("degree", ["3"])[0]), float(header.get("gamma", ["1"])[0]),
        float(header.get("coef0", ["0"])[0]), np.array(header["rho"], np.float64), np.array(labels, np.int64),
        np.array(counts, np.int64), total, *sigmoids,
    )  # fmt: skip


def _check_classes(
    labels: list[int], counts: list[int], k: int, total: int, wrong: Callable[[str], InputError]
) -> None:
    """Refuse inconsistent classes."""
    for name, values in (("label", labels), ("nr_sv", counts)):
        if len(values) != k:
            raise wrong(f"{name} has {len(values):,} values; {k:,} are needed, one per class")
    if len(set(labels)) < k:
        raise wrong("label names a class twice")
    if sum(counts) != total:
        raise wrong(f"nr_sv adds up to {sum(counts):,}, but total_sv is {total:,}")


def _support_vectors(reader: _Reader, header: Header) -> tuple[NDArray[np.float64], Rows]:
    coef, values, columns, lengths, width = array("d"), array("d"), array("q"), array("q"), 0
    for words in reader.words():
        if len(lengths) == header.total:
            raise reader.refuse(f"more support vectors than total_sv = {header.total:,}")
        if len(words) < header.coefficients:
            raise reader.refuse(f"a support vector must begin with {header.coefficients:,} coefficients")
        coef.extend(reader.real(word, "coefficient") for word in words[: header.coefficients])
        last = 0
        for word in words[header.coefficients :]:
            index, colon, value = word.partition(":")
            if not colon:
                raise reader.refuse(f"{short(word)!r} is not index:value")
            column = reader.whole(index, "index", 1)
            if column <= last:
                raise reader.refuse(f"{short(word)!r}: the indices must ascend")
            last = column
            columns.append(column - 1)
            values.append(reader.real(value, f"the value of index {column}"))
        width = max(width, last)
        lengths.append(len(words) - header.coefficients)
        need = 64 * len(values) + 32 * len(coef)
        memory.require(need, reader.limit, f"{reader.path}: storing the support vectors", REMEDY)
    if len(lengths) < header.total:
        raise InputError(
            f"{reader.path}: {len(lengths):,} support vectors, but total_sv is {header.total:,}: the file was cut short"
        )
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.frombuffer(lengths, np.int64))])
    kind = np.int32 if len(values) < 2**31 else np.int64
    X = csr(np.array(values, np.float64), np.array(columns, kind), starts.astype(kind), (header.total, max(width, 1)))
    A = np.array(coef, np.float64).reshape(header.total, header.coefficients).T
    if len(values) >= _DENSE_FROM * header.total * width:
        memory.require(8 * header.total * width, reader.limit, f"{reader.path}: storing the support vectors", REMEDY)
        return np.ascontiguousarray(A), X.toarray()
    return np.ascontiguousarray(A), X
