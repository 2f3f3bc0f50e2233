"""DC-SVM (section 2.2): parts by K-means, and all rows go up a tree of merges with their alpha.

The last problem is the whole one, so the result is exact; its rank holds all rows.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from casvm.methods.prepare import Labelled
from casvm.methods.tree import fit
from casvm.options import Fit, Method, Options
from partition.kmeans import KMeans

METHOD = Method("dcsvm", "parts by K-means, merged with all rows in a tree: exact", KMeans, merge="all")


def dcsvm(train: Labelled, options: Options, comm: Any = None) -> Fit:
    """Train on all ranks' rows; see :func:`casvm.methods.tree.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm))


if __name__ == "__main__":
    from casvm.cli import main

    main(METHOD, trainer=fit)
