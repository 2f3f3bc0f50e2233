"""DC-KRR (Algorithm 8): random even parts, the mean of all models answers.

Shuffled rows are dealt evenly; one model is trained on each part, and nothing is sent meanwhile. A
new row is predicted by the mean of all P models, one reduction (Zhang, Duchi and Wainwright, 2013).
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from cacore.io import Dataset
from cakrr.methods.parts import fit
from cakrr.options import Fit, Method, Options
from partition.random import RandomPartition

METHOD = Method("dckrr", "all", "random even parts, the mean of all models answers", RandomPartition)


def dckrr(train: Dataset, options: Options, comm: Any = None, test: Dataset | None = None) -> Fit:
    """Train on all ranks' rows; see :func:`cakrr.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm), test)


if __name__ == "__main__":
    from cakrr.cli import main

    main(METHOD)
