"""KKRR (section 3.4): K-means parts, the mean of all models answers.

The first step from DC-KRR, and a lesson: models of parts that lie apart differ, and away from its own rows
each of them says little, so their mean is worse than that of models of random parts.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from cacore.io import Dataset
from cakrr.methods.parts import fit
from cakrr.options import Fit, Method, Options
from partition.kmeans import KMeans

METHOD = Method("kkrr", "all", "K-means parts, the mean of all models answers", KMeans)


def kkrr(train: Dataset, options: Options, comm: Any = None, test: Dataset | None = None) -> Fit:
    """Train on all ranks' rows; see :func:`cakrr.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm), test)


if __name__ == "__main__":
    from cakrr.cli import main

    main(METHOD)
