"""Two-level KRR: one coarse model of all rows, and the parts' models of its residual.

Parts lose what is smooth across their borders. So M centres drawn from all rows carry a coarse model, whose
normal equations are added up by one Allreduce of M x M + M numbers; then each of the balanced parts fits its
own model, with a smaller sigma and a larger lambda, to the residual. The prediction is the coarse model's
plus the nearest part's (or parts', with soft routing).

n M^2 flops a coarse sigma, shared by the ranks, M^3 a candidate on each, and what BKRR2 costs. Training sends
O(M^2) bytes, whatever n. (Choosing under soft routing adds up every setting's prediction of every validation row,
8 bytes each: phase "predict".)

Not in the thesis; a relative of the local-and-global and full-scale approximations of Gaussian processes
(Snelson and Ghahramani, 2007; Sang and Huang, 2012).
"""

from cakrr.method import RidgeMethod
from cakrr.methods import in_parts

METHOD = twolevel = RidgeMethod(
    name="twolevel",
    summary="a coarse model of all rows, and balanced parts' models of what it leaves over",
    trainer=in_parts,
    route="soft",
    partitioner="kbalance",
    coarse=True,
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
