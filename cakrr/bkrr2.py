"""BKRR2 (Algorithm 10): balanced parts; predictions by the model of the nearest centre.

K-balance clustering makes P parts of equal size, each with a centre (lines 1 to 7). One model is trained on each part,
which sends nothing (lines 9 to 12). A new row is predicted by the model of the nearest centre (lines 13 to 17). One
reduction adds up the errors of all pairs of sigma and lambda (lines 18 to 22).

m^2 d + m^3/3 flops and 8 m^2 bytes per part of m rows and per (sigma, lambda) pair; many lambdas of one sigma take
4/3 m^3 flops together. Each row is sent once, to the rank of its part. Training sends nothing. In prediction a row is
sent to one rank and back.

From here to the Cholesky factor: :func:`partition.in_parts.in_parts` has the lines of the listing, in which
:class:`cakrr.methods.task.RidgeTask` fills in the steps, and :meth:`cakrr.solver.local.PartSystem.factor` factors the
matrix of a part. From a new row to its prediction: :meth:`cakrr.ridge_model.KRRModel.predict_routes`, `consult`, and
:meth:`partition.parts_model.InParts._asked`.
"""

from cakrr.options import RidgeMethod

METHOD = bkrr2 = RidgeMethod(
    name="bkrr2",
    summary="balanced parts; predictions by the model of the nearest centre",
    trainer="cakrr.methods.task:train",
    route="nearest",
    partitioner="kbalance",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
