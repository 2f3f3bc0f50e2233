"""FCFS-SVM (section 2.4, Algorithm 4): first come, first served parts, one SVM a part, the nearest centre's answers.

Random rows are the centres; each row in turn goes to the closest centre that still has room.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from casvm.methods.parts import fit
from casvm.methods.prepare import Labelled
from casvm.options import Fit, Method, Options
from partition.balanced import FCFS

METHOD = Method("fcfssvm", "first come, first served parts", FCFS)


def fcfssvm(train: Labelled, options: Options, comm: Any = None) -> Fit:
    """Train on all ranks' rows; see :func:`casvm.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm))


if __name__ == "__main__":
    from casvm.cli import main

    main(METHOD)
