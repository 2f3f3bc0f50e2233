"""Two-level KRR: one coarse model of all rows, and the parts' models of its residual.

Models of parts alone miss structure that is smooth across the borders of parts. So a coarse model on M centres, drawn
from all rows, comes first; one Allreduce of M x M + M numbers adds up its normal equations. Then each of the balanced
parts fits its own model, with a smaller sigma and a larger lambda, to the residual. The prediction is the coarse
model's plus that of the nearest part, or of several parts with soft routing.

n M^2 flops per coarse sigma, shared by the ranks; M^3 flops per candidate on each rank; and the cost of BKRR2. Training
sends O(M^2) bytes, independent of n. (With soft routing, the search also adds up the predictions of all settings for
all validation rows, 8 bytes each, in phase "predict".)

Not in the thesis; related to the local-and-global and full-scale approximations of Gaussian processes (Snelson and
Ghahramani, 2007; Sang and Huang, 2012).
"""

from cakrr.options import RidgeMethod

METHOD = twolevel = RidgeMethod(
    name="twolevel",
    summary="a coarse model of all rows, and models of its residual on balanced parts",
    trainer="cakrr.methods.task:train",
    route="soft",
    partitioner="kbalance",
    coarse=True,
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
