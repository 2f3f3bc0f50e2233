"""DC-Filter (section 2.3): DC-SVM's parts by K-means, of which only the support vectors go up, as in Cascade."""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from casvm.methods.prepare import Labelled
from casvm.methods.tree import fit
from casvm.options import Fit, Method, Options
from partition.kmeans import KMeans

METHOD = Method("dcfilter", "parts by K-means, whose support vectors are merged in a tree", KMeans, merge="support")


def dcfilter(train: Labelled, options: Options, comm: Any = None) -> Fit:
    """Train on all ranks' rows; see :func:`casvm.methods.tree.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm))


if __name__ == "__main__":
    from casvm.cli import main

    main(METHOD, trainer=fit)
