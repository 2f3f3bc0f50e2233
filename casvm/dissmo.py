"""Dis-SMO (sections 2.2 and 2.3): the exact SVM of all rows, which are distributed over the ranks.

In each round, the ranks agree on a working set, and each updates the gradient of its own rows
(:mod:`casvm.solver.distributed`). Where most kernel values vanish, they agree on the bias instead
(:mod:`casvm.solver.near_shares`). For flops, memory and bytes see :func:`casvm.methods.all_rows.solve`.

With more than two classes, one problem is solved per pair of classes. A single rank uses the local solver.
"""

from casvm.methods import of_all_rows
from casvm.options import SVMMethod

METHOD = dissmo = SVMMethod(
    name="dissmo",
    summary="exact: one problem whose rows are distributed over the ranks",
    trainer=of_all_rows,
    whole=True,
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
