"""BKRR3 (Algorithm 11), an oracle: balanced parts, and for each test row the model with the smallest error there.

It needs the true targets of the test rows, so it is not a usable method but a bound on what routing can achieve with
these models. Training is that of BKRR2. Every test row is sent to every rank, and one reduction takes the smallest
error.
"""

from cakrr.options import RidgeMethod

METHOD = bkrr3 = RidgeMethod(
    name="bkrr3",
    summary="oracle: balanced parts, and the best model for each test row; a bound, not a method",
    trainer="cakrr.methods.task:train",
    route="oracle",
    partitioner="kbalance",
)

if __name__ == "__main__":
    from cakrr.command import main

    main(METHOD)
