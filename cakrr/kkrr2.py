"""KKRR2 (section 3.4): K-means parts, the nearest centre's model answers.

As BKRR2, but on the parts that K-means gives, whatever their sizes: accurate, and as slow as the
largest part. With more parts than ranks, dealt largest first, most of that loss goes away.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from cacore.io import Dataset
from cakrr.methods.parts import fit
from cakrr.options import Fit, Method, Options
from partition.kmeans import KMeans

METHOD = Method("kkrr2", "nearest", "K-means parts, the nearest centre's model answers", KMeans)


def kkrr2(train: Dataset, options: Options, comm: Any = None, test: Dataset | None = None) -> Fit:
    """Train on all ranks' rows; see :func:`cakrr.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm), test)


if __name__ == "__main__":
    from cakrr.cli import main

    main(METHOD)
