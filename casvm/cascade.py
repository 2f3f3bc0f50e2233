"""Cascade SVM (section 2.2, Fig. 2.1): random even parts, whose support vectors go up a tree of merges.

Rows that a random part took for safe are gone, and one pass may be far from the exact solution: on ijcnn1 in
8 parts 97.2 to 97.9 % of the test rows are right, with a second pass 98.6 %, with a third 98.7 % (exact: 98.70 %).
In a further pass every part sees the last support vectors as well. Passes go on while the objective changes,
at most two unless told otherwise.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from casvm.methods.prepare import Labelled
from casvm.methods.tree import fit
from casvm.options import Fit, Method, Options

METHOD = Method("cascade", "random parts, whose support vectors are merged in a tree", merge="support", passes=2)


def cascade(train: Labelled, options: Options, comm: Any = None) -> Fit:
    """Train on all ranks' rows; see :func:`casvm.methods.tree.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm))


if __name__ == "__main__":
    from casvm.cli import main

    main(METHOD, trainer=fit)
