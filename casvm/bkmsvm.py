"""BKM-SVM (section 2.4, Algorithm 3): parts by balanced K-means, one SVM a part, the nearest centre's answers.

K-means first; then the farthest rows of parts that are too large move to their closest part with room.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from casvm.methods.parts import fit
from casvm.methods.prepare import Labelled
from casvm.options import Fit, Method, Options
from partition.balanced import BalancedKMeans

METHOD = Method("bkmsvm", "parts by balanced K-means", BalancedKMeans)


def bkmsvm(train: Labelled, options: Options, comm: Any = None) -> Fit:
    """Train on all ranks' rows; see :func:`casvm.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm))


if __name__ == "__main__":
    from casvm.cli import main

    main(METHOD)
