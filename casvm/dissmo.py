"""Dis-SMO (sections 2.2 and 2.3): the exact SVM of all rows, of which every rank holds a share.

The ranks agree on a working set a round, and each brings the gradient of its own rows up to date; see
:func:`casvm.solver.distributed.solve` for flops, memory and bytes. More than two classes are one problem a pair of
classes. On one rank the local solver does it.
"""

from casvm.methods import of_all_rows
from casvm.options import SVMMethod

METHOD = dissmo = SVMMethod(
    name="dissmo",
    summary="exact, one problem of which every rank holds a share",
    trainer=of_all_rows,
    whole=True,
)

if __name__ == "__main__":
    from casvm.command import main

    main(METHOD)
