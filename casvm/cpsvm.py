"""CP-SVM (section 2.4): parts by K-means, one SVM a part, the nearest centre's answers.

The parts are as large as the clusters are, so that one may keep its rank busy long after the others.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from casvm.methods.parts import fit
from casvm.methods.prepare import Labelled
from casvm.options import Fit, Method, Options
from partition.kmeans import KMeans

METHOD = Method("cpsvm", "parts by K-means, of whatever size", KMeans)


def cpsvm(train: Labelled, options: Options, comm: Any = None) -> Fit:
    """Train on all ranks' rows; see :func:`casvm.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm))


if __name__ == "__main__":
    from casvm.cli import main

    main(METHOD)
