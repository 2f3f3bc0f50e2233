"""Two-level KRR: one coarse model of all rows, and the parts' models of what it leaves over.

Parts lose what is smooth across their borders. So M centres drawn from all rows carry a coarse model, whose
normal equations are added up by one Allreduce of M x M + M numbers; then each of the balanced parts fits its
own model, with a smaller sigma and a larger lambda, to the residual. The prediction is the coarse model's
plus the nearest part's (or parts', with soft routing). Training moves O(M^2) bytes, whatever n. (Choosing
under soft routing adds up every setting's prediction of every validation row, 8 bytes each: phase "predict".)

Not in the thesis; a relative of the local-and-global and full-scale approximations of Gaussian processes
(Snelson and Ghahramani, 2007; Sang and Huang, 2012).
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from cacore.io import Dataset
from cakrr.methods.parts import fit
from cakrr.options import Fit, Method, Options
from partition.balanced import KBalance

METHOD = Method(
    "twolevel",
    "soft",
    "a coarse model of all rows, and balanced parts' models of what it leaves over",
    KBalance,
    coarse=True,
)


def twolevel(train: Dataset, options: Options, comm: Any = None, test: Dataset | None = None) -> Fit:
    """Train on all ranks' rows; see :func:`cakrr.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm), test)


if __name__ == "__main__":
    from cakrr.cli import main

    main(METHOD)
