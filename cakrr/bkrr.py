"""BKRR (section 3.4): balanced parts, the mean of all models answers.

As KKRR, on K-balance's parts of equal size: as fast as DC-KRR, and as wrong as KKRR.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from cacore.io import Dataset
from cakrr.methods.parts import fit
from cakrr.options import Fit, Method, Options
from partition.balanced import KBalance

METHOD = Method("bkrr", "all", "balanced parts, the mean of all models answers", KBalance)


def bkrr(train: Dataset, options: Options, comm: Any = None, test: Dataset | None = None) -> Fit:
    """Train on all ranks' rows; see :func:`cakrr.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm), test)


if __name__ == "__main__":
    from cakrr.cli import main

    main(METHOD)
