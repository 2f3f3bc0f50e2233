"""What the families of kernel SVMs have in common, as the commands see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data import labels
from cacore.data.dataset import Dataset
from cacore.run.family import Family
from cacore.run.job import Predicting
from cacore.svm.options import DualOptions


class Classifiers(Family):
    """Families whose models have classes, scores and labels."""

    def tested(self, model: Any, test: Dataset, comm: Communicator) -> dict[str, NDArray[Any]]:
        """Scores of this rank's test rows; collective."""
        return {"scores": self._scores(model, test, comm)}

    def metrics(
        self, model: Any, test: Dataset, answers: dict[str, NDArray[Any]], comm: Communicator
    ) -> dict[str, Any]:
        """Accuracy, balanced accuracy and the confusion matrix; collective."""
        return self.judged(model, test, answers["scores"], comm)

    def params(self, model: Any, options: DualOptions) -> dict[str, Any]:
        """C, the kernel and its parameters, for the report."""
        kernel = model.kernel
        described: dict[str, Any] = {"C": model.C, "kernel": kernel.kind}
        described |= {name: getattr(kernel, name) for name in kernel.declared.parameters}
        return {**described, "balanced": options.class_weight == "balanced", "dtype": model.dtype}

    def answers(self, model: Any, rows: Dataset, job: Predicting, comm: Communicator) -> NDArray[np.float64]:
        """Scores of this rank's rows; collective."""
        return self._scores(model, rows, comm)

    def _scores(self, model: Any, rows: Dataset, comm: Communicator) -> NDArray[np.float64]:
        with comm.phase("predict"):
            return np.asarray(model.scores(rows.X, comm))

    def judged(self, model: Any, rows: Dataset, answers: NDArray[np.float64], comm: Communicator) -> dict[str, Any]:
        """Metrics of these scores; collective."""
        return labels.tested(model.classes, rows, model.labels(answers), comm)

    def write(
        self, path: Path | None, model: Any, answers: NDArray[np.float64], decisions: bool, comm: Communicator
    ) -> None:
        """Column ``prediction``, and one or more of decisions, in the order of the rows; collective."""
        if path is None:
            return
        codes = comm.gather(np.searchsorted(model.classes, model.labels(answers)).astype(np.int64))
        values = comm.gather(answers) if decisions else None
        if comm.rank == 0 and codes is not None:
            labels.write(path, model.classes, codes, values)
