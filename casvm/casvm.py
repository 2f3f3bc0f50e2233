"""CA-SVM (Algorithm 5): random parts, and nothing is sent before prediction.

Each rank deals its own rows to its parts, trains one SVM a part, and takes the mean of the part's rows for its
centre. A new row is predicted by the model of the nearest centre; since the centres of random parts
lie close to each other, ``--route all``, the mean of all decisions, is usually the better answer here.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from casvm.methods.parts import fit
from casvm.methods.prepare import Labelled
from casvm.options import Fit, Method, Options

METHOD = Method("casvm", "random parts where the rows are, nothing is sent")


def casvm(train: Labelled, options: Options, comm: Any = None) -> Fit:
    """Train on all ranks' rows; see :func:`casvm.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm))


if __name__ == "__main__":
    from casvm.cli import main

    main(METHOD)
