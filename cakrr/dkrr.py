"""DKRR (Algorithm 6, section 3.3): the exact method, one n x n system over all ranks.

The ranks form a grid. Each computes its blocks of K + lambda n I, in block-cyclic layout, from two panels of rows
(Fig. 3.3); ScaLAPACK factors the matrix and solves the system. In prediction, each rank applies its own training rows
to all test rows, and one reduction adds up the results. A single rank uses LAPACK.

n^2 d + n^3/3 flops per (sigma, lambda) pair, and n^2 numbers of memory, shared by the ranks; see
:func:`cakrr.methods.whole_system.fit`.
"""

from cakrr.options import RidgeMethod

METHOD = dkrr = RidgeMethod(
    name="dkrr",
    summary="exact, one system of all rows over all ranks (ScaLAPACK)",
    trainer="cakrr.methods.whole_system:train",
    route="sum",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
