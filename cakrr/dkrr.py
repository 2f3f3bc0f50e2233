"""DKRR (Algorithm 6, section 3.3): the exact method, one n x n system over all ranks.

The ranks form a grid. Each holds its blocks of K + lambda n I, block-cyclically, and makes them from two
panels of rows (Fig. 3.3); ScaLAPACK factors and solves. To predict, each rank applies the rows that it read
to all test rows, and one reduction adds up. On one rank LAPACK does it all.

n^2 d + n^3/3 flops a pair, and n^2 numbers, shared by the ranks; see :func:`cakrr.methods.dkrr.fit`.
"""

from cakrr.method import RidgeMethod
from cakrr.methods import exact

METHOD = dkrr = RidgeMethod(
    name="dkrr",
    summary="exact, one system of all rows over all ranks (ScaLAPACK)",
    trainer=exact,
    route="sum",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
