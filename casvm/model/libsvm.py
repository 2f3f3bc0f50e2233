"""Models as LIBSVM's text files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from cacore.errors import InputError
from cacore.files import check_writable, replacing
from casvm.model.model import SVMModel


def export_libsvm(model: SVMModel, path: str | Path) -> list[Path]:
    """Write the parts of this process as model files that LIBSVM's ``svm-predict`` reads.

    Parameters
    ----------
    model : SVMModel
        Of whole-number labels; of one class of kernels that LIBSVM has. Standardised features have to be
        standardised for LIBSVM too.
    path : path
        Of a single part's file; of several parts, each number is added before the suffix.

    Returns
    -------
    list of Path

    Raises
    ------
    InputError
        Labels or a kernel that LIBSVM cannot have, a precomputed kernel, a path that cannot be written.
    """
    path = Path(path)
    check_writable(path)
    if model.kernel is None:
        raise InputError("a model of a precomputed kernel has no support vectors to export")
    if model.standardizer is not None and model.standardizer.root is not None:
        raise InputError("LIBSVM's format has no metric: a model that learned one cannot be exported")
    if model.kernel.declared.libsvm is None:
        raise InputError(f"LIBSVM has no {model.kernel.kind} kernel")
    try:
        labels = model.classes.astype(np.int64)
        whole = bool((labels == model.classes).all())
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise InputError(f"LIBSVM's labels are whole numbers; these are {', '.join(map(str, model.classes[:3]))}, ...")
    written = []
    for number, part in model.parts.items():
        one = path if len(model.sizes) == 1 else path.with_name(f"{path.stem}.{number:06d}{path.suffix}")
        with replacing(one) as temporary, temporary.open("w") as file:
            file.write(_header(model, number, labels[part.classes]))
            X = sp.csr_matrix(part.X)
            X.sort_indices()
            for i in range(len(part.rows)):
                stretch = slice(X.indptr[i], X.indptr[i + 1])
                pairs = zip(X.indices[stretch], X.data[stretch], strict=True)
                line = [f"{c:.17g}" for c in part.coef[:, i]] + [f"{j + 1}:{float(x):.17g}" for j, x in pairs]
                file.write(" ".join(line) + " \n")
        written.append(one)
    return written


def _header(model: SVMModel, number: int, labels: np.ndarray) -> str:
    kernel, part = model.kernel_of(number), model.parts[number]
    assert kernel is not None
    numbers = (("degree", str(kernel.degree)), ("gamma", f"{kernel.gamma:.17g}"), ("coef0", f"{kernel.coef0:.17g}"))
    lines = [
        "svm_type c_svc",
        f"kernel_type {kernel.declared.libsvm}",
        *(f"{name} {value}" for name, value in numbers if kernel.has(name)),
        f"nr_class {len(labels)}",
        f"total_sv {len(part.rows)}",
        " ".join(["rho", *(f"{-b:.17g}" for b in part.b)]),
        " ".join(["label", *map(str, labels)]),
        " ".join(["nr_sv", *map(str, part.n_support)]),
        "SV\n",
    ]
    return "\n".join(lines)
