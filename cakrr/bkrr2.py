"""BKRR2 (Algorithm 10): balanced parts, the nearest centre's model answers.

K-balance clustering gives P parts of equal size, each with a centre. One model is trained on each part,
and nothing is sent meanwhile. A new row is predicted by the model of the nearest centre.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from cacore.io import Dataset
from cakrr.methods.parts import fit
from cakrr.options import Fit, Method, Options
from partition.balanced import KBalance

METHOD = Method("bkrr2", "nearest", "balanced parts, the nearest centre's model answers", KBalance)


def bkrr2(train: Dataset, options: Options, comm: Any = None, test: Dataset | None = None) -> Fit:
    """Train on all ranks' rows; see :func:`cakrr.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm), test)


if __name__ == "__main__":
    from cakrr.cli import main

    main(METHOD)
