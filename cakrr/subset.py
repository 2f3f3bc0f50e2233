"""Least squares on M points: one triangle of all rows, by a QR decomposition over ranks.

f(x) = sum_j c_j k(x, z_j) minimises the weighted squared errors on all rows plus lambda w |f|^2, where w is the sum of
the weights: the Nystroem approximation of kernel ridge regression, or a Gaussian process' subset of regressors. Every
rank folds blocks of its rows of K_nM into a triangle, and a tree combines the triangles
(:mod:`cacore.linalg.tsqr`). Normal equations would square the condition number, and fail for small lambdas. All lambdas
share the triangle (:mod:`cakrr.solver.nystrom`), and leave-one-out errors, which choose sigma and lambda, take a
second pass over the rows.

2 n M^2 flops per sigma, shared by the ranks, and 3 n M^2 for leave-one-out errors; about 12 M^3 flops on every rank. A
rank needs its rows, six squares of M^2 numbers at most, and a block. Training sends the rows that lie on another
rank than their leaf of the tree, about 2 R packed triangles of M (M + 1) / 2 numbers, and the M points.

Smola and Bartlett (2001); Demmel, Grigori, Hoemmen and Langou (EECS-2008-74).
"""

from cakrr.options import SubsetMethod

METHOD = subset = SubsetMethod(
    name="subset",
    summary="least squares on M points, by QR over all ranks",
    trainer="cakrr.methods.least_squares:fit",
    route="sum",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
