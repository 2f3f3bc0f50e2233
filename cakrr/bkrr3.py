"""BKRR3 (section 3.4), an oracle: balanced parts, and for each test row the model that is best there.

It looks at the answers, so it is no method to use but a bound on what routing can reach with these models.
"""

from __future__ import annotations

from typing import Any

from cacore.comm import as_communicator
from cacore.io import Dataset
from cakrr.methods.parts import fit
from cakrr.options import Fit, Method, Options
from partition.balanced import KBalance

METHOD = Method(
    "bkrr3", "oracle", "balanced parts, the model that is best for each test row: a bound, not a method", KBalance
)


def bkrr3(train: Dataset, options: Options, comm: Any = None, test: Dataset | None = None) -> Fit:
    """Train on all ranks' rows; see :func:`cakrr.methods.parts.fit` for the arguments, the cost and what is raised."""
    return fit(METHOD, train, options, as_communicator(comm), test)


if __name__ == "__main__":
    from cakrr.cli import main

    main(METHOD)
