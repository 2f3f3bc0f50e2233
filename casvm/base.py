"""What the classifiers of this family share: options, and the fitted attributes that SVC has."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from cacore.svm.classifier import KernelClassifier
from cacore.svm.problem import cache_bytes
from casvm.model.model import SVMModel
from casvm.options import Options
from casvm.solver.smo import Limits


class BaseSVC(KernelClassifier):
    """What all of them share."""

    def _options(self, classes: NDArray[Any], limit: int, kernel: Any, **more: Any) -> Options:
        return Options(
            kind=self._kernel_name(kernel), C=self.C, gamma=self.gamma, degree=self.degree,
            coef0=self.coef0, class_weight=self._class_weight(classes), cache_bytes=cache_bytes(self.cache_gib),
            limits=Limits(self.tol, self.max_iter, self._seconds()), memory_limit=limit, **more,
        ).checked()  # fmt: skip

    def _expose(self, model: SVMModel) -> None:
        """The fitted attributes that SVC has, of this process' parts together."""
        self.model_, self.classes_ = model, model.classes
        k, two = len(model.classes), len(model.classes) == 2
        parts = list(model.parts.values())
        codes = np.concatenate([part.classes.repeat(part.n_support) for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        order = np.lexsort((rows, codes))
        self.support_ = rows[order].astype(np.int32 if rows.size == 0 or rows.max() < 2**31 else np.int64)
        self.n_support_ = np.bincount(codes, minlength=k).astype(np.int32)
        coef = np.concatenate([part.spread(k) for part in parts], axis=1)[:, order]
        self.dual_coef_ = -coef if two else coef  # a positive decision is for the second class
        vectors = [part.X for part in parts]
        if len(parts) == 1 and (np.diff(order) == 1).all():
            self.support_vectors_ = vectors[0]
        else:
            stacked = sp.vstack(vectors, format="csr") if sp.issparse(vectors[0]) else np.concatenate(vectors)
            self.support_vectors_ = stacked[order]
